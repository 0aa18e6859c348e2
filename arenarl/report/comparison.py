"""Comparison of evaluated runs: the differences of all figures from the first run, and the learning curves.

    python -m arenarl.report --compare quickstart round-robin

Runs of one name and the same settings with several seeds form one column. With one run per column, the interval of a
difference is over test queries, which are resampled in both runs at once (`evaluation.statistics`). With several seeds,
differences are paired by seed, and the interval is Student's t over seeds (`evaluation.over_seeds`). Runs whose test
queries, baselines or judges differ are refused.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl

from arenarl.config.load import load_config
from arenarl.config.schema import Config
from arenarl.evaluation.evaluation import Case, StoredCase, figures_of
from arenarl.evaluation.over_seeds import paired_difference
from arenarl.evaluation.parts import part_path, read_cases
from arenarl.report.conclusion import folders_of
from arenarl.report.figures import STYLE, Curve, draw_curves, read_curves, save_figure
from arenarl.report.page import cell_of, embedded_figure, html_table, read_evaluated, render
from arenarl.report.page.data import read_evaluated_lines
from arenarl.report.summary import DIGITS, format_figure, heading, judge_label, listed, policies_of, print_rows
from arenarl.run.settings import CALL_KEYS, differences, settings_of, without
from arenarl.system.atomic_files import write_text
from arenarl.system.errors import UserError


@dataclass(frozen=True)
class EvaluatedRun:
    """A run with its evaluation."""

    folder: Path
    results: Path
    config: Config  # of evaluation
    summary: dict[str, Any]

    @classmethod
    def read(cls, name: str) -> "EvaluatedRun":
        """Read a run, given by name or folder. Raises UserError if it has not been evaluated."""
        folder, results = folders_of(name)
        summary = read_evaluated(folder, results)
        return cls(folder, results, load_config(folder / "evaluate" / "config.yaml"), summary)

    @cached_property
    def trained(self) -> Config:
        """The config of RL; without RL in this run, the config of evaluation."""
        path = self.folder / "rl" / "config.yaml"
        return load_config(path) if path.is_file() else self.config

    @cached_property
    def cases(self) -> dict[str, list[StoredCase]]:
        """The cases of each policy, by query and sample."""
        return {policy: self._read_cases(*policy.rsplit(" ", 1)) for policy in policies_of(self.summary)}

    def _read_cases(self, name: str, decoding: str) -> list[StoredCase]:
        samples = [number for stored, number in self.config.evaluate.attempts if stored == decoding]
        paths = [part_path(self.folder / "evaluate", name, decoding, sample) for sample in samples]
        return [case for path in paths for case in read_cases(path)]

    @cached_property
    def queries(self) -> dict[str, tuple[str, str]]:
        """Subtask and text of each test query, by id."""
        cases = next(iter(self.cases.values()))
        return {case.query.query_id: (case.query.subtask, case.query.query) for case in cases}

    @cached_property
    def baselines(self) -> dict[str, list[dict[str, Any]]]:
        """The messages of each query's baseline."""
        records = read_evaluated_lines(self.folder / "evaluate" / "baseline.jsonl", {"query_id", "messages"})
        return {record["query_id"]: record["messages"] for record in records}

    @property
    def judges(self) -> dict[str, Any]:
        """All settings of evaluation's judges, and the hashes of their prompts."""
        judge = without(CALL_KEYS, asdict(self.config.judge))
        judges = [of if isinstance(of, str) else of["prompt"] for of in self.summary["provenance"]["judge_eval"]]
        return {"judge": {key: judge[key] for key in ("eval", "verifier")}, "prompts": judges}


Column = list[EvaluatedRun]  # one or more seeds of a run
Curves = dict[str, tuple[list[Curve], str]]  # a column's label → the curves of its seeds, and their decoding


@dataclass(frozen=True)
class Comparison:
    """Tables by title, each a head and rows; learning curves; and what the intervals cover."""

    columns: list[Column]
    tables: dict[str, list[list[str]]]
    curves: Curves
    notes: list[str]


def compare_runs(names: Sequence[str]) -> Path:
    """Print the comparison, and write comparison.html beside the first run's summary; return its path.
    Raises UserError for runs that cannot be compared."""
    comparison = compare(names)
    for title, rows in comparison.tables.items():
        print(f"\n{title}")
        print_rows(rows)
    print("", *comparison.notes, sep="\n")
    return _write_page(comparison)


