"""Read hand-written seed queries: JSONL with `query`, optional `subtask` and `language`, or text with one query a line.

Seeds are examples for the generators and candidates themselves. An error names its line, before any paid call.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from arenarl.synthesis.prompts import Cell, QueryText
from arenarl.system.errors import UserError
from arenarl.system.user_input import first_problem, lines_of
from arenarl.trajectory import json_problem, language_of, parse_json, storable, text_key

UNSTATED = "unstated"  # subtask of a seed without one
SEED, TEST_SEED = "seed", "test seed"  # origins


@dataclass(frozen=True)
class Candidate:
    """A text that may become a query."""

    text: str
    cell: Cell
    origin: str  # SEED, TEST_SEED or "generated"


class _Seed(BaseModel):
    model_config = ConfigDict(extra="forbid")

    query: QueryText
    subtask: str | None = None
    language: Literal["zh", "en"] | None = None


def read_seeds(path: Path, subtasks: Sequence[str], origin: str = SEED) -> list[Candidate]:
    """Read the seeds of a file; `subtasks` are allowed, () allows all. A missing language is detected from the text.
    Raises UserError if a line is malformed or repeats another, or the file holds no seed."""
    seeds, seen = [], {}
    for number, seed in _read(path):
        if subtasks and seed.subtask is not None and seed.subtask not in subtasks:
            problem = f"the subtask {seed.subtask} is not in build.subtasks"
            raise UserError(f"{path}, line {number}: {problem}; choose from {', '.join(subtasks)}")
        if (key := text_key(seed.query)) in seen:
            raise UserError(f"{path}, line {number} repeats the query of line {seen[key]}; remove one")
        seen[key] = number
        subtask = seed.subtask or (subtasks[0] if len(subtasks) == 1 else UNSTATED)
        if subtasks and subtask not in subtasks:
            form = f'{", ".join(subtasks)}: {{"query": …, "subtask": …}}'
            raise UserError(f"{path}, line {number} names no subtask; name one of {form}")
        seeds.append(Candidate(seed.query, Cell(subtask, seed.language or language_of(seed.query)), origin))
    if not seeds:
        raise UserError(f"{path} holds no seed query; write one per line")
    return seeds


def _read(path: Path) -> Iterator[tuple[int, _Seed]]:
    is_json = path.suffix.lower() in (".jsonl", ".json")
    for number, line in enumerate(lines_of(path), start=1):
        if not line.strip():
            continue
        if not is_json and _is_json(line):
            problem = "is JSON, but the file's name says that it holds one query a line"
            raise UserError(f"{path}, line {number} {problem}; rename it to {path.stem}.jsonl, with one object a line")
        try:
            yield number, _Seed.model_validate(parse_json(line) if is_json else {"query": storable(line)})
        except ValidationError as error:
            problem = f'{first_problem(error)}; write {{"query": …, "subtask": …}}'
            raise UserError(f"{path}, line {number} is not a seed query: {problem}") from error
        except ValueError as error:
            how = 'write one object a line, {"query": …}, or, in a .txt file, one query a line'
            raise UserError(f"{path}, line {number} is not JSON: {json_problem(error)}; {how}") from error


def _is_json(line: str) -> bool:
    """Return True for a JSON object or list, maybe with a comma after it, and for a single bracket of one.

    >>> [_is_json(line) for line in ('{"query": "x"},', "[", "[Find a park]", "Find {parks}")]
    [True, True, False, False]
    """
    text = line.strip().rstrip(",").strip()
    try:
        return text in ("[", "{", "]", "}") or isinstance(parse_json(text), dict | list)
    except ValueError:
        return False
