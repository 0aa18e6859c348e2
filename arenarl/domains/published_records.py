"""Convert a line of a published data set into a query and a trajectory.

Files are JSONL or Parquet. They hold OpenAI's chat messages (native tool calls, or Qwen3's in the text), ShareGPT's
conversations, or plain text. The package `trajectory` parses the messages, so they have the form of rollouts. An error
names the file, the line and the fix.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arenarl.rollout.environment import Schema
from arenarl.system.errors import UserError, one_line
from arenarl.trajectory.messages import answer_text, given_calls, parse_turn, reply_message, tool_message
from arenarl.trajectory.records import numbered_records
from arenarl.trajectory.text import MAX_RECORD_NESTING, harmless, language_of, parse_json, text_of
from arenarl.trajectory.vocabulary import Query, Trajectory, prompt_messages

SUBTASKS = {  # Open-Travel's file and task names -> the names in the paper's tables
    "direction": "Direction",
    "one_day_travel": "1-Day",
    "compare_itinerary": "Compare",
    "search_around": "Search",
    "multi_day_travel": "M-Day",
}
UNSTATED = "unstated"  # the subtask of a query whose record names none
POINTER = b"version https://git-lfs.github.com/spec/v1"
LFS = "a Git LFS pointer, not the data; run git lfs pull in its clone, or name the hub's data set"

QUERY_FIELDS = ("query", "question", "prompt")
MESSAGE_FIELDS = ("messages", "conversations")
# `solution` and `response` hold optional <think> tags, then the text (DeepWriting-20K)
TRAJECTORY_FIELDS = (*MESSAGE_FIELDS, "solution", "response")
BASELINE_FIELDS = ("reference", "baseline", *TRAJECTORY_FIELDS)
SUBTASK_FIELDS = ("subtask", "task_type", "category")
READ_FIELDS = {*QUERY_FIELDS, *BASELINE_FIELDS, *SUBTASK_FIELDS, "tools", "metadata"}
# ShareGPT's names -> ours
ROLES = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool", "function": "tool"}


@dataclass(frozen=True)
class Record:
    """A line of a file: its place for errors, its fields (including the fields in `metadata`), and its id."""

    where: str
    fields: dict[str, Any]
    record_id: str
    file_subtask: str

    def first(self, names: Sequence[str]) -> Any:
        """Return the first non-empty value of these fields."""
        return next((self.fields[name] for name in names if self.fields.get(name)), None)

    @property
    def subtask(self) -> str:
        stated = self.first(SUBTASK_FIELDS)
        return SUBTASKS.get(stated, stated) if isinstance(stated, str) else self.file_subtask


def read_records(path: Path, label: str) -> Iterator[Record]:
    """Yield the records of a file; `label` and the line number form their ids. Blank lines are skipped.

    Raises UserError for an unreadable, broken or empty file, a Git LFS pointer, and a line that is not a JSON object.
    """
    try:
        with path.open("rb") as file:
            is_pointer = file.read(len(POINTER)) == POINTER
    except OSError as error:
        raise UserError(f"{path} cannot be read ({one_line(error)}); download it again") from error
    if is_pointer:
        raise UserError(f"{path}, line 1: {LFS}")
    is_parquet, is_empty = path.suffix == ".parquet", True
    for number, value in _parquet_rows(path) if is_parquet else numbered_records(path):
        where, is_empty = f"{path}, {'row' if is_parquet else 'line'} {number}", False
        if not isinstance(value, dict):
            raise UserError(f"{where}: a {type(value).__name__}, not an object; every line must be a JSON object")
        if isinstance(metadata := value.get("metadata"), dict):
            value = metadata | value
        yield Record(where, value, f"{label}-{number:05d}", SUBTASKS.get(path.stem, UNSTATED))
    if is_empty:
        raise UserError(f"{path} is empty; download it again")


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (row number, object) for each row."""
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches() for row in batch.to_pylist())
            yield from enumerate(map(_without_nulls, rows), start=1)
    except (ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not Parquet ({str(error).splitlines()[0]}); download it again") from error


def _without_nulls(value: Any) -> Any:
    """Remove nulls at every depth. In a Parquet column of objects, each object has the fields of all objects."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def read_query(record: Record, domain: str) -> Query:
    """Return the record's query, its first user message; raise UserError without a query text."""
    messages = _query_messages(record)
    text = next((message["content"] for message in messages if message["role"] == "user"), "")
    if not text:
        raise _missing(record, "query", QUERY_FIELDS + MESSAGE_FIELDS)
    return Query(record.record_id, domain, record.subtask, language_of(text), text)


def has_further_messages(record: Record, is_sft: bool = False) -> bool:
    """Return whether messages after the query are not read. An SFT record's `MESSAGE_FIELDS` are read as a whole; of
    other records, a trajectory after the query does not count."""
    if is_sft and record.first(MESSAGE_FIELDS) is not None:
        return False
    roles = [message["role"] for message in _query_messages(record)]
    return roles.count("user") > 1 or (record.first(QUERY_FIELDS) is not None and len(roles) > 1)


def _query_messages(record: Record) -> list[dict[str, Any]]:
    """Return the messages of the field with the query. A text is one message, unless it is a JSON list of messages."""
    chat = record.first(QUERY_FIELDS)
    if isinstance(chat, str):
        parsed = _parse(chat)
        is_chat = isinstance(parsed, list) and all(
            isinstance(part, dict) and ("role" in part or {"from", "value"} <= set(part)) for part in parsed
        )
        chat = parsed if parsed and is_chat else [{"role": "user", "content": chat}]
    return _messages(chat or record.first(MESSAGE_FIELDS) or [], record.where)


def _missing(record: Record, what: str, names: Sequence[str]) -> UserError:
    fields = ", ".join(record.fields) or "none"
    return UserError(f"{record.where}: no {what}; its fields are {fields}, and one of {', '.join(names)} must hold it")


def read_trajectory(record: Record, query: Query, names: Sequence[str]) -> Trajectory:
    """Return the trajectory in the first field of `names` with messages or an answer; raise UserError without one.

    Like a rollout it starts with the query, without a system message. A last text without tool calls becomes an answer.
    """
    messages = _messages(record.first(names) or [], record.where)
    if all(message["role"] != "assistant" for message in messages):
        raise _missing(record, "trajectory", names)
    messages = prompt_messages(query) + messages[messages[0]["role"] == "user" :]
    last = messages[-1]
    if last["role"] == "assistant" and last["content"] and not parse_turn(last).tool_calls:
        last["content"] = answer_text(last["content"])
    is_answered = last["role"] == "assistant" and parse_turn(last).answer
    return Trajectory(query.query_id, messages, "answer" if is_answered else "no_answer")


def has_trajectory(record: Record, names: Sequence[str]) -> bool:
    """Return whether the first field of `names` holds an assistant's message."""
    return any(message["role"] == "assistant" for message in _messages(record.first(names) or [], record.where))


def _messages(chat: Any, where: str) -> list[dict[str, Any]]:
    """Convert OpenAI's or ShareGPT's messages, their JSON string, or the text of an answer into our chat messages."""
    if isinstance(chat, str):
        parsed = _parse(chat)
        chat = parsed if isinstance(parsed, list) else [{"role": "assistant", "content": chat}]
    if not isinstance(chat, list) or not all(isinstance(message, dict) for message in chat):
        raise UserError(f"{where}: messages must be a list of objects with role and content, or from and value")
    return [converted for message in chat if (converted := _message(message, where))]


def _message(message: dict[str, Any], where: str) -> dict[str, Any] | None:
    """Convert one message; None for a system message."""
    role = str(message.get("role") or message.get("from"))
    content = message.get("content", message.get("value"))
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
                calls = given_calls(message)
            except ValueError as error:
                raise UserError(f"{where}: {error}") from error
            text = _with_calls(text) if role == "function_call" else text
            return reply_message({**message, "content": text}, calls)
    known = f"system, user, assistant, tool, and ShareGPT's {', '.join(ROLES)}"
    raise UserError(f"{where}: a message of unknown role {role}; known: {known}")


def _with_calls(text: str) -> str:
    """Convert ShareGPT's `function_call`, an optional thought and a JSON object or list, into Qwen3's text form.

    >>> _with_calls('<think>\\nhm\\n</think>\\n[{"name": "f"}, {"name": "g"}]').splitlines()[-3:]
    ['<tool_call>', '{"name": "g"}', '</tool_call>']
    """
    thought, end, rest = text.rpartition("</think>")
    calls = _parse(rest)
    raws = [json.dumps(call, ensure_ascii=False) for call in calls] if isinstance(calls, list) else [rest.strip()]
    return (f"{thought}{end}\n\n" if end else "") + "\n".join(f"<tool_call>\n{raw}\n</tool_call>" for raw in raws)


def tools_of(record: Record) -> list[Schema]:
    """Return the schemas of the trajectory's tools, from a list or a JSON string. Raises UserError for others."""
    tools = record.fields.get("tools") or []
    tools = _parse(tools) if isinstance(tools, str) else tools
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UserError(f"{record.where}: tools must be a list of JSON schemas, or a JSON string of one")
    return [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]


def _parse(text: str) -> Any | None:
    """Parse JSON; None if the text is not valid JSON."""
    try:
        return parse_json(text, MAX_RECORD_NESTING)
    except ValueError:
        return None
