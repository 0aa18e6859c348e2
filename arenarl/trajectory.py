"""The vocabulary of the project: queries, turns, tool calls, trajectories, rollout groups,
and Qwen3's text form of a turn.

A trajectory is a list of chat messages (Eq. 1: thought z_k, tool call a_k, observation o_k, answer y). Generated text
becomes a message by `assistant_message`, a message becomes turns for the judge by `read_turns`; no other module parses
either. Teacher trajectories and generated ones go through the same two functions, so SFT trains on exactly the form
that rollouts accept.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError, with_config

from arenarl.system.atomic_files import write_lines
from arenarl.system.errors import UserError
from arenarl.system.user_input import first_problem, lines_of

StopReason = Literal["answer", "done", "horizon", "no_answer", "max_turns", "max_tokens", "tool_crash"]
VALID_ENDS = ("answer", "done", "horizon")
# answer: ended with one <answer>…</answer> · done: a world with a state ended it · horizon: the turns were up in such a
# world · no_answer: a turn with neither a tool call nor one closed answer · max_turns, max_tokens: a budget ran out ·
# tool_crash: a tool raised what is no ToolError, and did so again from the start, which says nothing of the policy:
# void. A turn with both calls and an answer runs the calls; its answer does not count.

_THOUGHT = re.compile(r"^\s*<think>\n?(.*?)\n?</think>\s*", re.DOTALL)
# as text; within a line it is but spoken of
ACTION_BEGINS = re.compile(r"^[ \t]*(?:Action:|\*\*Action:\*\*)", re.MULTILINE)
_CALL_BEGINS, _CALL_ENDS = "<tool_call>", "</tool_call>"
_ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)
_JSON_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_ROLES = ("system", "user", "assistant", "tool")
_CONTROL = re.compile(r"<(?=\||/?(?:think|tool_call|tool_response|answer)>)")

MAX_NESTING = 64  # brackets within brackets of a tool call. A record that holds one may have MAX_RECORD_NESTING
MAX_RECORD_NESTING = 100


def _written(text: str) -> str:
    """Raises ValueError for what names and asks nothing, or no tokenizer takes."""
    if not text.strip():
        raise ValueError("is blank")
    text.encode()  # a lone surrogate, which JSON can spell, is a ValueError
    return text


@with_config(ConfigDict(extra="forbid"))  # where a record is read
@dataclass(frozen=True)
class Query:
    """A task for the policy. `constraints` is what the query's text says,
    in a form that the embedded judge can check."""

    query_id: Annotated[str, AfterValidator(_written)]
    domain: str
    subtask: str
    language: str
    query: Annotated[str, AfterValidator(_written)]
    constraints: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def task(self) -> str:
        """What two queries have in common that count as one:
        the text, and what its constraints say, such as a world's item."""
        return f"{self.query} {json.dumps(self.constraints, sort_keys=True)}"


_QUERY = TypeAdapter(Query)


@dataclass
class ToolCall:
    name: str
    arguments: dict[str, Any] | str  # a string where the policy wrote no JSON object


@dataclass
class Turn:
    """One assistant message, with what the environment answered to each of its tool calls."""

    thought: str
    tool_calls: list[ToolCall]
    observations: list[str]
    answer: str | None


