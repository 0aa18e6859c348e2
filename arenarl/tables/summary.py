"""Figures of a table's runs for results/<table>/table.json, and the comparison of a repeated run with a stored one.

A row's figures are means over its table's seeds with 95 % t intervals. Differences are paired over the seeds that both
rows have in a table that compares them. Holm's method corrects for the number of comparisons, run or not, in two
families over all tables of the same figure: primary comparisons, which test the papers' claims, and secondary
comparisons. So a comparison that several tables make has one difference and one verdict. `mean` is the table's figure
for sampled trajectories.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from arenarl.config.command_line import as_overrides
from arenarl.config.load import load_config
from arenarl.domains.domain import make_domain
from arenarl.evaluation.over_seeds import (
    FIRST_SEEDS,
    beyond_chance,
    mean_over_seeds,
    onset_of_gaming,
    paired_difference,
)
from arenarl.report.summary import heading
from arenarl.report.watching import last_quarter
from arenarl.studies.signal_figures import step_figures
from arenarl.system.atomic_files import as_stored, read_json
from arenarl.system.errors import UserError
from arenarl.system.progress import say
from arenarl.tables.rows import Row, Table, runs_of
from arenarl.tables.store import FILE, cpu_of, read_runs, row_of_other_policy, sft_hash_of

Seeds = dict[int, dict[str, Any]]  # seed -> results of its run
Found = dict[str, Seeds]  # by row
Comparison = frozenset[str]  # the names of two rows
Verdicts = dict[Comparison, dict[str, Any]]  # as `compare_all` returns them


def read_found(name: str, table: Table, results: Path, folder: str = "tables", quick: bool = False) -> Found:
    """Return the table's finished runs by row and seed.

    Two kinds of runs are left out, with a line in the log: runs of seeds that the table does not list, and runs whose
    settings differ from their row's current settings. Seeds that are added after a look at the results would at some
    point make a random difference significant. Raises UserError if rows of a seed started from different SFT policies.
    """
    runs = runs_of(name, table, [], table.seeds, folder, quick)
    settings = {(run.row, run.seed): as_stored(run.settings) for run in runs}
    found: Found = {row: {} for row in table.rows}
    for (row, seed), run in read_runs(results / name).items():
        if row not in table.rows:
            continue
        if reason := _reason_to_skip(run, table, settings.get((row, seed), {})):
            say(f"{name}, {row}, seed {seed} is left out: {reason}")
        else:
            found[row][seed] = run if _has_subtasks_of(table.figure, run) else run | {"by_subtask": {}}
    _check_sft_policies(found, results / name / FILE)
    return found


def _check_sft_policies(found: Found, path: Path) -> None:
    """Raise UserError if rows of one seed are known to have started from different SFT policies."""
    runs = {(row, seed): run for row, seeds in found.items() for seed, run in seeds.items()}
    for (row, seed), run in runs.items():
        if other := row_of_other_policy(runs, seed, sft_hash_of(run)):
            raise UserError(
                f"{path}: rows {row} and {other} of seed {seed} started from different SFT policies, so they cannot be "
                "compared; delete the seed's lines and run its rows again"
            )


def _reason_to_skip(run: dict[str, Any], table: Table, settings: dict[str, Any]) -> str | None:
    if run["seed"] not in table.seeds:
        return "the table does not have this seed"
    if run["settings"] != settings:
        return f"it {_other_settings(run['settings'], settings)}"
    return None if table.figure in run["figures"] else f"it has no figure {table.figure}"


def _has_subtasks_of(figure: str, run: dict[str, Any]) -> bool:
    """Return True if `figure` is the mean of `by_subtask`; a run copied from another table may have another's."""
    values = [value for value in run["by_subtask"].values() if value is not None]
    return bool(values) and math.isclose(fmean(values), run["figures"][figure], abs_tol=1e-3)  # both are rounded


def _other_settings(stored: dict[str, Any], now: dict[str, Any]) -> str:
    """Name the first key in which a stored run and its row differ."""
    values = {key: [settings.get(key, "its default") for settings in (stored, now)] for key in sorted(stored | now)}
    key, (before, after) = next((key, pair) for key, pair in values.items() if pair[0] != pair[1])
    return f"was run with {key} at {before}, the row has {after}"


def summary_of_table(name: str, table: Table, found: Found, verdicts: Verdicts) -> dict[str, Any]:
    """Return the content of table.json. `verdicts` come from `compare_all`."""
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
    """Return the subtasks in the domain's order; if the domain has no fixed subtasks, in the order of the runs."""
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
        "judge_tokens": _mean_tokens([run.get("judge_tokens") for run in runs]),  # older runs lack them
        # the median, because a busy machine slows single seeds
        "seconds": round(median(run["seconds"]["total"] for run in runs), 1) if runs else None,
        "paper": dict(zip(table.paper_columns, row.paper, strict=True)) if row.paper else None,
        "figures": _means_of_all([run["figures"] for run in runs]),
        "by_subtask": _means_of_all([{name: run["by_subtask"].get(name) for name in subtasks} for run in runs]),
        "by_dimension": _means_of_all(dimensions),  # win rates over valid trajectories
        "by_judge": _means_of_all([run.get("by_judge", {}) for run in runs]),
        "curve": _curve_points(runs, table),
        "discrimination": _mean_signals([run["discrimination"] for run in runs if table.measure == "discrimination"]),
        **(_gaming([run["onset"] for run in runs]) if table.measure == "onset" else {}),
    }


