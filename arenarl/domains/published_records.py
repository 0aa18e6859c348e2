"""A line of a published data set → a query, a trajectory: the shapes in which such files come, and what is refused.

Files are JSONL or Parquet. Understood are OpenAI's chat messages (native tool calls, or Qwen3's in the text),
ShareGPT's conversations and plain text; messages become turns by `trajectory`'s own functions, so that they have the
form of rollouts. What is not understood ends with the file, the line and what to do.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arenarl.rollout.environment import Schema
from arenarl.system.errors import UserError
from arenarl.system.user_input import lines_of
from arenarl.trajectory import (
    MAX_RECORD_NESTING,
    Query,
    Trajectory,
    answer_text,
    given_calls,
    harmless,
    language_of,
    parse_json,
    parse_turn,
    prompt_messages,
    reply_message,
    text_of,
    tool_message,
)

SUBTASKS = {  # Open-Travel's files and task types, as the paper's tables call them
    "direction": "Direction",
    "one_day_travel": "1-Day",
    "compare_itinerary": "Compare",
    "search_around": "Search",
    "multi_day_travel": "M-Day",
}
UNSTATED = "unstated"  # the subtask of a query whose record does not tell it
POINTER = "version https://git-lfs.github.com/spec/v1"
LFS = "a Git LFS pointer, not the data; run git lfs pull in its clone, or name the hub's data set"

QUERY_FIELDS = ("query", "question", "prompt")
MESSAGE_FIELDS = ("messages", "conversations")
# the last two: thinking in <think> tags, if any, then the text (DeepWriting-20K)
TRAJECTORY_FIELDS = (*MESSAGE_FIELDS, "solution", "response")
BASELINE_FIELDS = ("reference", "baseline", *TRAJECTORY_FIELDS)
SUBTASK_FIELDS = ("subtask", "task_type", "category")
READ_FIELDS = {*QUERY_FIELDS, *BASELINE_FIELDS, *SUBTASK_FIELDS, "tools", "metadata"}
# ShareGPT's names
ROLES = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool", "function": "tool"}


@dataclass(frozen=True)
class Record:
    """A line of a file: where it stands, for errors; its fields, those of `metadata` among them;
    the id that it gets here."""

    where: str
    fields: dict[str, Any]
    record_id: str
    file_subtask: str

    def first(self, names: Sequence[str]) -> Any:
        """The first of these fields that holds something."""
        return next((self.fields[name] for name in names if self.fields.get(name)), None)

    @property
    def subtask(self) -> str:
        stated = self.first(SUBTASK_FIELDS)
        return SUBTASKS.get(stated, stated) if isinstance(stated, str) else self.file_subtask


def read_records(path: Path, label: str) -> Iterator[Record]:
    """The records of a file, blank lines left out; `label` and the line make their ids.
    Raises UserError if it cannot be read, is a Git LFS pointer or empty, or a line holds no JSON object."""
    is_empty = True
    for number, where, value in _parquet_rows(path) if path.suffix == ".parquet" else _json_lines(path):
        is_empty = False
        if isinstance(metadata := value.get("metadata"), dict):
            value = metadata | value
        yield Record(where, value, f"{label}-{number:05d}", SUBTASKS.get(path.stem, UNSTATED))
    if is_empty:
        raise UserError(f"{path} is empty; download it again")


def _json_lines(path: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """(number, where it stands, object) of each line that is not blank."""
    for number, line in enumerate(lines_of(path, "utf-8-sig"), start=1):
        where, how = f"{path}, line {number}", "the file must hold a JSON object a line"
        if number == 1 and line.startswith(POINTER):
            raise UserError(f"{where}: {LFS}")
        if not line.strip():
            continue
        try:
            value = parse_json(line, MAX_RECORD_NESTING)
        except ValueError as error:
            raise UserError(f"{where}: not JSON ({error}); {how}") from error
        if not isinstance(value, dict):
            raise UserError(f"{where}: a {type(value).__name__}, not an object; {how}")
        yield number, where, value


def _parquet_rows(path: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """The same of each row."""
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches() for row in batch.to_pylist())
            for number, row in enumerate(rows, start=1):
                yield number, f"{path}, row {number}", _stated(row)
    except (ArrowInvalid, OSError) as error:
        with path.open("rb") as opened:
            is_pointer = opened.read(len(POINTER)) == POINTER.encode()
        wrong = LFS if is_pointer else f"not Parquet ({str(error).splitlines()[0]}); download it again"
        raise UserError(f"{path}: {wrong}") from error


def _stated(value: Any) -> Any:
    """A row without its nulls: a column of objects gives each the fields of all others,
    a tool call the arguments of every other tool."""
    if isinstance(value, dict):
        return {name: _stated(item) for name, item in value.items() if item is not None}
    return [_stated(item) for item in value] if isinstance(value, list) else value


def read_query(record: Record, domain: str) -> Query:
    """Raises UserError if no field holds a query's text."""
    chat = record.first(QUERY_FIELDS) or record.first(MESSAGE_FIELDS) or []
    if isinstance(record.first(QUERY_FIELDS), str):
        chat = [{"role": "user", "content": chat}]
    text = next((message["content"] for message in _messages(chat, record.where) if message["role"] == "user"), "")
    if not text:
        raise UserError(_lacking(record, "query", QUERY_FIELDS + MESSAGE_FIELDS))
    return Query(record.record_id, domain, record.subtask, language_of(text), text)


