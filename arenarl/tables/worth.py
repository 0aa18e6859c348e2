"""README's sentence about when a tournament is worth its calls, out of `noise_strength`, whichever way it points."""

from typing import Any

from arenarl.report.summary import listed
from arenarl.tables.rows import Table

Leads = dict[float, dict[str, Any] | None]  # place on the axis -> the comparison there, None where it is not all there


def worth_sentence(table: Table, summary: dict[str, Any]) -> str:
    """By judge noise, where ArenaRL is significantly ahead of scores, where behind, and where neither;
    and the same of `balanced`.

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
        "Win rates by judge noise, as a multiple of the spread within a group. Against one score per "
        f"trajectory, the greedy sample's included ({_calls(summary, one)} times its judge calls), "
        f"ArenaRL is {_found(one)}. Against two scores ({_calls(summary, two)} times its calls), "
        f"it is {_found(two)}; `balanced` against two scores is {_found(balanced)} (`./reproduce.sh "
        f"noise_strength`, {listed(map(str, seeds))} seeds, **simulated**)."
    )


def _leads(table: Table, summary: dict[str, Any], who: str, scores: str) -> Leads:
    """How far the series `who` is before `scores`, where both have a row;
    without all planned seeds a comparison has no p."""
    compared = {tuple(figures["rows"]): figures for figures in summary["comparisons"] if figures["p"] is not None}
    panels = (None, table.rows[table.reference].panel)
    rows = {(row.series, row.at): name for name, row in table.rows.items() if row.panel in panels}
    places = [at for series, at in rows if series == who and (scores, at) in rows]
    pairs = {at: (rows[who, at], rows[scores, at]) for at in places}
    return {at: compared.get(pair) for at, pair in pairs.items() if pair in table.pairs}


def _calls(summary: dict[str, Any], leads: Leads) -> str:
    """The judge calls of the scores, as a multiple of those of what they are compared with."""
    calls = {row["row"]: row["judge_calls"] for row in summary["rows"]}
    ours, theirs = (sum(calls[lead["rows"][side]] for lead in leads.values()) for side in (0, 1))
    return f"{theirs / ours:.1f}"


def _found(leads: Leads) -> str:
    """`significantly ahead at 2 and 3 (+4.0 and +5.0)`, and what else there is."""
    ahead, behind, level = "significantly ahead", "significantly behind", "not statistically distinguishable"
    places: dict[str, list[float]] = {ahead: [], behind: [], level: []}
    for at, lead in leads.items():
        places[level if not lead["is_beyond_chance"] else ahead if lead["difference"] > 0 else behind].append(at)
    points = {at: f"{lead['difference']:+z.1f}" for at, lead in leads.items()}
    return listed(
        f"{what} at {listed(f'{at:g}' for at in noise)} ({listed(points[at] for at in noise)})"
        for what, noise in places.items()
        if noise
    )
