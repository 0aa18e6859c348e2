"""JSONL files of queries, trajectories and other records. Every error of reading names the file and the line."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from arenarl.system.atomic_files import append_lines, write_lines
from arenarl.system.errors import UserError, missing
from arenarl.system.user_input import first_problem, lines_of
from arenarl.trajectory.messages import are_objects, given_calls, parse_turn, reply_message
from arenarl.trajectory.text import MAX_RECORD_NESTING, json_problem, parse_json, text_of
from arenarl.trajectory.vocabulary import Query

_QUERY = TypeAdapter(Query)
_ROLES = ("system", "user", "assistant", "tool")
_HELP = "data/README.md describes the format"
_ends: dict[Path, tuple[float, Any]] = {}  # last step and state of each file after this process's `append_step`
SPLIT_FILES = ("sft", "rl_queries", "test_queries", "test_baselines")  # of a data folder, without .jsonl


def write_jsonl(path: Path, records: Iterable[Any]) -> None:
    """Write one line per record: a dictionary or a query."""
    write_lines(path, (asdict(record) if isinstance(record, Query) else record for record in records))


def append_step(path: Path, step: float, records: Iterable[dict[str, Any]]) -> None:
    """Append the records of an optimizer step; each has a `step`. They replace records of this and later steps.

    The first call of a process reads and rewrites the file. Later calls only append lines, unless they replace records
    or another process has changed the file. A kill may leave a part of the lines, which the resumed run replaces.
    """
    records = list(records)
    last, state = _ends.pop(path, (inf, None))
    if last < step and state == _state(path):
        append_lines(path, records)
    else:
        earlier = [record for record in read_steps(path) if record["step"] < step] if path.is_file() else []
        records = [*earlier, *records]
        write_jsonl(path, records)
        last = -inf
    _ends[path] = max([last, *(record["step"] for record in records)]), _state(path)


def _state(path: Path) -> tuple[int, int] | None:
    return (path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else None


def read_steps(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records that `append_step` wrote, without a last line that a kill cut off.
    Raises UserError for any other damaged line."""
    try:
        for number, record in numbered_records(path, may_be_cut=True):
            if not isinstance(record, dict) or type(record.get("step")) is not int:
                raise UserError(f"{path}, line {number} has no step; restore the file")
            yield record
    except UserError as error:
        raise UserError(f"{error}, or delete it: the records of earlier steps are then missing") from error


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a JSONL file. Raises UserError if the file is missing or a line is not a JSON object."""
    for number, record in numbered_records(path):
        if not isinstance(record, dict):
            raise UserError(f"{path}, line {number} is not a JSON object; correct the line, or restore the file")
        yield record


def numbered_records(path: Path, may_be_cut: bool = False) -> Iterator[tuple[int, Any]]:
    """Yield (line number, record) for each line that is not blank; a record is any JSON. Raises UserError if the file
    is missing or a line is not JSON. With `may_be_cut`, a last line without its end is left out."""
    if not path.exists():
        raise UserError(missing(path, f"; {how_to_get(path)}"))
    for number, line in enumerate(lines_of(path, may_be_cut), start=1):
        try:
            if line.strip():
                yield number, parse_json(line, MAX_RECORD_NESTING)
        except ValueError as error:
            if may_be_cut and not line.endswith("\n"):
                return
            how = "correct the line, or restore the file"
            raise UserError(f"{path}, line {number} is not JSON: {json_problem(error)}; {how}") from error


def how_to_get(path: Path) -> str:
    """Return how to get a missing file of a data folder. That depends on the program that made its other files."""
    folder, others = path.parent, [name for name in SPLIT_FILES if (path.parent / f"{name}.jsonl").is_file()]
    if (folder / "build.json").is_file():
        return "finish the folder with: python data/build.py --config <the YAML that built it>"
    if others and not (folder / "manifest.json").is_file():
        return f"write it beside your {others[0]}.jsonl; {_HELP}"
    return f"make it with: python data/prepare.py --config <the run's YAML>, or write it yourself; {_HELP}"


def read_queries(path: Path) -> list[Query]:
    """Read the queries of a split. Raises UserError for an empty file, an invalid record, or a duplicate id or task."""
    queries: dict[int, Query] = {}  # by line
    for number, record in numbered_records(path):
        try:
            queries[number] = _QUERY.validate_python(record)
        except ValidationError as error:
            raise UserError(f"{path}, line {number} is not a valid query: {first_problem(error)}; {_HELP}") from error
    if not queries:
        raise UserError(f"{path} has no query; {_HELP}")
    for key, attribute in {"query_id": "query_id", "query and constraints": "task"}.items():
        line_of: dict[str, int] = {}
        for number, query in queries.items():
            if (first := line_of.setdefault(getattr(query, attribute), number)) != number:
                raise UserError(f"{path}: lines {first} and {number} have the same {key}; each must be unique")
    return list(queries.values())


def read_trajectories(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a trajectory file, converted to the form that rollouts write.

    OpenAI's messages hold arguments as JSON strings, a null content, and maybe thoughts in the text. Arrow files hold
    the tools as a JSON string. Raises UserError for an invalid record.
    """
    for number, record in numbered_records(path):
        try:
            messages, tools, meta = _read_messages(record), _read_tools(record), record.get("meta") or {}
            _require(isinstance(meta, dict), "meta must be an object")
        except ValueError as error:
            raise UserError(f"{path}, line {number} is not a valid trajectory: {error}; {_HELP}") from error
        is_answered = messages[-1]["role"] == "assistant" and parse_turn(messages[-1]).answer
        meta = {"stop_reason": "answer" if is_answered else "no_answer"} | meta
        yield record | {"messages": messages, "tools": tools, "meta": meta}


def _require(condition: Any, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def _read_messages(record: Any) -> list[dict[str, Any]]:
    messages = record.get("messages") if isinstance(record, dict) else None
    is_list = messages and are_objects(messages, lambda message: message.get("role") in _ROLES)
    _require(is_list, f"messages must be a list of objects with content and a role, one of {', '.join(_ROLES)}")
    has_others = any(message["role"] != "system" for message in messages)
    _require(has_others, "messages must hold more than the system message")
    return [_read_message(message) for message in messages]


def _read_message(message: dict[str, Any]) -> dict[str, Any]:
    content, actions = message.get("content"), message.get("actions") or []
    is_text = isinstance(content, str | list | None)
    _require(is_text, f"the content of a message of role {message['role']} must be text")
    have_both = are_objects(
        actions, lambda action: action.keys() == {"name", "arguments"} and isinstance(action["name"], str)
    )
    _require(have_both, "actions must be a list of objects with name, a text, and arguments")
    if message["role"] != "assistant" or "actions" in message:
        return message | {"content": text_of(content)}
    return reply_message(message, given_calls(message))


def _read_tools(record: dict[str, Any]) -> list[dict[str, Any]]:
    tools = record.get("tools") or []
    tools = parse_json(tools, MAX_RECORD_NESTING) or [] if isinstance(tools, str) else tools
    are_tools = are_objects(tools, lambda tool: isinstance(tool.get("function"), dict))
    form = "a list of objects with a function, which has name and parameters, or that list as a JSON string"
    _require(are_tools, f"tools must be {form}")
    return tools