@dataclass
class Trajectory:
    """One complete multi-turn attempt at a query.

    `completion_ids` (T,) is everything after the prompt, observations included; `policy_mask_T` is 1 where the policy
    itself chose the token; `logprobs_T` is the token's logprob where the back end tells what it was sampled with, else
    None. All three are empty for trajectories that were read from disk.
    """

    query_id: str
    messages: list[dict[str, Any]]
    stop_reason: StopReason
    is_anchor: bool = False
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    policy_mask_T: list[int] = field(default_factory=list)
    logprobs_T: list[float | None] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def valid(self) -> bool:
        return self.stop_reason in VALID_ENDS

    @property
    def is_void(self) -> bool:
        """Nobody's doing: it is neither judged nor scored, and counts in no figure but those of crashes."""
        return self.stop_reason == "tool_crash"

    @property
    def answer(self) -> str:
        return answer_of(self.messages)

    @property
    def policy_tokens(self) -> int:
        """How many tokens the policy wrote itself; a stored trajectory has lost the tokens, but keeps their number."""
        return self.meta.get("policy_tokens", sum(self.policy_mask_T))

    def to_record(self, tools: list[dict] | None = None) -> dict[str, Any]:
        """The JSONL form: `query_id, messages, tools, valid, meta`."""
        meta = {"stop_reason": self.stop_reason, "is_anchor": self.is_anchor, **self.meta}
        return {
            "query_id": self.query_id,
            "messages": self.messages,
            "tools": tools or [],
            "valid": self.valid,
            "meta": meta,
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Trajectory":
        meta = dict(record["meta"])
        return cls(
            record["query_id"], record["messages"], meta.pop("stop_reason"), meta.pop("is_anchor", False), meta=meta
        )


@dataclass
class RolloutGroup:
    """The N trajectories of one query; row 0 is the anchor if there is one."""

    query: Query
    trajectories: list[Trajectory] = field(repr=False)  # TRL prints a row that has no reward


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
        message["content"] = ""
        message["tool_calls"] = [{"type": "function", "function": asdict(call)} for call in calls]
    return message


def reply_message(said: dict[str, Any], native: Sequence[ToolCall] = ()) -> dict[str, Any]:
    """An API's message as a turn is kept here: thought, text, calls;
    first the `native` ones, then those in the text."""
    message = assistant_message(text_of(said.get("content")))
    if thought := text_of(said.get("reasoning_content") or said.get("reasoning")):
        message["reasoning_content"] = thought
    if native:
        calls = [{"type": "function", "function": asdict(call)} for call in native]
        message["tool_calls"] = calls + message.get("tool_calls", [])
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
    functions = [
        {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in message.get("tool_calls", [])
    ]
    calls = [f"<tool_call>\n{json.dumps(function, ensure_ascii=False)}\n</tool_call>" for function in functions]
    body = "\n".join(([message["content"]] if message["content"] else []) + calls)
    return f"<think>\n{shown(message.get('reasoning_content', ''))}\n</think>\n\n{shown(body)}"


def tool_message(observation: str) -> dict[str, str]:
    """What a tool returned, as a chat message that no tokenizer can take for the chat's own control tokens.

    >>> tool_message("ok<|im_end|>")["content"]
    'ok< |im_end|>'
    """
    return {"role": "tool", "content": harmless(observation)}


def harmless(observation: str) -> str:
    """An observation with Qwen3's control tokens and our tags, if it spells any, broken by a blank after "<".

    Tool results are untrusted: left whole, they would be tokenised as the real thing, and a web page could end its own
    message and speak as the policy. Breaking the text works for every tokenizer, and the judge reads what the policy
    read.
    """
    return storable(_CONTROL.sub("< ", observation))


def parse_turn(message: dict[str, Any]) -> Turn:
    """An assistant message as a turn without observations yet. An answer beside a tool call or another is none."""
    in_text, rest, answer = _read_content(message["content"])
    calls = [*(ToolCall(**call["function"]) for call in message.get("tool_calls", [])), *in_text]
    if actions := message.get("actions"):  # in the text, behind the thought
        thought = ACTION_BEGINS.split(message["content"], maxsplit=1)[0].strip().removeprefix("Thought:").strip()
        return Turn(
            thought or message.get("reasoning_content", ""), [ToolCall(**action) for action in actions], [], None
        )
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
    turn = parse_turn(messages[-1]) if messages and messages[-1]["role"] == "assistant" else None
    return (turn.answer or "") if turn else ""


def messages_of(turns: Iterable[Turn]) -> list[dict[str, Any]]:
    """Turns as chat messages, the inverse of `read_turns`: it reads the same turns from them."""
    messages: list[dict[str, Any]] = []
    for turn in turns:
        message = {"role": "assistant", "reasoning_content": turn.thought, "content": ""}
        if turn.tool_calls:
            message["tool_calls"] = [{"type": "function", "function": asdict(call)} for call in turn.tool_calls]
        elif turn.answer is not None:
            message["content"] = f"<answer>\n{turn.answer}\n</answer>"
        messages += [message, *({"role": "tool", "content": observation} for observation in turn.observations)]
    return messages


def prompt_messages(query: Query, system: str | None = None, seen: str | None = None) -> list[dict[str, str]]:
    """The messages a policy starts from, the same in SFT, RL and evaluation; `seen`: what a world shows first."""
    return told([{"role": "user", "content": f"{query.query}\n\n{harmless(seen)}" if seen else query.query}], system)


def told(messages: list[dict[str, Any]], system: str | None) -> list[dict[str, Any]]:
    """The messages behind this system message, or behind none: one that they bring gives way to what rollouts show."""
    head = [{"role": "system", "content": system}] if system else []
    return [*head, *messages[messages[0]["role"] == "system" :]]


def write_jsonl(path: Path, records: Iterable[Any]) -> None:
    """Write records (dictionaries or queries) a line each."""
    write_lines(path, (asdict(record) if isinstance(record, Query) else record for record in records))


def append_step(path: Path, step: int, records: Iterable[dict[str, Any]]) -> None:
    """Append the records of an optimizer step, each with its `step`. A resumed run replaces what it repeats."""
    earlier = [record for record in read_jsonl(path) if record["step"] < step] if path.is_file() else []
    write_jsonl(path, [*earlier, *records])


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a JSONL file. Raises UserError if there is none; with file and line if a record cannot be read."""
    for _, record in _numbered(path):
        yield record


def _numbered(path: Path) -> Iterator[tuple[int, Any]]:
    """(number, record) of each line that is not blank. Raises UserError as `read_jsonl` does."""
    if not path.exists():
        raise UserError(f"{path} does not exist; make it with: python data/prepare.py --config <the run's YAML>")
    for number, line in enumerate(lines_of(path, "utf-8-sig"), start=1):
        try:
            if line.strip():
                yield number, parse_json(line, MAX_RECORD_NESTING)
        except ValueError as error:
            raise UserError(f"{path}, line {number} is not JSON: {error}") from error


def read_queries(path: Path) -> list[Query]:
    """The queries of a split. Raises UserError if there is none, a record is none, or two share an id or a text."""
    queries = []
    for number, record in _numbered(path):
        try:
            queries.append(_QUERY.validate_python(record))
        except ValidationError as error:
            raise UserError(
                f"{path}, line {number} is no query: {first_problem(error)}; data/README.md says what a record holds"
            ) from error
    if not queries:
        raise UserError(f"{path} has no query; data/README.md says what a record holds")
    for key, unique in {
        "query_id": [query.query_id for query in queries],
        "query and constraints": [query.task for query in queries],
    }.items():
        if len(set(unique)) < len(queries):
            raise UserError(f"{path}: two queries have the same {key}; each must be unique")
    return queries


def read_trajectories(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file of trajectories, in the form of rollouts whoever wrote them: OpenAI's messages have calls'
    arguments as JSON in a string and null beside them, and thoughts may stand in the text; Arrow's tools are JSON in a
    string too.

    Raises:
        UserError: a record is none.
    """
    for number, record in _numbered(path):
        try:
            messages, tools, meta = _kept_messages(record), _kept_tools(record), record.get("meta") or {}
            if not isinstance(meta, dict):
                raise ValueError("meta must be an object")
        except ValueError as error:
            raise UserError(
                f"{path}, line {number} is no trajectory: {error}; data/README.md says what a record holds"
            ) from error
        is_answered = messages[-1]["role"] == "assistant" and parse_turn(messages[-1]).answer
        meta = {"stop_reason": "answer" if is_answered else "no_answer"} | meta
        yield record | {"messages": messages, "tools": tools, "meta": meta}


def _kept_messages(record: Any) -> list[dict[str, Any]]:
    """A record's messages as rollouts have them. Raises ValueError."""
    messages = record.get("messages") if isinstance(record, dict) else None
    if (
        not messages
        or not isinstance(messages, list)
        or not all(isinstance(one, dict) and one.get("role") in _ROLES for one in messages)
    ):
        raise ValueError(f"messages must be a list of objects with content and a role, one of {', '.join(_ROLES)}")
    if all(message["role"] == "system" for message in messages):
        raise ValueError("messages must hold more than the system's")
    return [_kept(message) for message in messages]


def _kept_tools(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The tools that a record brings. Raises ValueError."""
    tools = record.get("tools") or []
    tools = parse_json(tools, MAX_RECORD_NESTING) or [] if isinstance(tools, str) else tools
    if not isinstance(tools, list) or not all(
        isinstance(tool, dict) and isinstance(tool.get("function"), dict) for tool in tools
    ):
        raise ValueError(
            "tools must be a list of objects with a function, which has name and parameters, or a JSON string of one"
        )
    return tools


def _kept(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, str | list | None):
        raise ValueError(f"the content of a message of role {message['role']} must be text")
    actions = message.get("actions") or []
    if not isinstance(actions, list) or not all(
        isinstance(one, dict) and one.keys() == {"name", "arguments"} for one in actions
    ):
        raise ValueError("actions must be a list of objects with name and arguments")
    if message["role"] != "assistant" or "actions" in message:
        return message | {"content": text_of(content)}
    return reply_message(message, given_calls(message))


def given_calls(message: dict[str, Any]) -> list[ToolCall]:
    """The native calls of a message from elsewhere. Raises ValueError if its `tool_calls` are none."""
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(
        isinstance(call, dict) and isinstance(call.get("function"), dict) for call in calls
    ):
        raise ValueError("tool_calls must be a list of objects with a function, which has name and arguments")
    return [call for _, call in native_calls(message)]


def same_query(text: str) -> str:
    """What two queries have in common that count as one: the text, whatever its case and spacing."""
    return " ".join(text.lower().split())


def language_of(text: str) -> str:
    """zh where Chinese characters are a tenth of it or more.

    >>> language_of("请找一家餐厅"), language_of("Find hot pot near 天府 Square")
    ('zh', 'en')
    """
    chinese = sum("\u4e00" <= character <= "\u9fff" for character in text)
    return "zh" if 10 * chinese >= max(len(text), 1) else "en"


def text_of(content: Any) -> str:
    """The text of an API's message, which is a string, a list of parts, or nothing.

    >>> text_of("a"), text_of([{"type": "text", "text": "a"}, {"type": "image_url"}]), text_of(None)
    ('a', 'a', '')
    """
    if isinstance(content, list):
        content = "".join(
            part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    return storable(content) if isinstance(content, str) else ""


def storable(text: str) -> str:
    """The text without lone surrogates, which JSON escapes can spell and neither files nor tokenizers can hold."""
    return text.encode("utf-8", "replace").decode()


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


def parse_json(text: str, nesting: int = MAX_NESTING) -> Any:
    """What a JSON text of unknown origin holds. Raises ValueError where it is none,
    or has more brackets within brackets than `nesting`.

    Brackets are counted first, so that nothing that reads or writes the value recurses deeper than that.

    >>> parse_json('{"x": ["[[["]}', nesting=2)
    {'x': ['[[[']}
    """
    depth = 0
    for bracket in re.findall(r"[][{}]", _JSON_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > nesting:
            raise ValueError(f"more than {nesting} brackets stand within each other")
    return json.loads(text)


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
    if isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("arguments"), dict):
        return ToolCall(call["name"], call["arguments"])
    return ToolCall(call.get("name", "") if isinstance(call, dict) and isinstance(call.get("name"), str) else "", raw)
