"""What the splits share: a query that is nearly one of another split is left out of the lower one,
other likenesses are reported.

The test split keeps all of its own, and RL comes before SFT, as with published data.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from arenarl.synthesis.near_duplicates import NearDuplicates
from arenarl.trajectory import Query

_PRECEDENCE = ("test", "rl", "sft")


def without_leaks(
    splits: Mapping[str, Sequence[Query]], threshold: float
) -> tuple[dict[str, list[Query]], list[dict[str, Any]]]:
    """The splits without what is nearly a query of one before, and what was left out:
    split, query, like which, and how like."""
    kept: dict[str, list[Query]] = {}
    leaks: list[dict[str, Any]] = []
    others = NearDuplicates(threshold)
    for name in _PRECEDENCE:
        kept[name] = []
        for query in splits[name]:
            if nearest := others.nearest(query.query):
                leaks.append(
                    {
                        "split": name,
                        "query_id": query.query_id,
                        "query": query.query,
                        "like": nearest[0],
                        "similarity": nearest[1],
                    }
                )
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
        known = set().union(*names[other]) if names[other] else set()
        mine = set().union(*names[one]) if names[one] else set()
        queries = sum(bool(found & known) for found in names[one])
        shared = {
            "names": len(mine),
            "shared names": len(mine & known),
            "queries": len(names[one]),
            "with one": queries,
        }
        rows.append({"split": one, "with": other, **shared})
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
