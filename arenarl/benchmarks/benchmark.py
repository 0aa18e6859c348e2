"""What a benchmark is: official items, what the judge is asked about a response,
and the formula that makes figures of its verdicts.

A verdict is what was found of one response: numbers, and what else its record should show. None is a verdict that could
not be had: it is counted, and in no figure. Figures are as in every table here: {"mean": …, "ci": [low, high]}, the 95
% interval over resampled items.
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
from arenarl.benchmarks.records import official_file
from arenarl.evaluation import statistics

Message = dict[str, str]
Verdict = dict[str, Any]
Figure = dict[str, Any]


class Ask(Protocol):
    """Puts messages to the judge; `read` makes something of the reply's text, or raises ValueError.
    None: nothing could be had.

    Where a reply is one JSON object, `read` may be its type: `judge.reply_format` then holds a judge to it that is not
    the official one, of which the official code asks for no form.
    """

    def __call__(self, messages: list[Message], read: Callable[[str], Any] | type[BaseModel]) -> Awaitable[Any]: ...


@dataclass(frozen=True)
class Item:
    """A task of the benchmark. `fields` are the official record's, for judge and formula."""

    item_id: str
    query: str
    language: str = "en"
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scored:
    """An item, and the verdicts on the responses to it: as many as there are repeats,
    but for those that could not be had."""

    item: Item
    verdicts: list[Verdict]

    def mean(self, name: str) -> float:
        """Over the repeats; NaN where no verdict has it."""
        values = [verdict[name] for verdict in self.verdicts if name in verdict]
        return fmean(values) if values else math.nan


@dataclass(frozen=True)
class Intervals:
    """Makes figures, with as many resamples of the items."""

    resamples: int
    seed: int = 0

    def mean(self, values: Iterable[float], parts: Sequence[str] | None = None) -> Figure:
        """Over items; with `parts`, the part of each, over the items of a part and then over parts.
        NaN counts in none."""
        values = list(values)
        return statistics.mean(values, parts or [""] * len(values), self.resamples, self.seed)

    def of(self, statistic: Callable[[np.ndarray], np.ndarray], items: int) -> Figure:
        """Any statistic: (resamples, items) how often each counts -> (resamples,)"""
        return statistics.weighted(statistic, items, self.resamples, self.seed)

    def figure(self, name: str, scored: Iterable[Scored], factor: float = 100) -> Figure:
        """The mean over items of what the verdicts call `name`, times `factor`."""
        return self.mean(factor * one.mean(name) for one in scored)


class Benchmark:
    """One public benchmark. `figures` has the main one under `score`, in percent unless the class says otherwise."""

    name: ClassVar[str]
    title: ClassVar[str]
    size: ClassVar[int]  # official items
    judges: ClassVar[tuple[str, ...]]  # official ones, as their APIs name them, without a date or version
    judge_temperature: ClassVar[float | None] = None  # the official one, where the official code sets it
    calls: ClassVar[int] = 1  # judge calls a response, at most
    repeats: ClassVar[int] = 1  # responses an item
    has_search: ClassVar[bool] = False  # the policy has the research tools
    # where the items lie in a copy of the official repository, the first that is there
    files: ClassVar[tuple[str, ...]] = ()
    editions: ClassVar[tuple[Edition, ...]] = ()  # of the official prompts, in order of preference
    source: ClassVar[str]  # where users get it

    def files_of(self, path: Path) -> list[Path]:
        """What `read` reads. Raises UserError where it is not there."""
        return [official_file(path, self.files)]

    def read(self, path: Path) -> list[Item]:
        """The items of a file, or of a copy of the official repository. Raises UserError with file, line and field."""
        raise NotImplementedError

    def default_path(self) -> Path | None:
        """Where the items are without a file of the user's; None: nowhere."""
        return None

    def query(self, item: Item, prompts: Prompts) -> str:
        """What the policy is asked."""
        return item.query

    async def judge(self, item: Item, response: str, prompts: Prompts, ask: Ask) -> Verdict | None:
        """What the official formula needs of one response."""
        raise NotImplementedError

    def figures(self, scored: Sequence[Scored], intervals: Intervals) -> dict[str, Figure]:
        """The official figures over items that have a verdict."""
        raise NotImplementedError

    def is_official_judge(self, model: str | None) -> bool:
        """Whether an API's model is one of `judges`, dated or numbered or not, with or without its maker's name."""
        name = (model or "").rpartition("/")[2].lower()
        return any(
            re.fullmatch(rf"{re.escape(judge.lower())}([-@]\d{{4}}(-?\d\d-?\d\d)?|-\d{{3}}|-latest)?", name)
            for judge in self.judges
        )
