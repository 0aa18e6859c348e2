"""README's sentence about when a tournament is worth its calls, out of `noise_strength`, whichever way it points."""

from collections.abc import Iterable
from typing import Any

from arenarl.tables.rows import Table


def worth_sentence(table: Table, summary: dict[str, Any]) -> str:
    """What ArenaRL wins by against scores, at each strength of the judge's noise; until all of these rows were run, how to run them."""
    one, two = (_leads(table, summary, scores) for scores in ("one score", "two scores"))
    if None in (*one.values(), *two.values()):
        return "How much noise of the judge makes a tournament worth its calls: `./reproduce.sh noise_strength`."
    seeds = min(len(row["seeds"]) for row in summary["rows"])
    return (
        f"With the judge's noise at {_listed(map(_number, one))} times the spread within a group, ArenaRL's win rate is that of one "
        f"score a trajectory {_listed(map(_points, one.values()))} points; at {_listed(map(_number, two))} times, that of two scores, which take "
        f"more calls, {_listed(map(_points, two.values()))} (`./reproduce.sh noise_strength`, {seeds} seeds, **simulated**)."
    )


def _leads(table: Table, summary: dict[str, Any], scores: str) -> dict[float, dict[str, Any] | None]:
    """Place on the axis → how far ArenaRL is before the series `scores` there; None where it was not run."""
    compared = {tuple(figures["rows"]): figures for figures in summary["comparisons"]}
    rows = {(row.series, row.at): name for name, row in table.rows.items()}
    return {at: compared.get((name, rows[scores, at])) for (series, at), name in rows.items() if series == "ArenaRL" and (scores, at) in rows}


def _points(figures: dict[str, Any]) -> str:
    return f"{figures['difference']:+.1f}{' *' if figures['is_beyond_chance'] else ''}"


def _number(value: float) -> str:
    return f"{value:g}"


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}"
