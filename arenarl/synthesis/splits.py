"""The splits: quotas of each subtask and language (Table 1), assignment of queries, and leaks between splits.

Quotas are filled in the order test, SFT, RL, and spread evenly over languages. SFT has no held-out subtasks (5.1). A
query that nearly repeats one of another split is dropped from the lower split, in the order test, RL, SFT, as with
published data. Shared names are reported.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from arenarl.config.schema import BuildConfig, DataConfig
from arenarl.domains.domain import even_counts
from arenarl.synthesis.near_duplicates import NearDuplicates
from arenarl.synthesis.prompts import Cell
from arenarl.system.errors import UserError
from arenarl.trajectory import Query

SPLITS = ("test", "sft", "rl")
_PRECEDENCE = ("test", "rl", "sft")
Quotas = dict[str, Counter[Cell]]  # by split


def quotas_of(subtasks: Sequence[str], held_out: Sequence[str], build: BuildConfig, data: DataConfig) -> Quotas:
    """Return the wanted queries of each split, subtask and language. `build.spare` makes up for dropped SFT queries.
    Raises UserError if no subtask is left for SFT."""
    languages = build.languages or [data.language]
    sft_subtasks = [subtask for subtask in subtasks if subtask not in held_out]
    if not sft_subtasks:
        problem = f"the domain holds {', '.join(subtasks)} out of SFT, so no subtask is left for it"
        raise UserError(f"build.subtasks: {problem}; add another subtask, or seeds of one")
    return {
        "test": _spread(data.test_per_subtask * len(subtasks), subtasks, languages),
        "sft": _spread(math.ceil(data.sft_size * (1 + build.spare)), sft_subtasks, languages),
        "rl": _spread(data.rl_size, subtasks, languages),
    }


def assign(queries: Sequence[tuple[Query, bool]], quotas: Quotas, seed: int) -> dict[str, list[Query]]:
    """Return the shuffled queries of each split, from (query, True if it was written for the test split).

    The test split takes only the queries that were written for it, if there are any. Test is filled first, then SFT, so
    a lack of queries affects RL first. RL takes all remaining queries, as in the paper.
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
    return Counter(dict(even_counts(total, cells)))


def without_leaks(
    splits: Mapping[str, Sequence[Query]], threshold: float
) -> tuple[dict[str, list[Query]], list[dict[str, Any]]]:
    """Return the splits without near-repeats of earlier splits, and a record of each dropped query."""
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
    """Return, for pairs of splits, how many names they share, and how many queries of the first split have one."""
    names = {split: [set(entities(query.constraints)) for query in queries] for split, queries in splits.items()}
    rows = []
    for split, other in (("test", "sft"), ("test", "rl"), ("rl", "sft")):
        of_split, of_other = set().union(*names[split]), set().union(*names[other])
        row = {"split": split, "with": other, "names": len(of_split), "shared names": len(of_split & of_other)}
        sharing = sum(bool(of_query & of_other) for of_query in names[split])
        rows.append(row | {"queries": len(names[split]), "with one": sharing})
    return rows


def entities(constraints: Any) -> Iterator[str]:
    """Yield the names in a query's constraints: texts that begin with a capital letter or a Chinese character.

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
