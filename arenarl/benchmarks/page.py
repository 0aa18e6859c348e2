"""Write runs/<run>/benchmarks/README.md: the papers' tables with this run's policies, then every figure.

A column whose benchmark has no aggregate says 'not run'. The papers' figures come from other judges and often other
items: they are for orientation.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from arenarl.report import markdown
from arenarl.report.summary import format_figure
from arenarl.system.atomic_files import read_json, write_text

NOT_RUN, NOT_OFFICIAL = "not run", "not the official score"
COUNTS = ("items", "failed", "void", "empty", "cut")
Aggregates = dict[str, dict[str, Any]]  # by benchmark


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper."""

    title: str
    columns: dict[str, tuple[str, str]]  # name -> (benchmark, figure)
    rows: dict[str, list[float | None]]  # as printed in the paper
    has_mean: bool  # add a last column with the mean of the other columns


_PRINTED = json.loads(Path(__file__).with_name("paper_tables.json").read_text(encoding="utf-8"))
TABLES = {name: PaperTable(**table) for name, table in _PRINTED.items()}


def write_page(results: Path) -> None:
    """Write the page for the aggregates in the folder `results`."""
    aggregates = _aggregates(results)
    parts = [
        "# Public benchmarks",
        "Made by `evaluate.py --benchmark`; do not edit. Figures have 95 % intervals over items. "
        "Rows of a paper are as printed there, by that paper's judge.",
    ]
    for table in TABLES.values():
        parts += [f"## {table.title}", _table(table, _rows(table, aggregates))]
    for aggregate in aggregates.values():
        policies = aggregate["policies"]
        names = list(dict.fromkeys(name for entry in policies.values() for name in entry["figures"]))
        rows, notes = [], []
        for policy, entry in policies.items():
            figures = [format_figure(entry["figures"].get(name)) for name in names]
            rows.append([policy, *figures, *(f"{entry[count]:,}" for count in COUNTS)])
            prompt, labels = entry["prompt"], [f"**{label}**" for label in entry["labels"]]
            source = f"- {policy}: judge {entry['judge']['model']}, prompt {prompt['hash']} ({prompt['source']})"
            notes.append("; ".join([source, *labels]))
        parts += [f"## {aggregate['title']}", markdown.table(["", *names, *COUNTS], rows), "\n".join(notes)]
    write_text(results / "README.md", "\n\n".join(parts) + "\n")


def over_runs(name: str, results: Path) -> str:
    """Return a paper's table with the policies of all runs in `results` that have one of its figures;
    without such a policy, a row says 'not run'."""
    table = TABLES[name]
    runs = {folder.parent.name: _aggregates(folder) for folder in sorted(results.glob("*/benchmarks"))}
    rows = [row for run, aggregates in runs.items() for row in _rows(table, aggregates, f"{run}: ")]
    rows = [row for row in rows if any(cell != NOT_RUN for cell in row[1:])]
    return _table(table, rows or _rows(table, {}))


def _aggregates(folder: Path) -> Aggregates:
    records = {path.stem: read_json(path) for path in sorted(folder.glob("*.json"))}  # with the stage's own records
    return {name: record for name, record in records.items() if "policies" in record}


def describe(entry: dict[str, Any]) -> str:
    """Return a policy's score for the terminal."""
    labels = f"; {'; '.join(entry['labels'])}" if entry["labels"] else ""
    return (
        f"{format_figure(entry['figures']['score'])}, {entry['items']:,} items, {entry['failed']:,} failed; "
        f"judge {entry['judge']['model']}, prompt {entry['prompt']['hash']}{labels}"
    )


def _table(table: PaperTable, rows: list[list[str]]) -> str:
    printed = [[f"paper: {name}", *map(_number, figures)] for name, figures in table.rows.items()]
    return markdown.table(["", *table.columns, *(["Mean"] if table.has_mean else [])], [*printed, *rows])


def _rows(table: PaperTable, aggregates: Aggregates, prefix: str = "") -> list[list[str]]:
    policies = list(dict.fromkeys(policy for aggregate in aggregates.values() for policy in aggregate["policies"]))
    return [_row(table, aggregates, prefix, policy) for policy in policies or ["a policy of yours"]]


def _row(table: PaperTable, aggregates: Aggregates, prefix: str, policy: str) -> list[str]:
    entries = {name: aggregates.get(name, {}).get("policies", {}).get(policy) for name, _ in table.columns.values()}
    figures = [entries[name] and entries[name]["figures"].get(figure) for name, figure in table.columns.values()]
    means = [figure["mean"] for figure in figures if figure and figure["mean"] is not None]
    mean = NOT_RUN if None in figures else _number(fmean(means) if len(means) == len(figures) else None)
    has_labels = any(entry["labels"] for entry in entries.values() if entry)
    cells = [format_figure(figure) if figure else NOT_RUN for figure in figures] + [mean] * table.has_mean
    return [f"{prefix}{policy}{f', {NOT_OFFICIAL}' if has_labels else ''}", *cells]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
