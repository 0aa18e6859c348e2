"""What a table's runs say in figures, results/<table>/table.json,
and what a run that is done again says of a stored one.

A row's figures are means over its table's seeds with 95 % t intervals; differences are paired over the seeds that both
rows have in any table that compares them. Holm's method corrects for the number of comparisons in each of two families
over all tables of the same figure, run or not: the primary ones, those that the papers' claims name, and the others. So
a comparison that several tables have has one difference and one verdict. `mean` is the table's figure of sampled
trajectories.
"""

import json
import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from arenarl.config.command_line import as_overrides
from arenarl.config.load import load_config
from arenarl.domains.domain import make_domain
from arenarl.report.summary import heading
from arenarl.studies.signal_figures import step_figures
from arenarl.system.atomic_files import read_json
from arenarl.system.errors import UserError
from arenarl.system.progress import say
from arenarl.tables.over_seeds import FIRST_SEEDS, Rows, beyond_chance, mean_over_seeds, paired_difference
from arenarl.tables.rows import Row, Table, runs_of
from arenarl.tables.store import FILE, read_runs

Seeds = dict[int, dict[str, Any]]  # seed -> what its run found
Found = dict[str, Seeds]  # by row
Comparison = frozenset[str]  # two rows
Verdicts = dict[Comparison, dict[str, Any]]  # of `compare_all`


def read_found(name: str, table: Table, results: Path, folder: str = "tables", quick: bool = False) -> Found:
    """The table's finished runs; one of another seed, or with other settings than its row has now,
    is left out, and said.

    A seed that was added when others had been seen would make chance differences of some comparisons, sooner or later.
    """
    settings = {
        (run.row, run.seed): json.loads(json.dumps(run.settings))
        for run in runs_of(name, table, [], table.seeds, folder, quick)
    }
    found: Found = {row: {} for row in table.rows}
    for (row, seed), run in read_runs(results / name).items():
        if row not in table.rows:
            continue
        if why := _left_out(run, table, settings.get((row, seed), {})):
            say(f"{name}, {row}, seed {seed} is left out: it {why}")
        else:
            found[row][seed] = run if _has_subtasks_of(table.figure, run) else run | {"by_subtask": {}}
    return found


def _left_out(run: dict[str, Any], table: Table, settings: dict[str, Any]) -> str | None:
    """Why a stored run is not one of the table's."""
    if run["seed"] not in table.seeds:
        return "is none of the table's seeds"
    if run["settings"] != settings:
        return _other_settings(run["settings"], settings)
    return None if table.figure in run["figures"] else f"has no figure {table.figure}"


def _has_subtasks_of(figure: str, run: dict[str, Any]) -> bool:
    """Whether `by_subtask` is of this figure, which is its mean:
    a run that a table of another figure made has that one's."""
    known = [value for value in run["by_subtask"].values() if value is not None]
    return bool(known) and math.isclose(fmean(known), run["figures"][figure], abs_tol=1e-3)  # both are rounded


def _other_settings(stored: dict[str, Any], now: dict[str, Any]) -> str:
    """The first key in which a stored run and its row differ."""
    values = {key: [settings.get(key, "its default") for settings in (stored, now)] for key in sorted(stored | now)}
    key, (before, after) = next((key, pair) for key, pair in values.items() if pair[0] != pair[1])
    return f"was run with {key} at {before}, the row has {after}"


def summary_of_table(name: str, table: Table, found: Found, verdicts: Verdicts) -> dict[str, Any]:
    """What table.json holds of the runs found, by row; `verdicts` are those of `compare_all`."""
    runs = [run for seeds in found.values() for run in seeds.values()]
    subtasks = _subtasks(table, runs)
    return {
        "table": name,
        "title": table.title,
        "judge": sorted({run["judge"] for run in runs}),
        "seeds": sorted({run["seed"] for run in runs}),
        "commits": sorted({run.get("provenance", {}).get("commit") or "no commit" for run in runs}),
        "rows": [_row_figures(row_name, row, table, subtasks, found[row_name]) for row_name, row in table.rows.items()],
        "comparisons": _comparisons(table, found, verdicts),
    }


def _subtasks(table: Table, runs: Iterable[dict[str, Any]]) -> Sequence[str]:
    """In the order of the table's domain, or as they come where the queries name them."""
    config = load_config(table.cold_start, as_overrides(table.cold_start_set))
    named = dict.fromkeys(subtask for run in runs for subtask in run["by_subtask"])
    return make_domain(config.environment, config.data).subtasks or list(named)


