"""The splits: how many queries of each subtask and language go into which (Table 1), and what splits share.

Test queries come first, then those that the teacher solves for SFT, then RL's; what a split wants of a subtask is
spread evenly over its languages. Held-out subtasks have no part in SFT (5.1). A query that is nearly one of another
split is left out of the lower one: the test split keeps all of its own, and RL comes before SFT, as with published
data. Other likenesses are reported.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from arenarl.config.schema import BuildConfig, DataConfig
from arenarl.synthesis.near_duplicates import NearDuplicates
from arenarl.synthesis.prompts import Cell
from arenarl.trajectory import Query

SPLITS = ("test", "sft", "rl")
_PRECEDENCE = ("test", "rl", "sft")
Quotas = dict[str, Counter[Cell]]  # by split


def quotas_of(subtasks: Sequence[str], held_out: Sequence[str], build: BuildConfig, data: DataConfig) -> Quotas:
    """What each split wants of each subtask and language; of SFT a share `build.spare` more than is to remain."""
    languages = build.languages or [data.language]
    taught = [subtask for subtask in subtasks if subtask not in held_out]
    sft = math.ceil(data.sft_size * (1 + build.spare))
    wanted = {"test": (data.test_per_subtask * len(subtasks), subtasks), "sft": (sft, taught)}
    wanted["rl"] = (data.rl_size, subtasks)
    return {name: _spread(total, of, languages) for name, (total, of) in wanted.items()}


def assign(queries: Sequence[tuple[Query, bool]], quotas: Quotas, seed: int) -> dict[str, list[Query]]:
    """Split → its queries. Each is given with whether it was written for the test split, which then takes no others.

    A split that cannot be filled is short: test is filled first, then SFT;
    RL has the rest, which the paper keeps for it.
    """
    split_of: dict[str, list[Query]] = {name: [] for name in SPLITS}
    split_of["test"] = [query for query, is_test in queries if is_test]
    has_own_tests, rest = bool(split_of["test"]), {}
    for query, is_test in queries:
        if not is_test:
            rest.setdefault(Cell(query.subtask, query.language), []).append(query)
    for cell, members in sorted(rest.items(), key=lambda item: (item[0].subtask, item[0].language)):
        random.Random(f"{seed}:{cell.subtask}:{cell.language}").shuffle(members)
        start = 0
        for name in SPLITS:
            wanted = len(members) if name == "rl" else 0 if name == "test" and has_own_tests else quotas[name][cell]
            split_of[name] += members[start : start + wanted]
            start += wanted
    for name, members in split_of.items():
        random.Random(f"{seed}:{name}").shuffle(members)
    return split_of


def _spread(total: int, subtasks: Sequence[str], languages: Sequence[str]) -> Counter[Cell]:
    cells = [Cell(subtask, language) for subtask in subtasks for language in languages]
    return Counter({cell: total // len(cells) + (index < total % len(cells)) for index, cell in enumerate(cells)})


def without_leaks(
    splits: Mapping[str, Sequence[Query]], threshold: float
) -> tuple[dict[str, list[Query]], list[dict[str, Any]]]:
    """The splits without what is nearly a query of one before, and what was left out:
    split, query, like which, and how like."""
    kept: dict[str, list[Query]] = {name: [] for name in _PRECEDENCE}
    leaks: list[dict[str, Any]] = []
    others = NearDuplicates(threshold)
    for name in _PRECEDENCE:
        for query in splits[name]:
            if nearest := others.nearest(query.query):
                likeness = {"like": nearest[0], "similarity": nearest[1]}
                leaks.append({"split": name, "query_id": query.query_id, "query": query.query, **likeness})
            else:
                kept[name].append(query)
        for query in kept[name]:
            others.add(query.query)
    return kept, leaks


def shared_entities(splits: Mapping[str, Sequence[Query]]) -> list[dict[str, Any]]:
    """How many of the names in a split's constraints stand in another's too, and in how many of its queries;
    for each pair of splits."""
    names = {split: [set(entities(query.constraints)) for query in queries] for split, queries in splits.items()}
    rows = []
    for one, other in (("test", "sft"), ("test", "rl"), ("rl", "sft")):
        known, mine = set().union(*names[other]), set().union(*names[one])
        shared = {"names": len(mine), "shared names": len(mine & known), "queries": len(names[one])}
        rows.append({"split": one, "with": other, **shared, "with one": sum(bool(mine & known) for mine in names[one])})
    return rows


def entities(constraints: Any) -> Iterator[str]:
    """The names in a query's constraints: its texts that begin with a capital letter or are Chinese.

    >>> sorted(entities({"city": "Xian", "stops": ["Lotus Park", "莲花公园"],
    ...                  "mode": "driving", "date": "2026-05-01", "max": 3}))
    ['Lotus Park', 'Xian', '莲花公园']
    """
    if isinstance(constraints, str):
        if constraints[:1].isupper() or "\u4e00" <= constraints[:1] <= "\u9fff":
            yield constraints
    elif isinstance(constraints, dict | list):
        for value in constraints.values() if isinstance(constraints, dict) else constraints:
            yield from entities(value)
