"""README's sentence about when a tournament is worth its calls, out of `noise_strength`, whichever way it points."""

from collections.abc import Iterable
from typing import Any

from arenarl.tables.rows import Table

Leads = dict[float, dict[str, Any] | None]  # place on the axis -> the comparison there, None where it is not all there


def worth_sentence(table: Table, summary: dict[str, Any]) -> str:
    """Where ArenaRL is ahead of scores beyond chance, where behind, and where neither, by the judge's noise, and how `balanced` is beside them.

    Empty until every row of these comparisons has all its seeds.
    """
    one, two, balanced = leads = [
        _leads(table, summary, who, scores)
        for who, scores in (("ArenaRL", "one score"), ("ArenaRL", "two scores"), ("balanced (ours)", "two scores"))
    ]
    compared = [lead for by_noise in leads for lead in by_noise.values()]
    if None in compared:
        return ""
    seeds = sorted({len(lead["seeds"]) for lead in compared})
    return (
        "Win rates by the judge's noise, as a multiple of the spread within a group: against one score a trajectory, for "
        f"{_calls(summary, one)} times its judge calls, ArenaRL {_found(one)}; against two scores, for {_calls(summary, two)} times its calls, "
        f"it {_found(two)}; against these, `balanced` {_found(balanced)} "
        f"(`./reproduce.sh noise_strength`, {_listed(map(str, seeds))} seeds, **simulated**)."
    )


def _leads(table: Table, summary: dict[str, Any], who: str, scores: str) -> Leads:
    """How far the series `who` is before `scores`, where both have a row; without all planned seeds a comparison has no p."""
    compared = {tuple(figures["rows"]): figures for figures in summary["comparisons"] if figures["p"] is not None}
    rows = {(row.series, row.at): name for name, row in table.rows.items()}
    pairs = {at: (name, rows[scores, at]) for (series, at), name in rows.items() if series == who and (scores, at) in rows}
    return {at: compared.get(pair) for at, pair in pairs.items() if pair in table.pairs}


def _calls(summary: dict[str, Any], leads: Leads) -> str:
    """The judge calls of the scores, as a multiple of those of what they are compared with."""
    calls = {row["row"]: row["judge_calls"] for row in summary["rows"]}
    ours, theirs = (sum(calls[lead["rows"][side]] for lead in leads.values()) for side in (0, 1))
    return f"{theirs / ours:.1f}"


def _found(leads: Leads) -> str:
    """`is ahead beyond chance at 2 and 3 (+4.0 and +5.0)`, and what else there is."""
    places: dict[str, list[float]] = {"is ahead beyond chance": [], "is behind beyond chance": [], "cannot be told apart": []}
    ahead, behind, level = places
    for at, lead in leads.items():
        places[level if not lead["is_beyond_chance"] else ahead if lead["difference"] > 0 else behind].append(at)
    return _listed(
        f"{what} at {_listed(f'{at:g}' for at in noise)} ({_listed(_points(leads[at]) for at in noise)})" for what, noise in places.items() if noise
    )


def _points(lead: dict[str, Any]) -> str:
    return f"{lead['difference']:+z.1f}"


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
