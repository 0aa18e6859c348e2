"""Turns, tool calls and their text grammar: generated text ↔ chat message ↔ turn.

`assistant_message` parses generated text into a chat message; `read_turns` parses messages into the turns that a judge
reads. No other module parses either. Teacher trajectories and rollouts go through these two functions, so SFT trains on
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
# An action in text begins a line; "Action:" inside a line is not an action.
ACTION_BEGINS = re.compile(r"^[ \t]*(?:Action:|\*\*Action:\*\*)", re.MULTILINE)
_CALL_BEGINS, _CALL_ENDS = "<tool_call>", "</tool_call>"
_ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)


@dataclass
class ToolCall:
    """A tool's name and its arguments."""

    name: str
    arguments: dict[str, Any] | str  # the raw text if the policy did not write a JSON object


@dataclass
class Turn:
    """An assistant message with an observation for each of its tool calls."""

    thought: str
    tool_calls: list[ToolCall]
    observations: list[str]
    answer: str | None


def assistant_message(text: str) -> dict[str, Any]:
    """Parse a generated turn into a chat message. Malformed tool calls stay in `content`, so no text is lost.

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


def call_messages(thought: str, name: str, arguments: dict[str, Any], observation: str) -> list[dict[str, Any]]:
    """Return the chat messages of a turn with one tool call: the call and its observation."""
    calls = _as_functions([ToolCall(name, arguments)])
    turn = {"role": "assistant", "reasoning_content": thought, "content": "", "tool_calls": calls}
    return [turn, tool_message(observation)]


def answer_message(thought: str, text: str) -> dict[str, Any]:
    """Return the chat message of a last turn: a thought and the answer."""
    return assistant_message(f"<think>\n{thought}\n</think>\n\n<answer>\n{text}\n</answer>")


def reply_message(reply: dict[str, Any], native: Sequence[ToolCall] = ()) -> dict[str, Any]:
    """Convert an API's message to a chat message. `native` calls precede the calls in the text."""
    message = assistant_message(text_of(reply.get("content")))
    if thought := text_of(reply.get("reasoning_content") or reply.get("reasoning")):
        message["reasoning_content"] = thought
    if native:
        message["tool_calls"] = _as_functions(native) + message.get("tool_calls", [])
    return message


def answer_text(text: str) -> str:
    """Wrap a final text in <answer> tags. If it holds an <answer> already, keep only that part.

    >>> answer_text("Take the train."), answer_text("Done. <answer>Take it.</answer>")
    ('<answer>\\nTake the train.\\n</answer>', '<answer>\\nTake it.\\n</answer>')
    """
    inner = _ANSWER.search(text)
    return f"<answer>\n{harmless(inner.group(1) if inner else text).strip()}\n</answer>"


def assistant_text(message: dict[str, Any], transform: Callable[[str], str] = str) -> str:
    """Return an assistant message as text: the inverse of `assistant_message` for well-formed turns.
    `transform` is applied to the thought and to the body."""
    functions = [call["function"] for call in message.get("tool_calls", [])]
    calls = [{"name": function["name"], "arguments": function["arguments"]} for function in functions]
    texts = [f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in calls]
    body = "\n".join([message["content"], *texts] if message["content"] else texts)
    return f"<think>\n{transform(message.get('reasoning_content', ''))}\n</think>\n\n{transform(body)}"


def tool_message(observation: str) -> dict[str, str]:
    """Wrap a tool's result in a chat message, with the chat template's control tokens broken up.

    >>> tool_message("ok<|im_end|>")["content"]
    'ok< |im_end|>'
    """
    return {"role": "tool", "content": harmless(observation)}


def parse_turn(message: dict[str, Any]) -> Turn:
    """Parse an assistant message into a turn, without observations yet.
    An answer counts only if it stands alone: without a tool call, a second answer or other text."""
    if actions := message.get("actions"):  # in the text, behind the thought
        thought = ACTION_BEGINS.split(message["content"], maxsplit=1)[0].strip().removeprefix("Thought:").strip()
        calls = [ToolCall(**action) for action in actions]
        return Turn(thought or message.get("reasoning_content", ""), calls, [], None)
    in_text, rest, answer = _read_content(message["content"])
    calls = [*(ToolCall(**call["function"]) for call in message.get("tool_calls", [])), *in_text]
    # A model behind an API may write thoughts beside its calls.
    thoughts = [message.get("reasoning_content", ""), *([rest] if calls else [])]
    return Turn("\n\n".join(filter(None, thoughts)), calls, [], None if calls else answer)


def read_turns(messages: list[dict[str, Any]]) -> list[Turn]:
    """Parse a trajectory's messages into turns, in order, each with its observations: results of tools, and what a
    world or a user says after the turn."""
    turns: list[Turn] = []
    for message in messages:
        if message["role"] == "assistant":
            turns.append(parse_turn(message))
        elif message["role"] in ("tool", "user") and turns:
            turns[-1].observations.append(message["content"])
    return turns


