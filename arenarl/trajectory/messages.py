"""Turns and tool calls, and the grammar between a generated text, a chat message and a turn.

Generated text becomes a message by `assistant_message`, a message becomes turns for the judge by `read_turns`; no other
module parses either. Teacher trajectories and generated ones go through the same two functions, so SFT trains on
exactly the form that rollouts accept.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from arenarl.trajectory.text import MAX_NESTING, harmless, parse_json, storable, text_of

_THOUGHT = re.compile(r"^\s*<think>\n?(.*?)\n?</think>\s*", re.DOTALL)
# as text; within a line it is but spoken of
ACTION_BEGINS = re.compile(r"^[ \t]*(?:Action:|\*\*Action:\*\*)", re.MULTILINE)
_CALL_BEGINS, _CALL_ENDS = "<tool_call>", "</tool_call>"
_ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)


@dataclass
class ToolCall:
    """A call of a tool."""

    name: str
    arguments: dict[str, Any] | str  # a string where the policy wrote no JSON object


@dataclass
class Turn:
    """One assistant message, with what the environment answered to each of its tool calls."""

    thought: str
    tool_calls: list[ToolCall]
    observations: list[str]
    answer: str | None


def assistant_message(text: str) -> dict[str, Any]:
    """A generated turn as a chat message. Malformed tool calls stay in `content`,
    so that nothing the policy wrote is lost.

    >>> assistant_message(
    ...     '<think>\\nwhere?\\n</think>\\n\\n<tool_call>\\n{"name": "f", "arguments": {"x": 1}}\\n</tool_call>'
    ... )["tool_calls"]
    [{'type': 'function', 'function': {'name': 'f', 'arguments': {'x': 1}}}]
    """
    thought = _THOUGHT.match(text)
    body = text[thought.end() :] if thought else text
    raws, rest = _split_calls(body)
    calls = [_read_call(raw) for raw in raws]
    message = {"role": "assistant", "reasoning_content": thought.group(1) if thought else "", "content": body.strip()}
    if calls and all(isinstance(call.arguments, dict) for call in calls) and not rest.strip():
        message |= {"content": "", "tool_calls": _as_functions(calls)}
    return message


def reply_message(said: dict[str, Any], native: Sequence[ToolCall] = ()) -> dict[str, Any]:
    """An API's message as a turn is kept here: thought, text, calls;
    first the `native` ones, then those in the text."""
    message = assistant_message(text_of(said.get("content")))
    if thought := text_of(said.get("reasoning_content") or said.get("reasoning")):
        message["reasoning_content"] = thought
    if native:
        message["tool_calls"] = _as_functions(native) + message.get("tool_calls", [])
    return message


def answer_text(text: str) -> str:
    """A final text in the form that counts as an answer. Of one that has an <answer> already, only that is kept.

    >>> answer_text("Take the train.") == answer_text(
    ...     "Done. <answer>Take the train.</answer>"
    ... ) == "<answer>\\nTake the train.\\n</answer>"
    True
    """
    inner = _ANSWER.search(text)
    return f"<answer>\n{harmless(inner.group(1) if inner else text).strip()}\n</answer>"


def assistant_text(message: dict[str, Any], shown: Callable[[str], str] = str) -> str:
    """The text form of an assistant message, the inverse of `assistant_message` for well-formed turns;
    `shown` of thought and body."""
    functions = [call["function"] for call in message.get("tool_calls", [])]
    calls = [{"name": function["name"], "arguments": function["arguments"]} for function in functions]
    texts = [f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in calls]
    body = "\n".join([message["content"], *texts] if message["content"] else texts)
    return f"<think>\n{shown(message.get('reasoning_content', ''))}\n</think>\n\n{shown(body)}"


def tool_message(observation: str) -> dict[str, str]:
    """What a tool returned, as a chat message that no tokenizer can take for the chat's own control tokens.

    >>> tool_message("ok<|im_end|>")["content"]
    'ok< |im_end|>'
    """
    return {"role": "tool", "content": harmless(observation)}


def parse_turn(message: dict[str, Any]) -> Turn:
    """An assistant message as a turn without observations yet. An answer beside a tool call or another is none."""
    in_text, rest, answer = _read_content(message["content"])
    calls = [*(ToolCall(**call["function"]) for call in message.get("tool_calls", [])), *in_text]
    if actions := message.get("actions"):  # in the text, behind the thought
        thought = ACTION_BEGINS.split(message["content"], maxsplit=1)[0].strip().removeprefix("Thought:").strip()
        calls = [ToolCall(**action) for action in actions]
        return Turn(thought or message.get("reasoning_content", ""), calls, [], None)
    # a model behind an API may think beside its calls
    thoughts = [message.get("reasoning_content", ""), *([rest] if calls else [])]
    return Turn("\n\n".join(filter(None, thoughts)), calls, [], None if calls else answer)


def read_turns(messages: list[dict[str, Any]]) -> list[Turn]:
    """A trajectory's turns in order, each with its observations."""
    turns: list[Turn] = []
    answers_as = "tool"
    for message in messages:
        if message["role"] == "assistant":
            turns.append(parse_turn(message))
            answers_as = "user" if "actions" in message else "tool"
        elif message["role"] == answers_as and turns:
            turns[-1].observations.append(message["content"])
    return turns