def _mean_tokens(tokens: Sequence[int | None]) -> int | None:
    known = [count for count in tokens if count is not None]
    return round(fmean(known)) if known and len(known) == len(tokens) else None


def _gaming(runs: Sequence[dict[str, list[float]]]) -> dict[str, Any]:
    """Return `training_score` and `onset`, from the steps that all runs watched; both are None without such steps.

    The score is the training judge's mean over the last quarter of these steps. The onset and its interval are
    optimizer steps. With fewer than three seeds, whose bootstrap samples hardly differ, the onset is None. A bound of
    the interval is None if the sample there has no onset.
    """
    steps = sorted(set.intersection(*(set(run["step"]) for run in runs))) if runs else []
    if not steps:
        return {"training_score": None, "onset": None}
    training, watching = (
        [[dict(zip(run["step"], run[judge], strict=True))[step] for step in steps] for run in runs]
        for judge in ("training", "watching")
    )
    score = mean_over_seeds([fmean(last_quarter(scores)) for scores in training])
    if len(runs) < 3:
        return {"training_score": score, "onset": None}
    onset = onset_of_gaming(training, watching)
    if onset["step"] is not None:
        onset["step"] = steps[onset["step"]]
    last = len(steps) - 1
    onset["ci"] = [None if place > last else float(np.interp(place, range(last + 1), steps)) for place in onset["ci"]]
    return {"training_score": score, "onset": onset}


def _means_of_all(figures: Sequence[dict[str, float | None]]) -> dict[str, Any]:
    """Return means over seeds of the figures that every seed has; older runs may lack some."""
    means = {name: _mean_if_all([of_seed.get(name) for of_seed in figures]) for name in (figures or [{}])[0]}
    return {name: mean for name, mean in means.items() if mean}


def _mean_if_all(values: Sequence[float | None]) -> dict[str, Any] | None:
    return None if None in values else mean_over_seeds(values)


def _curve_points(runs: Sequence[dict[str, Any]], table: Table) -> dict[int, dict[str, Any]]:
    """Return step -> the figure in the curve, mean over seeds, for each of `curve_steps` at which a run has it."""
    points, figure = [point for run in runs for point in run["curve"]], f"eval/sampled/{table.figure}"
    points = [point for point in points if point.get(figure) is not None]
    values = {step: [point[figure] for point in points if point["step"] == step] for step in table.curve_steps}
    return {step: mean_over_seeds(of_step) for step, of_step in values.items() if of_step}