def last_answer(turns: Sequence[Turn]) -> str:
    """Return the last turn's answer, or "" without one."""
    return (turns[-1].answer or "") if turns else ""


def calls_of(turns: Iterable[Turn]) -> Iterator[tuple[ToolCall, bool]]:
    """Yield (call, is_new) for each tool call; it is new if no earlier call has the same name and arguments."""
    seen = set()
    for call in (call for turn in turns for call in turn.tool_calls):
        key = (call.name, json.dumps(call.arguments, sort_keys=True))
        yield call, key not in seen
        seen.add(key)


def repeated_calls(messages: list[dict[str, Any]]) -> float | None:
    """Return the share of a trajectory's tool calls that equal an earlier one; None without calls. Fig. 5, InfoAgent.

    >>> text = '<tool_call>\\n{"name": "search", "arguments": {"query": "park"}}\\n</tool_call>'
    >>> repeated_calls([{"role": "assistant", "content": text}] * 4)
    0.75
    """
    is_new = [is_new for _, is_new in calls_of(read_turns(messages))]
    return is_new.count(False) / len(is_new) if is_new else None


def answer_of(messages: list[dict[str, Any]]) -> str:
    """Return the text inside the last message's <answer>, or "" without one."""
    return last_answer([parse_turn(message) for message in messages[-1:] if message["role"] == "assistant"])


def messages_of(turns: Iterable[Turn]) -> list[dict[str, Any]]:
    """Convert turns to chat messages; `read_turns` reads the same turns from them."""
    messages: list[dict[str, Any]] = []
    for turn in turns:
        message = {"role": "assistant", "reasoning_content": turn.thought, "content": ""}
        if turn.tool_calls:
            message["tool_calls"] = _as_functions(turn.tool_calls)
        elif turn.answer is not None:
            message["content"] = f"<answer>\n{turn.answer}\n</answer>"
        messages += [message, *({"role": "tool", "content": observation} for observation in turn.observations)]
    return messages


def with_system_prompt(messages: list[dict[str, Any]], system: str | None) -> list[dict[str, Any]]:
    """Return the messages with `system` in place of their own system message; without one if it is None."""
    head = [{"role": "system", "content": system}] if system else []
    return head + (messages[1:] if messages[0]["role"] == "system" else messages)


def given_calls(message: dict[str, Any]) -> list[ToolCall]:
    """Return the native tool calls of a message from a user's file. Raises ValueError for malformed `tool_calls`."""
    if not are_objects(message.get("tool_calls") or [], lambda call: isinstance(call.get("function"), dict)):
        raise ValueError("tool_calls must be a list of objects with a function, which has name and arguments")
    return [call for _, call in native_calls(message)]


def are_objects(values: Any, accepts: Callable[[dict[str, Any]], bool]) -> bool:
    """Return True for a list of dictionaries that all satisfy `accepts`."""
    return isinstance(values, list) and all(isinstance(value, dict) and accepts(value) for value in values)


def native_calls(message: dict[str, Any]) -> Iterator[tuple[str | None, ToolCall]]:
    """Yield (id, call) for each native tool call of an API's message, that is, outside its text."""
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        arguments = function.get("arguments")
        arguments = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
        yield call.get("id"), native_call(str(function.get("name") or ""), arguments)


def native_call(name: str, arguments: str) -> ToolCall:
    """Parse an API's native tool call, whose arguments are JSON in a string.
    The string is kept unchanged if it does not hold a JSON object.

    >>> native_call("f", '{"x": 1}'), native_call("f", '{"x"')
    (ToolCall(name='f', arguments={'x': 1}), ToolCall(name='f', arguments='{"x"'))
    """
    try:
        given = parse_json(arguments or "{}", MAX_NESTING - 1)  # the tool call itself adds one bracket
        text = json.dumps({"name": name, "arguments": given}, allow_nan=False)
    except ValueError:
        given = None
    return _read_call(text) if isinstance(given, dict) else ToolCall(storable(name), storable(arguments))


@lru_cache(maxsize=1024)
def _read_content(content: str) -> tuple[tuple[ToolCall, ...], str, str | None]:
    """Return (calls, rest, answer): the calls in the text, the text around them, and the answer if it stands alone.
    Cached, because several readers parse the same message."""
    raws, rest = _split_calls(content)
    answer = _ANSWER.fullmatch(content)
    return tuple(map(_read_call, raws)), rest.strip(), (answer.group(1).strip() or None) if answer else None


def _split_calls(text: str) -> tuple[list[str], str]:
    """Return (the raw calls between tags, the text around them), in time linear in the length.

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
    except ValueError:  # malformed, a number with thousands of digits, NaN or 1e999, too many brackets
        return ToolCall("", raw)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return ToolCall("", raw)
    arguments = call.get("arguments")
    return ToolCall(call["name"], arguments if isinstance(arguments, dict) else raw)


def _as_functions(calls: Iterable[ToolCall]) -> list[dict[str, Any]]:
    """Return the calls in a chat message's form."""
    return [{"type": "function", "function": asdict(call)} for call in calls]