def _row_figures(name: str, row: Row, table: Table, subtasks: Sequence[str], seeds: Seeds) -> dict[str, Any]:
    runs = list(seeds.values())
    dimensions = [{name: of["win_rate_valid"] for name, of in run.get("by_dimension", {}).items()} for run in runs]
    values = [run["figures"][table.figure] for run in runs]
    none = {"mean": None, "ci": [None, None], "prediction": [None, None]}
    return {
        "row": name,
        "label": row.label,
        "config": row.config,
        "overrides": as_overrides(table.set | row.set),
        "seeds": list(seeds),
        **(mean_over_seeds(values) if runs else none),
        "judge_calls": round(sum(run["judge_calls"] for run in runs) / len(runs)) if runs else None,
        # a busy machine slows one seed, not all
        "seconds": round(median(run["seconds"]["total"] for run in runs), 1) if runs else None,
        "paper": dict(zip(table.paper_columns, row.paper, strict=True)) if row.paper else None,
        "figures": _means_of_all([run["figures"] for run in runs]),
        "by_subtask": _means_of_all([{name: run["by_subtask"].get(name) for name in subtasks} for run in runs]),
        "by_dimension": _means_of_all(dimensions),  # win rates over valid trajectories
        "by_judge": _means_of_all([run.get("by_judge", {}) for run in runs]),
        "curve": _curve_points(runs, table),
        "discrimination": _mean_signals([run["discrimination"] for run in runs if table.measure]),
    }


def _means_of_all(figures: Sequence[dict[str, float | None]]) -> dict[str, Any]:
    """Means over seeds of the figures that every seed has; rows stored before a figure was kept lack it."""
    names = figures[0] if figures else ()
    return {
        name: mean_over_seeds([one[name] for one in figures])
        for name in names
        if all(one.get(name) is not None for one in figures)
    }


def _curve_points(runs: Sequence[dict[str, Any]], table: Table) -> dict[int, dict[str, Any]]:
    """The table's figure on the curve's queries at those of its steps that a run reached."""
    points, figure = [point for run in runs for point in run["curve"]], f"eval/sampled/{table.figure}"
    values = {step: [point[figure] for point in points if point["step"] == step] for step in table.curve_steps}
    return {step: mean_over_seeds(of_step) for step, of_step in values.items() if of_step}