def compare(names: Sequence[str]) -> Comparison:
    """Compare runs, given by name or folder, with the first one. Raises UserError as `compare_runs` does."""
    runs = list(map(EvaluatedRun.read, names))
    for number, run in enumerate(runs):
        if run.folder in [earlier.folder for earlier in runs[:number]]:
            raise UserError(f"{run.folder} is named twice; name each run once")
        _refuse_unlike(runs[0], run)
    columns = _columns(runs)
    for column in columns[1:]:
        _refuse_unpaired(columns[0], column)
    others = set().union(*(column[0].cases for column in columns[1:]))
    policies = [policy for policy in columns[0][0].cases if policy in others]
    shared = [policy for policy in policies if _is_shared(columns, policy)]
    tables = {policy: _rows(columns, policy) for policy in policies if policy not in shared}
    curves = _curves(columns)
    tables |= dict([_curve_rows(curves)] if curves else [])
    return Comparison(columns, tables, curves, _notes(columns, shared, curves))


def _refuse_unlike(first: EvaluatedRun, run: EvaluatedRun) -> None:
    """Raise UserError if the figures of two runs do not measure the same."""
    both = f"{run.folder} and {first.folder} cannot be compared"
    if run.queries != first.queries:
        ids = [key for key in run.queries | first.queries if run.queries.get(key) != first.queries.get(key)]
        what = f"their test queries differ ({len(ids)} of them, first {ids[0]})"
        raise UserError(f"{both}: {what}; evaluate both with the same data.folder")
    if changes := differences(first.judges, run.judges):
        raise UserError(f"{both}: their judges differ ({changes}); evaluate both with the same judge.eval")
    if run.baselines != first.baselines:
        what = "their win rates are against other baselines"
        raise UserError(f"{both}: {what}; evaluate both with the same test_baselines.jsonl in data.folder")
    if not run.cases.keys() & first.cases.keys():
        what = f"{listed(run.cases)} against {listed(first.cases)}"
        raise UserError(f"{both}: no policy has the same name ({what}); name them alike in evaluate.checkpoints")


def _columns(runs: Sequence[EvaluatedRun]) -> list[Column]:
    """Group the runs that differ only in their seed. If all runs differ only in their seed, each run is a column."""
    columns: list[Column] = []
    for run in runs:
        column = next((column for column in columns if _settings(column[0]) == _settings(run)), None)
        if column is None:
            columns.append(column := [])
        column.append(run)
    return columns if len(columns) > 1 else [[run] for run in runs]


def _settings(run: EvaluatedRun) -> Any:
    """Return the name and the settings of RL, without the seed."""
    return run.config.name, settings_of("rl", replace(run.trained, seed=0))


def _seed(run: EvaluatedRun) -> int:
    return run.config.seed


def _seeds(column: Column) -> list[int]:
    return sorted(map(_seed, column))


def _label(column: Column) -> str:
    (run, *more) = column
    # a single run has its folder as label, because a copy in another folder has the same name in its config
    return f"{run.config.name} ({len(column)} seeds)" if more else str(run.folder.relative_to("runs"))


def _refuse_unpaired(first: Column, column: Column) -> None:
    if max(len(first), len(column)) > 1 and _seeds(first) != _seeds(column):
        seeds = " and ".join(f"{_label(each)} has {listed(map(str, _seeds(each)))}" for each in (column, first))
        raise UserError(f"several seeds are compared seed by seed, but {seeds}; name runs of the same seeds")


def _is_shared(columns: Sequence[Column], policy: str) -> bool:
    """Return True if all columns have the same trajectories of a policy, such as the SFT policy that all start from."""
    texts = [
        [[case.trajectory.messages for case in run.cases.get(policy, ())] for run in sorted(column, key=_seed)]
        for column in columns
    ]
    return all(each == texts[0] for each in texts[1:])


def _rows(columns: Sequence[Column], policy: str) -> list[list[str]]:
    """Return a head, and a row for each figure of a policy: its values, then its differences from the first column."""
    labels = list(map(_label, columns))
    values = [[policies_of(run.summary).get(policy, {}) for run in column] for column in columns]
    by_column = [_differences(columns[0], column, policy) for column in columns[1:]]
    figures = [name for name, value in values[0][0].items() if isinstance(value, dict) and "mean" in value]
    rows = [["", *labels, *(f"{label} minus {labels[0]}" for label in labels[1:])]]
    for name in figures:
        digits = DIGITS.get(name, 1)
        means = [_mean([(of_run.get(name) or {}).get("mean") for of_run in column]) for column in values]
        if means[0] is not None:
            signed = [format_figure(of_column.get(name), digits, sign="+") for of_column in by_column]
            rows.append([heading(name), *(_plain(mean, digits) for mean in means), *signed])
    return rows


def _mean(values: Sequence[float | None]) -> float | None:
    return None if None in values else fmean(values)