def _lacking(record: Record, what: str, names: Sequence[str]) -> str:
    fields = ", ".join(record.fields) or "none"
    return f"{record.where}: no {what}; its fields are {fields}, and one of {', '.join(names)} must hold it"


def read_trajectory(record: Record, query: Query, names: Sequence[str]) -> Trajectory:
    """The trajectory that the first of these fields holds: chat messages, or the answer alone as text.

    It starts as rollouts do, from the query without a system message;
    a last text without calls gets the form of an answer.
    Raises UserError if none of the fields holds one."""
    messages = _messages(record.first(names) or [], record.where)
    if all(message["role"] != "assistant" for message in messages):
        raise UserError(_lacking(record, "trajectory", names))
    messages = prompt_messages(query) + messages[messages[0]["role"] == "user" :]
    last = messages[-1]
    if last["role"] == "assistant" and last["content"] and not parse_turn(last).tool_calls:
        last["content"] = answer_text(last["content"])
    is_answered = last["role"] == "assistant" and parse_turn(last).answer
    return Trajectory(query.query_id, messages, "answer" if is_answered else "no_answer")


def _messages(given: Any, where: str) -> list[dict[str, Any]]:
    """Chat messages in `trajectory`'s form, from OpenAI's or ShareGPT's, a JSON string of them,
    or the text of an answer."""
    if isinstance(given, str):
        parsed = _parsed(given)
        given = parsed if isinstance(parsed, list) else [{"role": "assistant", "content": given}]
    if not isinstance(given, list) or not all(isinstance(message, dict) for message in given):
        raise UserError(f"{where}: messages must be a list of objects with role and content, or from and value")
    return [message for one in given if (message := _message(one, where))]


def _message(given: dict[str, Any], where: str) -> dict[str, Any] | None:
    role = str(given.get("role") or given.get("from"))
    content = given.get("content", given.get("value"))
    text = json.dumps(content, ensure_ascii=False) if isinstance(content, dict) else text_of(content)
    match ROLES.get(role, role):
        case "system" | "developer":
            return None
        case "user":
            return {"role": "user", "content": harmless(text).strip()}
        case "tool":
            return tool_message(text)
        case "assistant":
            try:
                calls = given_calls(given)
            except ValueError as error:
                raise UserError(f"{where}: {error}") from error
            text = _with_calls(text) if role == "function_call" else text
            return reply_message({**given, "content": text}, calls)
    known = f"system, user, assistant, tool, and ShareGPT's {', '.join(ROLES)}"
    raise UserError(f"{where}: a message of role {role}; known: {known}")


def _with_calls(text: str) -> str:
    """ShareGPT's `function_call`, a JSON object or a list of them, behind a thought or not, in the text form of calls.

    >>> _with_calls('<think>\\nhm\\n</think>\\n[{"name": "f"}, {"name": "g"}]').splitlines()[-3:]
    ['<tool_call>', '{"name": "g"}', '</tool_call>']
    """
    thought, end, said = text.rpartition("</think>")
    calls = _parsed(said)
    raws = [json.dumps(call, ensure_ascii=False) for call in calls] if isinstance(calls, list) else [said.strip()]
    return (f"{thought}{end}\n\n" if end else "") + "\n".join(f"<tool_call>\n{raw}\n</tool_call>" for raw in raws)


def tools_of(record: Record) -> list[Schema]:
    """The tools that the trajectory could call, from a list or a JSON string."""
    tools = record.fields.get("tools") or []
    tools = _parsed(tools) if isinstance(tools, str) else tools
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UserError(f"{record.where}: tools must be a list of JSON schemas, or a JSON string of one")
    return [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]


def _parsed(text: str) -> Any | None:
    """What the text says as JSON; None if it is none."""
    try:
        return parse_json(text, MAX_RECORD_NESTING)
    except ValueError:
        return None
