"""The interface of a benchmark: official items, the judge's prompt for a response, and the formula for its figures.

A verdict holds the numbers found for one response, and other values for its record. A failed verdict is None: it is
counted but part of no figure. A figure is {"mean": …, "ci": [low, high]} with the 95 % interval over resampled items.
"""

import math
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Protocol

import numpy as np
from pydantic import BaseModel

from arenarl.benchmarks.prompts import Edition, Prompts
from arenarl.benchmarks.records import Record, official_file, read_records
from arenarl.evaluation import statistics

Message = dict[str, str]
Verdict = dict[str, Any]
Figure = dict[str, Any]


class Ask(Protocol):
    """Sends messages to the judge and returns `read(text)` of its reply; None if no reply can be read.

    `read` raises ValueError for an unreadable reply. It may be the type of a JSON reply: `judge.reply_format` then
    applies, except to the official judge, for which the official code demands no form.
    """

    def __call__(self, messages: list[Message], read: Callable[[str], Any] | type[BaseModel]) -> Awaitable[Any]: ...


@dataclass(frozen=True)
class Item:
    """A task of the benchmark."""

    item_id: str
    query: str
    language: str = "en"
    fields: dict[str, Any] = field(default_factory=dict)  # fields of the official record, for judge and formula


@dataclass(frozen=True)
class Scored:
    """An item and the verdicts on its responses: one per repeat, without failed verdicts."""

    item: Item
    verdicts: list[Verdict]

    def mean(self, name: str) -> float:
        """Return the mean of a value over the repeats; NaN if no verdict has it."""
        values = [verdict[name] for verdict in self.verdicts if name in verdict]
        return fmean(values) if values else math.nan


@dataclass(frozen=True)
class Intervals:
    """Computes figures with 95 % intervals from `resamples` resamples of the items."""

    resamples: int
    seed: int = 0

    def mean(self, values: Iterable[float], parts: Sequence[str] | None = None) -> Figure:
        """Return the mean over items without NaN. With `parts`, one per item, average within each part first."""
        values = list(values)
        return statistics.mean(values, statistics.Resampling(parts or [""] * len(values), self.resamples, self.seed))

    def of(self, statistic: Callable[[np.ndarray], np.ndarray], items: int) -> Figure:
        """Return the figure of any statistic: weights (resamples, items) -> values (resamples,)."""
        return statistics.weighted(statistic, items, self.resamples, self.seed)

    def figure(self, name: str, scored: Iterable[Scored], factor: float = 100) -> Figure:
        """Return the mean over items of the verdicts' value `name`, times `factor`."""
        return self.mean(factor * entry.mean(name) for entry in scored)


class Benchmark:
    """Base class of the public benchmarks."""

    name: ClassVar[str]
    title: ClassVar[str]
    size: ClassVar[int]  # official items
    judges: ClassVar[tuple[str, ...]]  # official judges by the names of their APIs, without date or version
    judge_temperature: ClassVar[float | None] = None  # None: the official code sets none
    calls: ClassVar[int] = 1  # most judge calls per response
    repeats: ClassVar[int] = 1  # responses per item
    has_search: ClassVar[bool] = False  # the policy gets the research tools
    files: ClassVar[tuple[str, ...]] = ()  # possible paths of the items in a copy of the official repository
    editions: ClassVar[tuple[Edition, ...]] = ()  # sources of official prompts, best first
    source: ClassVar[str]  # where users get the items
    record: ClassVar[type[Record]]  # the form of an item in its file
    unique: ClassVar[str | None] = None  # the record's field that identifies an item

    def files_of(self, path: Path) -> list[Path]:
        """Return the files that `read` reads. Raises UserError if one is missing."""
        return [official_file(path, self.files)]

    def read(self, path: Path) -> list[Item]:
        """Read the items of a file or of a copy of the official repository.
        Raises UserError with file, line and field."""
        return [
            self.item(record, number, file)
            for file in self.files_of(path)
            for number, record in enumerate(read_records(file, self.record, self.unique))
        ]

    def item(self, record: Any, number: int, file: Path) -> Item:
        """Return the item of a record; `number` counts the records of `file` from 0."""
        raise NotImplementedError

    def default_path(self) -> Path | None:
        """Return where the items are if the user names no path; None if the path is required."""
        return None

    def query(self, item: Item, prompts: Prompts) -> str:
        """Return the text of the policy's query."""
        return item.query

    async def judge(self, item: Item, response: str, prompts: Prompts, ask: Ask) -> Verdict | None:
        """Return the values of one response that `figures` needs, or None if the judge gives no verdict."""
        raise NotImplementedError

    def figures(self, scored: Sequence[Scored], intervals: Intervals) -> dict[str, Figure]:
        """Compute the official figures over items with a verdict; `score` is the main one, in percent by default."""
        raise NotImplementedError

    def is_official_judge(self, model: str | None) -> bool:
        """Return True for a model in `judges`, with or without a date, a version or its maker's name."""
        name, suffix = (model or "").rpartition("/")[2].lower(), r"([-@]\d{4}(-?\d\d-?\d\d)?|-\d{3}|-latest)?"
        return any(re.fullmatch(re.escape(judge.lower()) + suffix, name) for judge in self.judges)
