"""Foreign chats: a prompt as a query, a completion as a trajectory. For rows of trainers and files of candidates.

A prompt or a completion is a text, or a list of OpenAI's messages.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from arenarl.system.atomic_files import json_hash
from arenarl.trajectory.messages import (
    answer_text,
    are_objects,
    native_calls,
    parse_turn,
    reply_message,
    tool_message,
)
from arenarl.trajectory.text import text_of
from arenarl.trajectory.vocabulary import Query, Trajectory

Message = dict[str, Any]
Chat = str | Sequence[Message]


def check_chat(name: str, chat: Any) -> None:
    """Raise ValueError, with `name`, unless `chat` is a text, or a list of messages with roles and OpenAI's content."""
    if isinstance(chat, str):
        return
    problem = f"{name} must be a text or a list of messages"
    if not isinstance(chat, list | tuple):
        raise ValueError(f"{problem}, not {chat!r:.100}")
    for message in chat:
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
            raise ValueError(f"{problem}; one message has no role: {message!r:.100}")
        if not isinstance(content := message.get("content"), str | list | None):  # it would count as no text
            raise ValueError(
                f"{problem}; one message's content is neither a text nor a list of parts: {content!r:.100}"
            )
        calls = message.get("tool_calls") or []
        if not are_objects(calls, lambda call: isinstance(call.get("function") or {}, dict)):
            raise ValueError(f"{problem}; one message has tool_calls that are not OpenAI's: {calls!r:.100}")


def chat_query(prompt: Chat, language: str) -> Query:
    """Return a prompt as the judge's query. A prompt of several messages becomes their texts, each after its role."""
    if isinstance(prompt, str):
        text = prompt
    else:
        messages = [(message["role"], text_of(message.get("content"))) for message in prompt]
        text = messages[0][1] if len(messages) == 1 else "\n\n".join(f"{role}: {text}" for role, text in messages)
    return Query(json_hash(prompt)[:16], "", "", language, text)


def chat_trajectory(query: Query, completion: Chat, is_cut: bool = False) -> Trajectory:
    """Return a completion, a text or messages, as a trajectory. Its answer is the last text, unless that was cut.

    >>> chat_trajectory(Query("q", "", "", "en", "?"), "<think>hm</think>Yes.").answer
    'Yes.'
    """
    chat = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
    messages = [_message(message) for message in chat]
    last = parse_turn(messages[-1]) if messages and messages[-1]["role"] == "assistant" else None
    if last is None or last.tool_calls:
        return Trajectory(query.query_id, messages, "max_turns")
    messages[-1]["content"] = answer_text(messages[-1]["content"])
    trajectory = Trajectory(query.query_id, messages, "max_tokens" if is_cut else "answer")
    return trajectory if trajectory.answer else replace(trajectory, stop_reason="no_answer")


def _message(message: Message) -> Message:
    text = text_of(message.get("content"))
    if message["role"] == "assistant":
        calls = [call for _, call in native_calls(message)]
        return reply_message(message | {"content": _with_whole_thought(text)}, calls)
    return tool_message(text) if message["role"] == "tool" else {"role": message["role"], "content": text}


def _with_whole_thought(text: str) -> str:
    """Add the missing tag of a thought that the chat template opened in the prompt, or that was truncated.

    >>> _with_whole_thought("hm</think>Yes."), _with_whole_thought("<think>hm"), _with_whole_thought("Yes.")
    ('<think>hm</think>Yes.', '<think>hm</think>', 'Yes.')
    """
    thought, closing, rest = text.rpartition("</think>")
    if closing:
        return f"<think>{thought.replace('<think>', '').replace('</think>', '')}</think>{rest}"
    return f"{text}</think>" if text.lstrip().startswith("<think>") else text