def _mean_signals(rows_by_seed: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the means of `step_figures` over seeds, for each step that all seeds have."""
    if not rows_by_seed:
        return []
    steps = sorted(set.intersection(*({row["step"] for row in rows} for rows in rows_by_seed)))
    at = {step: [step_figures(row) for rows in rows_by_seed for row in rows if row["step"] == step] for step in steps}
    return [
        {"step": step, "told": {name: _mean_if_all([row[name] for row in rows]) for name in rows[0]}}
        for step, rows in at.items()
    ]


def check_equal_runs(found: dict[str, Found]) -> None:
    """Raise UserError if tables have different figures of the same run, unless it was run on two kinds of CPU.
    Figures that only one table has do not count, because older runs lack some."""
    first: dict[tuple[str, int, str | None], tuple[str, dict[str, Any]]] = {}
    runs = ((name, row, *run) for name, rows in found.items() for row, seeds in rows.items() for run in seeds.items())
    for name, row, seed, run in runs:
        table, other = first.setdefault((row, seed, cpu_of(run)), (name, run))
        if not _agree(other, run):
            raise UserError(
                f"{table}/{FILE} and {name}/{FILE} have different figures of row {row}, seed {seed}; "
                "delete one of the two lines, and both tables use the other"
            )


def paired_figures(pair: Comparison, tables: dict[str, Table], found: dict[str, Found]) -> dict[str, dict[int, float]]:
    """Return row -> seed -> figure of the two rows, over all tables that compare them.

    A seed counts where one table has both rows, since only there they start from the same SFT policy. If tables have
    the seed from different kinds of CPU, which round differently, its figures are means over these CPUs.
    """
    pairs: dict[int, dict[tuple[float, ...], None]] = {}  # by seed, without repeats
    for name in _comparing(pair, tables):
        runs = [found[name][row] for row in sorted(pair)]
        for seed in set.intersection(*map(set, runs)):
            figures = tuple(of_row[seed]["figures"][tables[name].figure] for of_row in runs)
            pairs.setdefault(seed, {})[figures] = None
    means = {seed: list(map(fmean, zip(*pairs[seed], strict=True))) for seed in sorted(pairs)}
    return {row: {seed: mean[place] for seed, mean in means.items()} for place, row in enumerate(sorted(pair))}


def _comparing(pair: Comparison, tables: dict[str, Table]) -> list[str]:
    return [name for name, table in tables.items() if pair in map(frozenset, table.pairs)]


def compare_all(tables: dict[str, Table], found: dict[str, Found]) -> Verdicts:
    """Return each comparison's `figures` (row -> seed -> figure), `family`, and whether its rows differ significantly.

    A comparison has the seeds of all tables that make it. It has no p until both rows have all these seeds, but it
    counts in its family from the start. So no star depends on the order of the runs. Tables with different figures form
    separate families.
    """
    check_equal_runs(found)
    primary = {frozenset(pair) for table in tables.values() for pair in table.primary}
    figure_of = {frozenset(pair): table.figure for table in tables.values() for pair in table.pairs}
    families: dict[tuple[str, str], dict[Comparison, Any]] = {}
    figures: dict[Comparison, dict[str, dict[int, float]]] = {}
    for comparison, figure in figure_of.items():
        planned = {seed for name in _comparing(comparison, tables) for seed in tables[name].seeds}
        figures[comparison] = paired_figures(comparison, tables, found)
        family = families.setdefault((figure, "primary" if comparison in primary else "secondary"), {})
        rows = [list(of_row.values()) for of_row in figures[comparison].values()]
        family[comparison] = rows if planned == set(figures[comparison][min(comparison)]) else None
    return {
        comparison: {"figures": figures[comparison], **verdict, "family": name}
        for (_, name), family in families.items()
        for comparison, verdict in beyond_chance(family).items()
    }


def _comparisons(table: Table, found: Found, verdicts: Verdicts) -> list[dict[str, Any]]:
    """Return the comparisons for which this table has runs of both rows."""
    comparisons = []
    for pair in table.pairs:
        verdict = dict(verdicts[frozenset(pair)])
        figures = verdict.pop("figures")
        values, seeds = np.array([list(figures[row].values()) for row in pair]), list(figures[pair[0]])
        if seeds and all(found[row] for row in pair):
            comparison = {"rows": list(pair), "seeds": seeds} | paired_difference(values) | verdict
            is_first = np.isin(seeds, FIRST_SEEDS)
            if is_first.any() and not is_first.all():  # later seeds replicate the first ones
                parts = {"first": is_first, "later": ~is_first}
                comparison |= {name: paired_difference(values[:, part]) for name, part in parts.items()}
            comparisons.append(comparison)
    return comparisons


def compare_with_stored(
    name: str, again: Path, stored: Path, figure: str, there: Mapping[tuple[str, str, int], Path]
) -> str:
    """Return a line for each repeated run, which compares it with the same seed's stored run or else with the row's
    prediction interval. `there` has the folders of the (table, row, seed) that earlier, perhaps other, code finished.
    """
    table = read_json(stored / name / "table.json") or {"rows": []}
    rows = {row["row"]: row for row in table["rows"]}
    lines, stored_runs = [], read_runs(stored / name)
    for (row, seed), run in read_runs(again / name).items():
        earlier = stored_runs.get((row, seed))
        line = f"{name}, {row}, seed {seed}: {heading(figure)} {run['figures'][figure]:.4f}"
        if earlier and earlier["settings"] != run["settings"]:
            line += f", not compared: the stored run {_other_settings(earlier['settings'], run['settings'])}"
        elif earlier:
            line += f", stored {earlier['figures'][figure]:.4f}: "
            line += "all figures are equal" if _agree(earlier, run) else f"different{_other_cpu(earlier, run)}"
            if folder := there.get((name, row, seed)):
                commit = run.get("provenance", {}).get("commit")
                line += f"; not run now, but earlier at commit {commit}: to run it again, "
                line += f"delete its line in {again / name / FILE} and {folder}"
        elif (bounds := rows.get(row, {}).get("prediction")) and bounds[0] is not None:
            where = "inside" if bounds[0] <= run["figures"][figure] <= bounds[1] else "outside"
            line += f", 95 % prediction interval {bounds[0]:.1f} to {bounds[1]:.1f}: {where}"
        else:
            line += ", nothing stored to compare with"
        lines.append(line)
    return "\n".join(lines)


def _agree(run: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return True if two runs are equal in all figures that both have."""
    a, b = run["figures"], other["figures"]
    return all(a[name] == b[name] for name in a.keys() & b.keys())


def _other_cpu(earlier: dict[str, Any], run: dict[str, Any]) -> str:
    """Return a hint if two runs of a seed are known to have used different CPUs."""
    before, now = cpu_of(earlier), cpu_of(run)
    hint = f", perhaps because the stored run had another CPU ({before}; this is {now}), which rounds differently"
    return hint if before and before != now else ""
