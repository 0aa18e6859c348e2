"""Seed queries, which somebody wrote: a JSONL file with `query`, and if wanted `subtask` and `language`,
or a text file with a query a line.

They are what generators write more of, and are candidates themselves.
Every fault is named by its line, before anything is paid for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from arenarl.synthesis.prompts import Cell, QueryText
from arenarl.system.errors import UserError
from arenarl.system.user_input import first_problem, lines_of
from arenarl.trajectory import language_of, parse_json, same_query, storable

UNSTATED = "unstated"  # the subtask of a seed that names none
SEED, TEST_SEED = "seed", "test seed"  # origins


@dataclass(frozen=True)
class Candidate:
    """A text that may become a query; `origin` says where it comes from."""

    text: str
    cell: Cell
    origin: str


class _Seed(BaseModel):
    model_config = ConfigDict(extra="forbid")

    query: QueryText
    subtask: str | None = None
    language: Literal["zh", "en"] | None = None


def read_seeds(path: Path, subtasks: Sequence[str], origin: str = SEED) -> list[Candidate]:
    """The seeds of a file, in the language that they state or are in.
    `subtasks`, if there are any, are all that they may name.

    Raises:
        UserError: a line is no seed, or repeats another; there is none.
    """
    seeds, seen = [], {}
    for number, seed in _read(path):
        if subtasks and seed.subtask is not None and seed.subtask not in subtasks:
            raise UserError(f"{path}, line {number}: the subtask {seed.subtask} is none of {', '.join(subtasks)}")
        if (key := same_query(seed.query)) in seen:
            raise UserError(f"{path}, line {number} is the query of line {seen[key]} again; leave one out")
        seen[key] = number
        subtask = seed.subtask or (subtasks[0] if len(subtasks) == 1 else UNSTATED)
        if subtasks and subtask not in subtasks:
            form = f'{", ".join(subtasks)}: {{"query": …, "subtask": …}}'
            raise UserError(f"{path}, line {number} names no subtask; name one of {form}")
        seeds.append(Candidate(seed.query, Cell(subtask, seed.language or language_of(seed.query)), origin))
    if not seeds:
        raise UserError(f"{path} holds no seed query; write one a line")
    return seeds


def _read(path: Path) -> Iterator[tuple[int, _Seed]]:
    is_json = path.suffix in (".jsonl", ".json")
    for number, line in enumerate(lines_of(path, "utf-8-sig"), start=1):
        if not line.strip():
            continue
        try:
            yield number, _Seed.model_validate(parse_json(line) if is_json else {"query": storable(line)})
        except ValidationError as error:
            problem = f'{first_problem(error)}; a line is {{"query": …, "subtask": …}}'
            raise UserError(f"{path}, line {number} is no seed query: {problem}") from error
        except ValueError as error:
            problem = f"{error}; a file without JSON must not end in {path.suffix}"
            raise UserError(f"{path}, line {number} is not JSON: {problem}") from error