def _plain(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _differences(first: Column, column: Column, policy: str) -> dict[str, Any]:
    """Return the difference of every figure, with its interval; empty if the column lacks the policy."""
    if any(policy not in run.cases for run in column):
        return {}
    if len(column) > 1:
        return _over_seeds(first, column, policy)
    (run,), (reference,) = column, first
    cases: list[Case] = [replace(case, is_own=True) for case in run.cases[policy]]  # no interval of width 0
    cases += [replace(case, is_subtracted=True) for case in reference.cases[policy]]
    return figures_of(cases, reference.config.evaluate.bootstrap, reference.config.seed)


def _over_seeds(first: Column, column: Column, policy: str) -> dict[str, Any]:
    pairs = [sorted(each, key=_seed) for each in (column, first)]
    summaries = [[policies_of(run.summary)[policy] for run in runs] for runs in pairs]
    by_figure = {}
    for name in summaries[0][0]:
        figures = [[summary.get(name) for summary in of_column] for of_column in summaries]
        if all(isinstance(figure, dict) and figure.get("mean") is not None for each in figures for figure in each):
            difference = paired_difference([[figure["mean"] for figure in each] for each in figures])
            by_figure[name] = {"mean": difference["difference"], "ci": difference["ci"]}
    return by_figure


def _curves(columns: Sequence[Column]) -> Curves:
    """Return the curves that were drawn from the same queries by the same judges; empty for fewer than two columns."""
    first, curves = columns[0][0].trained, {}
    for column in columns:
        of_seeds = read_curves([run.folder for run in column])
        is_alike = all(_curve_settings(run.trained) == _curve_settings(first) for run in column)
        if is_alike and len(of_seeds) == len(column):
            curves[_label(column)] = of_seeds, first.evaluate.decodings[0]
    return curves if len(curves) > 1 else {}


def _curve_settings(trained: Config) -> list[Any]:
    judges = without(CALL_KEYS, asdict(trained)["judge"]["eval"])
    return [trained.rl.eval_queries, trained.evaluate.decodings, judges]


def _curve_rows(curves: Curves) -> tuple[str, list[list[str]]]:
    """Return a title, and the first figure of the curves by step: a head and rows, as means over seeds."""
    of_seeds, decoding = next(iter(curves.values()))
    values = {key: value for key, value in of_seeds[0][0].items() if key.startswith(f"eval/{decoding}/")}
    key = next(key for key, value in values.items() if value is not None)
    columns = [
        {points[0]["step"]: _mean([point.get(key) for point in points]) for points in zip(*of_seeds, strict=True)}
        for of_seeds, _ in curves.values()
    ]
    rows = [[str(step), *(_plain(column.get(step)) for column in columns)] for step in sorted(set().union(*columns))]
    return f"{heading(key.rpartition('/')[2])}, {decoding}, by optimizer step of RL", [["", *curves], *rows]


def _notes(columns: Sequence[Column], shared: Sequence[str], curves: Curves) -> list[str]:
    """Return what the intervals cover, and what is left out."""
    first, queries = columns[0], len(columns[0][0].queries)
    seeds = [_seeds(column) for column in columns]
    if len(first) > 1:
        of_seeds = f"Student's t over the differences of the seeds {listed(map(str, seeds[0]))}, {queries} queries"
        notes = [f"Intervals: 95 % over training seeds ({of_seeds}); they say nothing about other test queries."]
    else:
        bootstrap = f"paired bootstrap of {queries}"
        notes = [f"Intervals: 95 % over test queries ({bootstrap}); they say nothing about other seeds."]
        if all(_settings(column[0]) == _settings(first[0]) for column in columns):
            notes.append("These runs differ only in their seed: their differences show how much a seed changes.")
        elif any(other != seeds[0] for other in seeds):
            notes.append("The runs have different seeds, so a difference also contains what another seed changes.")
    if shared:
        notes.append(f"Left out, because all runs have the same trajectories: {listed(shared)}.")
    if left_out := [_label(column) for column in columns if _label(column) not in curves]:
        notes.append(f"Without a curve of the same queries, judges and steps: {listed(left_out)}.")
    return notes


def _write_page(comparison: Comparison) -> Path:
    first, labels, curves = comparison.columns[0][0], list(map(_label, comparison.columns)), comparison.curves
    judge = judge_label(first.summary["judge"] == "simulated")
    parts = ["<h2>Differences</h2>", *(f'<p class="caption">{escape(note)}</p>' for note in comparison.notes)]
    for title, (head, *rows) in comparison.tables.items():
        parts.append(html_table(title, head, [[name, *map(cell_of, cells)] for name, *cells in rows]))
    if curves:
        bands = "Bands: 95 % over test queries for one seed, from the lowest to the highest of several."
        with mpl.rc_context(STYLE):
            path = save_figure(draw_curves(curves, judge), first.results / "figures" / "comparison")
        caption = f"Learning curves on held-out queries; win rate by the {judge}. {bands}"
        parts += ["<h2>Learning curves</h2>", embedded_figure(caption, path)]
    path, facts = first.results / "comparison.html", f'<span class="label">{judge}</span>'
    write_text(path, render(f"{listed(labels[1:])} against {labels[0]}", facts, "\n".join(parts), []))
    return path