def last_answer(turns: Sequence[Turn]) -> str:
    """The last turn's answer; "" if it has none."""
    return (turns[-1].answer or "") if turns else ""


def calls_of(turns: Iterable[Turn]) -> Iterator[tuple[ToolCall, bool]]:
    """Yield each tool call, and whether it is new: no earlier call has its name and arguments."""
    seen = set()
    for call in (call for turn in turns for call in turn.tool_calls):
        key = (call.name, json.dumps(call.arguments, sort_keys=True))
        yield call, key not in seen
        seen.add(key)


def answer_of(messages: list[dict[str, Any]]) -> str:
    """The text inside the last message's <answer>; '' if it has none."""
    return last_answer([parse_turn(message) for message in messages[-1:] if message["role"] == "assistant"])


def messages_of(turns: Iterable[Turn]) -> list[dict[str, Any]]:
    """Turns as chat messages, the inverse of `read_turns`: it reads the same turns from them."""
    messages: list[dict[str, Any]] = []
    for turn in turns:
        message = {"role": "assistant", "reasoning_content": turn.thought, "content": ""}
        if turn.tool_calls:
            message["tool_calls"] = _as_functions(turn.tool_calls)
        elif turn.answer is not None:
            message["content"] = f"<answer>\n{turn.answer}\n</answer>"
        messages += [message, *({"role": "tool", "content": observation} for observation in turn.observations)]
    return messages


def told(messages: list[dict[str, Any]], system: str | None) -> list[dict[str, Any]]:
    """The messages behind this system message, or behind none: one that they bring gives way to what rollouts show."""
    head = [{"role": "system", "content": system}] if system else []
    return head + (messages[1:] if messages[0]["role"] == "system" else messages)


def given_calls(message: dict[str, Any]) -> list[ToolCall]:
    """The native calls of a message from elsewhere. Raises ValueError if its `tool_calls` are none."""
    if not are_objects(message.get("tool_calls") or [], lambda call: isinstance(call.get("function"), dict)):
        raise ValueError("tool_calls must be a list of objects with a function, which has name and arguments")
    return [call for _, call in native_calls(message)]


def are_objects(values: Any, is_one: Callable[[dict[str, Any]], bool]) -> bool:
    """Whether this is a list of dictionaries, each of which `is_one` accepts."""
    return isinstance(values, list) and all(isinstance(value, dict) and is_one(value) for value in values)


def native_calls(said: dict[str, Any]) -> Iterator[tuple[str | None, ToolCall]]:
    """(id, call) of each tool call of an API's message that stands apart from its text."""
    for call in said.get("tool_calls") or []:
        function = call.get("function") or {}
        arguments = function.get("arguments")
        arguments = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
        yield call.get("id"), native_call(str(function.get("name") or ""), arguments)


def native_call(name: str, arguments: str) -> ToolCall:
    """A tool call as APIs give it, apart from the text: arguments are JSON in a string,
    kept as they are where they hold no object.

    >>> native_call("f", '{"x": 1}'), native_call("f", '{"x"')
    (ToolCall(name='f', arguments={'x': 1}), ToolCall(name='f', arguments='{"x"'))
    """
    try:
        given = parse_json(arguments or "{}", MAX_NESTING - 1)  # the call around them is one more
        text = json.dumps({"name": name, "arguments": given}, allow_nan=False)
    except ValueError:
        given = None
    return _read_call(text) if isinstance(given, dict) else ToolCall(storable(name), storable(arguments))


@lru_cache(maxsize=1024)
def _read_content(content: str) -> tuple[tuple[ToolCall, ...], str, str | None]:
    """(the calls in a message's text, the text around them, the answer that it is).
    Parsed once, however many read the message."""
    raws, rest = _split_calls(content)
    answer = _ANSWER.fullmatch(content)
    return tuple(map(_read_call, raws)), rest.strip(), (answer.group(1).strip() or None) if answer else None


def _split_calls(text: str) -> tuple[list[str], str]:
    """(what stands between each opening tag and the next closing one, the text without these),
    in time linear in its length.

    >>> _split_calls("a <tool_call>b</tool_call> <tool_call>c")
    (['b'], 'a  <tool_call>c')
    """
    raws, rest, end = [], [], 0
    while (begin := text.find(_CALL_BEGINS, end)) >= 0 and (close := text.find(_CALL_ENDS, begin)) >= 0:
        raws.append(text[begin + len(_CALL_BEGINS) : close])
        rest.append(text[end:begin])
        end = close + len(_CALL_ENDS)
    return raws, "".join([*rest, text[end:]])


def _read_call(raw: str) -> ToolCall:
    raw = raw.strip()
    try:
        call = json.loads(storable(json.dumps(parse_json(raw), ensure_ascii=False, allow_nan=False)))
    except ValueError:  # malformed, a number of thousands of digits, NaN or 1e999, too many brackets
        return ToolCall("", raw)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return ToolCall("", raw)
    arguments = call.get("arguments")
    return ToolCall(call["name"], arguments if isinstance(arguments, dict) else raw)


def _as_functions(calls: Iterable[ToolCall]) -> list[dict[str, Any]]:
    """The calls as a chat message holds them."""
    return [{"type": "function", "function": asdict(call)} for call in calls]
