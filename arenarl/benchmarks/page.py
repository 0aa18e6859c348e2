"""Write runs/<run>/benchmarks/README.md: the papers' tables with this run's policies, then every figure.

A column whose benchmark has no aggregate says 'not run'. The papers' figures come from other judges and often other
items: they are for orientation.
"""

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
    rows: dict[str, tuple[float | None, ...]]  # as printed in the paper
    has_mean: bool = False  # add a last column with the mean of the other columns


TABLES = {
    "table4": PaperTable(
        "Table 4, ArenaRL: open-ended writing",
        {
            **{f"WB-{letter}": ("writingbench", f"WB-{letter}") for letter in "ABCDEF"},
            **{f"HelloBench {part}": ("hellobench", part) for part in ("QA", "Summ.", "Heur.")},
            "LongBench Quality": ("longbench_write", "S_q"),
        },
        {
            "GPT-4o": (67.90, 66.34, 68.56, 69.95, 70.70, 72.17, 81.03, 84.26, 89.14, 90.43, 76.05),
            "Claude-3.7-Sonnet": (68.36, 66.53, 68.70, 70.34, 71.42, 71.47, 80.81, 74.68, 95.82, 98.34, 76.65),
            "SFT": (70.71, 69.36, 67.88, 63.72, 69.69, 70.64, 78.44, 63.42, 82.35, 85.52, 72.17),
            "GRPO": (71.62, 71.18, 68.67, 66.84, 72.56, 70.33, 79.09, 64.94, 83.76, 86.96, 73.60),
            "GSPO": (71.56, 70.70, 68.87, 66.08, 72.29, 69.83, 80.06, 63.97, 81.75, 85.21, 73.03),
            "ArenaRL": (78.14, 77.70, 77.58, 75.02, 79.35, 77.16, 79.11, 73.82, 91.33, 93.78, 80.30),
        },
        has_mean=True,
    ),
    "race": PaperTable(
        "Tables 1 and 2, Tournament-GRPO: DeepResearch Bench, RACE",
        {
            "Readability": ("race", "readability"), "Instruct.": ("race", "instruction_following"),
            "Compre.": ("race", "comprehensiveness"), "Insight": ("race", "insight"), "Overall": ("race", "score"),
        },
        {
            "Zero-shot": (35.40, 34.21, 31.42, 29.76, 32.13),
            "Pairwise, second epoch": (51.15, 51.34, 50.38, 50.05, 50.57),
            "Tournament-GRPO, G = 2, M = 3, first epoch": (52.09, 52.71, 52.32, 52.04, 52.28),
            "Tournament-GRPO, G = 4, M = 8, second epoch": (53.81, 55.22, 55.19, 55.40, 55.09),
        },
    ),
    "deep_research": PaperTable(
        "Table 1, InfoAgent: deep research",
        {
            "BrowseComp": ("browsecomp", "score"), "BrowseComp-ZH": ("browsecomp_zh", "score"),
            "Xbench-DS": ("xbench", "score"), "SimpleQA": ("simpleqa", "score"),
            "WebWalkerQA": ("webwalkerqa", "score"),
        },
        {
            "GPT-4o": (1.9, 12.8, 30.0, 38.2, 33.8),
            "Qwen3-14B": (1.0, 10.4, 20.0, 68.6, 22.9),
            "InfoAgent-SFT": (4.7, 17.0, 28.0, 80.3, 41.5),
            "InfoAgent": (15.3, 29.2, 40.4, 90.4, 52.7),
        },
    ),
}  # fmt: skip


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