def _mean_signals(rows_by_seed: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """By step, what a group's signals are told by, with intervals over seeds."""
    if not rows_by_seed:
        return []
    steps = sorted(set.intersection(*({row["step"] for row in rows} for rows in rows_by_seed)))
    at = {step: [step_figures(row) for rows in rows_by_seed for row in rows if row["step"] == step] for step in steps}
    return [
        {"step": step, "told": {name: _mean_if_all([row[name] for row in rows]) for name in rows[0]}}
        for step, rows in at.items()
    ]


def _mean_if_all(values: Sequence[float | None]) -> dict[str, Any] | None:
    """None if some seed lacks the figure."""
    return None if None in values else mean_over_seeds(values)


def merged(found: dict[str, Found]) -> Found:
    """Each row's seeds in any of the tables.

    Raises:
        UserError: two tables have other figures of the same run, so that a star would rest on figures that one of them
            does not show. Figures that only one of them has do not count: it was stored before they were kept.
    """
    together: Found = {}
    first: dict[tuple[str, int], str] = {}
    runs = ((name, row, *one) for name, rows in found.items() for row, seeds in rows.items() for one in seeds.items())
    for name, row, seed, run in runs:
        table = first.setdefault((row, seed), name)
        other = together.setdefault(row, {}).setdefault(seed, run)["figures"]
        if _common(other, run["figures"]) != _common(run["figures"], other):
            raise UserError(
                f"{table}/{FILE} and {name}/{FILE} have different figures of row {row}, seed {seed}; "
                "delete one of the two lines, and both tables have the other's"
            )
    return together


def compare_all(tables: dict[str, Table], found: dict[str, Found]) -> Verdicts:
    """For each comparison of all tables its `figures`, row -> seed -> figure, and whether they differ significantly,
    corrected in which family.

    It has the seeds of all tables that make it. Until both rows have them all, it has no p: what is not finished is but
    a look. It counts from the start, so that no star depends on what was run first. Tables of another figure are a
    family of their own.
    """
    seeds_of = merged(found)
    primary = {frozenset(pair) for table in tables.values() for pair in table.primary}
    figure_of = {frozenset(pair): table.figure for table in tables.values() for pair in table.pairs}
    families: dict[tuple[str, str], dict[Comparison, Rows | None]] = {}
    figures: dict[Comparison, dict[str, dict[int, float]]] = {}
    for comparison, figure in figure_of.items():
        having = [table for table in tables.values() if comparison in map(frozenset, table.pairs)]
        planned = {seed for table in having for seed in table.seeds}
        seeds = sorted(planned.intersection(*(seeds_of.get(row, {}) for row in comparison)))
        figures[comparison] = {
            row: {seed: seeds_of[row][seed]["figures"][figure] for seed in seeds} for row in sorted(comparison)
        }
        family = families.setdefault((figure, "primary" if comparison in primary else "secondary"), {})
        family[comparison] = _rows(figures[comparison], sorted(comparison)) if planned == set(seeds) else None
    return {
        one: {"figures": figures[one], **verdict, "family": name}
        for (_, name), family in families.items()
        for one, verdict in beyond_chance(family).items()
    }


def _rows(figures: dict[str, dict[int, float]], pair: Sequence[str]) -> Rows:
    one, other = (list(figures[row].values()) for row in pair)
    return one, other


def _comparisons(table: Table, found: Found, verdicts: Verdicts) -> list[dict[str, Any]]:
    """Those of which this table has both rows, over the seeds that they have in any."""
    comparisons = []
    for pair in table.pairs:
        verdict = dict(verdicts[frozenset(pair)])
        figures = verdict.pop("figures")
        rows, seeds = _rows(figures, pair), list(figures[pair[0]])
        if seeds and all(found[row] for row in pair):
            difference = paired_difference(rows) | verdict | _replication(seeds, rows)
            comparisons.append({"rows": list(pair), "seeds": seeds} | difference)
    return comparisons


def _replication(seeds: Sequence[int], rows: Rows) -> dict[str, Any]:
    """The difference over the first seeds, and over those that were run after they had been seen;
    nothing without the latter."""
    is_first = np.isin(seeds, FIRST_SEEDS)
    if is_first.all() or not is_first.any():
        return {}
    figures = np.asarray(rows)
    return {"first": paired_difference(figures[:, is_first]), "later": paired_difference(figures[:, ~is_first])}


def compare_with_stored(name: str, again: Path, stored: Path, figure: str = "win_rate", there: Collection = ()) -> str:
    """A line for each row and seed that was run again: beside the stored figure of the same seed,
    or the interval for a new one.

    Args:
        there: (table, row, seed) of runs that were finished before, perhaps by another tree.
    """
    table = read_json(stored / name / "table.json") or {"rows": []}
    rows = {row["row"]: row for row in table["rows"]}
    lines, stored_runs = [], read_runs(stored / name)
    for (row, seed), run in read_runs(again / name).items():
        earlier = stored_runs.get((row, seed))
        line = f"{name}, {row}, seed {seed}: {heading(figure)} {run['figures'][figure]:.4f}"
        if earlier and earlier["settings"] != run["settings"]:
            line += f", not compared: what is stored {_other_settings(earlier['settings'], run['settings'])}"
        elif earlier:
            is_same = _common(earlier["figures"], run["figures"]) == _common(run["figures"], earlier["figures"])
            line += f", stored {earlier['figures'][figure]:.4f}: "
            line += "all figures are the same" if is_same else f"different{_other_cpu(earlier, run)}"
            if (name, row, seed) in there:
                made = run.get("provenance", {}).get("commit")
                line += f"; but it was there already, run at {made}: to run it again, "
                line += f"delete its line in {again / name / FILE} and {again / row}"
        elif (bounds := rows.get(row, {}).get("prediction")) and bounds[0] is not None:
            where = "inside" if bounds[0] <= run["figures"][figure] <= bounds[1] else "outside"
            line += f", 95 % prediction interval {bounds[0]:.1f} to {bounds[1]:.1f}: {where}"
        else:
            line += ", nothing stored to compare with"
        lines.append(line)
    return "\n".join(lines)


def _common(figures: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The figures that `other` has too."""
    return {name: value for name, value in figures.items() if name in other}


def _other_cpu(earlier: dict[str, Any], run: dict[str, Any]) -> str:
    """Where two runs of a seed had different CPUs, that it may be these; a CPU that was not noted is no reason."""
    before, now = (one.get("provenance", {}).get("cpu") for one in (earlier, run))
    other = f", but stored from another CPU ({before}; this is {now}), which rounds otherwise"
    return other if before and before != now else ""
