"""Foreign chats: a prompt as a query, a completion as a trajectory. For rows of trainers and files of candidates.

A prompt or a completion is a text, or a list of OpenAI's messages.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any

from arenarl.system.atomic_files import json_hash
from arenarl.trajectory.messages import (
    answer_text,
    given_calls,
    parse_turn,
    reply_message,
    tool_message,
)
from arenarl.trajectory.text import text_of
from arenarl.trajectory.vocabulary import Query, Trajectory

Message = dict[str, Any]
Chat = str | Sequence[Message]
NO_RESULT = "(no result)"
ROLES = ("system", "developer", "user", "assistant", "tool")  # of a completion's messages


def check_chat(name: str, chat: Any, roles: Collection[str] | None = None) -> None:
    """Raise ValueError, with `name`, unless `chat` is a text, or a list of OpenAI's messages. With `roles`, each
    message must have one of them, and the first is the model's. Anything that a judge would not be shown is refused:
    images, other forms of tool calls, results before any call."""
    if isinstance(chat, str):
        return
    problem = f"{name} must be a text or a list of messages"
    if not isinstance(chat, list | tuple):
        raise ValueError(f"{problem}, not {chat!r:.100}")
    for message in chat:
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
            raise ValueError(f"{problem}; one message has no role: {message!r:.100}")
        if roles and message["role"] not in roles:
            raise ValueError(f"{problem}; one has the role {message['role']!r:.100}, not one of {', '.join(roles)}")
        if not isinstance(content := message.get("content"), str | list | None):
            raise ValueError(
                f"{problem}; one message's content is neither a text nor a list of parts: {content!r:.100}"
            )
        for part in content if isinstance(content, list) else ():
            if not (isinstance(part, dict) and isinstance(part.get("text"), str)):
                raise ValueError(
                    f"{problem}; one message's content has a part without text, which a judge cannot be shown: "
                    f"{part!r:.100}; write tool calls and results as OpenAI does (tool_calls, role tool), and leave "
                    "other parts out"
                )
        try:
            given_calls(message)
        except ValueError as error:
            raise ValueError(f"{problem}; one message's {error}: {message['tool_calls']!r:.100}") from None
        if message.get("function_call"):
            raise ValueError(f"{problem}; one message has function_call, OpenAI's old form; write tool_calls instead")
    if roles and chat and chat[0]["role"] != "assistant":
        how = "begin with the model's first message, and move earlier ones to the prompt"
        raise ValueError(f"{problem}; the first has the role {chat[0]['role']!r:.100}; {how}")


def chat_query(prompt: Chat, language: str) -> Query:
    """Return a prompt as the judge's query. A prompt of several messages becomes their texts and tool calls, each
    message after its role."""
    if isinstance(prompt, str):
        text = prompt
    else:
        messages = [(message["role"], _with_calls(message)) for message in prompt]
        text = messages[0][1] if len(messages) == 1 else "\n\n".join(f"{role}: {text}" for role, text in messages)
    return Query(json_hash(prompt)[:16], "", "", language, text)


def _with_calls(message: Message) -> str:
    calls = [json.dumps(asdict(call), ensure_ascii=False) for call in given_calls(message)]
    return "\n".join(filter(None, [text_of(message.get("content")), *calls]))


def chat_trajectory(query: Query, completion: Chat, is_cut: bool = False) -> Trajectory:
    """Return a completion, a text or messages, as a trajectory. Its answer is the last text, unless that was cut.
    Earlier texts of the model become thoughts, so that a judge sees them beside calls and results.
    Messages of other roles follow a turn like results, each after its role.

    >>> chat_trajectory(Query("q", "", "", "en", "?"), "<think>hm</think>Yes.").answer
    'Yes.'
    """
    chat = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
    messages = [_message(message) for message in _in_call_order(chat)]
    for message in messages[:-1]:
        if message["role"] == "assistant" and not parse_turn(message).tool_calls:
            thoughts = filter(None, [message["reasoning_content"], message["content"]])
            message |= {"reasoning_content": "\n\n".join(thoughts), "content": ""}
    last = parse_turn(messages[-1]) if messages and messages[-1]["role"] == "assistant" else None
    if last is None or last.tool_calls:
        return Trajectory(query.query_id, messages, "max_turns")
    messages[-1]["content"] = answer_text(messages[-1]["content"])
    trajectory = Trajectory(query.query_id, messages, "max_tokens" if is_cut else "answer")
    return trajectory if trajectory.answer else replace(trajectory, stop_reason="no_answer")


def _in_call_order(chat: Sequence[Message]) -> list[Message]:
    """Return the messages with the results of parallel tool calls in the order of the calls."""
    messages: list[Message] = []
    for are_results, run in groupby(chat, lambda message: message["role"] == "tool"):
        if are_results:
            calls = messages[-1].get("tool_calls") if messages else None
            messages += _by_call([call.get("id") for call in calls or []], list(run))
        else:
            messages += run
    return messages


def _by_call(ids: Sequence[Any], results: list[Message]) -> list[Message]:
    """Return the results in the order of the calls with these ids, then those of no call. Calls that share an id take
    its results in turn. A call without a result, before one with a result, gets `NO_RESULT`, because results are
    matched with calls by place."""
    placed: list[Message | None] = []
    for call_id in ids:
        place = next((n for n, result in enumerate(results) if result.get("tool_call_id") == call_id), None)
        placed.append(None if place is None else results.pop(place))
    while placed and placed[-1] is None:
        placed.pop()
    return [result or {"role": "tool", "content": NO_RESULT} for result in placed] + results


def _message(message: Message) -> Message:
    text = text_of(message.get("content"))
    if message["role"] == "assistant":
        return reply_message(message | {"content": _with_whole_thought(text)}, given_calls(message))
    if message["role"] == "tool":
        return tool_message(text)
    return {"role": "user", "content": f"{message['role']}: {text}"}  # a judge sees it among results


def _with_whole_thought(text: str) -> str:
    """Add the missing tag of a thought that the chat template opened in the prompt, or that was truncated.

    >>> _with_whole_thought("hm</think>Yes."), _with_whole_thought("<think>hm"), _with_whole_thought("Yes.")
    ('<think>hm</think>Yes.', '<think>hm</think>', 'Yes.')
    """
    thought, closing, rest = text.rpartition("</think>")
    if closing:
        return f"<think>{thought.replace('<think>', '').replace('</think>', '')}</think>{rest}"
    return f"{text}</think>" if text.lstrip().startswith("<think>") else text
