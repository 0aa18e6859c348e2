"""A table's runs for readers: its page, results/<table>/README.md, with its figures,
and its short tables in README and docs.

All figures are those of `summary`, which this module writes too, as table.json;
a real model's are those of its runs' own summaries.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from arenarl.report import markdown
from arenarl.report.summary import format_figure, heading, read_summaries
from arenarl.system.atomic_files import read_json, write_json, write_text
from arenarl.tables.figures import draw
from arenarl.tables.over_seeds import FIRST_SEEDS
from arenarl.tables.rows import Row, Table
from arenarl.tables.summary import Found, compare_all, read_found, summary_of_table

EXTRAS = ("greedy_", "pass_at_")  # figures that the short table has where they were measured

Column = tuple[str, Callable[[dict[str, Any]], str]]  # heading, and the cell of a row of table.json


def write_tables(
    names: Sequence[str], tables: dict[str, Table], results: Path, folder: str = "tables", quick: bool = False
) -> str:
    """Make table.json, figures and a page of what is finished of `names`, and of the others of `tables` where that
    changes their comparisons.

    Returns the short tables of `names`.
    """
    if quick:
        tables = {name: replace(table, seeds=table.quick.seeds) for name, table in tables.items()}
    found = {name: read_found(name, table, results, folder, quick) for name, table in tables.items()}
    verdicts, together = compare_all(tables, found), "all tables" if len(tables) > 1 else "this table"
    summaries = {name: summary_of_table(name, table, found[name], verdicts) for name, table in tables.items()}
    for name, summary in summaries.items():
        stored = read_json(results / name / "table.json")
        if name in names or stored and stored["comparisons"] != summary["comparisons"]:
            _write_table(name, tables[name], summary, found[name], results, together)
    return "\n\n".join(short_table(tables[name], summaries[name], results) for name in names)


def _write_table(name: str, table: Table, summary: dict[str, Any], found: Found, results: Path, together: str) -> None:
    write_json(results / name / "table.json", summary)
    figures = draw(summary, table, found, results / name) if summary["seeds"] else []
    write_text(results / name / "README.md", page(name, table, summary, results, figures, together))


def method_table(table: Table, summary: dict[str, Any], results: Path, names: Sequence[str] = ()) -> str:
    """A line a row (of `names`, if there are any) that has all of the table's seeds: its figure, difference from the
    reference, noise-free quality, judge calls.
    """
    rows = [row for row in _run_rows(table, summary) if set(table.seeds) <= set(row["seeds"])]
    columns = [
        ("method", itemgetter("label")),
        (heading(table.figure), _figure),
        _minus_reference(table, summary),
        _figure_column("quality"),
        ("judge calls", _calls),
        *_real_columns(table, results),
    ]
    return _table(columns, [row for row in rows if row["row"] in (names or table.rows)])


def told_apart(table: Table, summary: dict[str, Any]) -> str:
    """What `method_table` says, in sentences: from which rows the reference differs significantly;
    and what the paper has."""
    labels = {row["row"]: row["label"] for row in summary["rows"]}
    ahead, behind, level = found = [], [], []
    for figures in summary["comparisons"]:
        row, other = figures["rows"]
        if other == table.reference and set(table.seeds) <= set(figures["seeds"]):
            where = level if not figures["is_beyond_chance"] else ahead if figures["difference"] < 0 else behind
            where.append(labels[row])
    apart = [f"{where} {'; '.join(rows)}" for where, rows in zip(("ahead of", "behind"), found, strict=False) if rows]
    papers = [f"{row['label']} {_paper(row['paper'])[-1]}" for row in _run_rows(table, summary) if row["paper"]]
    return (
        f"{len(table.seeds)} seeds per row. {labels[table.reference]} is significantly "
        f"{', and '.join(apart) or 'ahead of or behind no row'}. With these seeds, it is not statistically "
        f"distinguishable from the other {len(level)}. In the paper: {'; '.join(papers)}."
    )


def short_table(table: Table, summary: dict[str, Any], results: Path) -> str:
    """What docs/results.md shows: a row's figure, its difference from the reference, what it cost,
    and the paper's figure."""
    extras = [figure for figure in _columns(summary, "figures") if figure.startswith(EXTRAS)]
    # the paper's last column, where it is another figure
    ours = [name for name in table.our_figures[-1:] if name not in (None, table.figure)]
    columns = [
        ("method", itemgetter("label")),
        ("row", lambda row: f"`{row['row']}`"),
        (heading(table.figure), _figure),
        *([_minus_reference(table, summary)] if table.compare_with_reference else []),
        *map(_figure_column, (*extras, "quality")),
        ("judge calls", _calls),
        ("seeds", lambda row: str(len(row["seeds"]))),
        *_real_columns(table, results),
    ]
    subtasks = _columns(summary, "by_subtask")
    for name in ours:
        title = f"{name} %" if name in subtasks else heading(name)
        columns.append((title, lambda row, name=name: _figure(_ours(row, name)) if _ours(row, name) else "-"))
    if table.paper_columns:
        columns.append((f"paper, {table.paper_columns[-1]}", lambda row: _paper(row["paper"])[-1]))
    rows = _table(columns, _run_rows(table, summary))
    return "\n\n".join([rows, *_pairs_table(table, summary), *_signals_table(summary)])


def beside_paper(table: Table, summary: dict[str, Any]) -> str:
    """Return a table with the paper's columns: our figures of each row, then the paper's."""
    lines = []
    for row in summary["rows"]:
        if row["seeds"]:
            lines.append([row["label"], "here", *(_mean(_ours(row, name)) for name in table.our_figures)])
        if row["paper"]:
            lines.append([row["label"], "paper", *_paper(row["paper"])])
    run, known = [row for row in summary["rows"] if row["seeds"]], filter(None, table.our_figures)
    is_whole = all(_ours(row, name) for name in known for row in run)
    note = "\n\nRows with `-` in a column were stored before that figure was kept; a rerun fills it in."
    return markdown.table(["row", "figures", *table.paper_columns], lines) + ("" if is_whole else note)


def page(name: str, table: Table, summary: dict[str, Any], results: Path, figures: Sequence[str], together: str) -> str:
    """results/<table>/README.md: all figures, and the same rows at scale;
    `together` says what tables are corrected with it."""
    others = [
        figure
        for figure in _columns(summary, "figures")
        if figure not in (table.figure, "quality") and not figure.startswith(EXTRAS)
    ]
    judges = _columns(summary, "by_judge") if len(_columns(summary, "by_judge")) > 1 else []
    columns = [
        ("row", itemgetter("label")),
        (heading(table.figure), _figure),
        *_mean_columns("by_judge", judges, f"{heading('win_rate')}, {{}}".format),
        *_mean_columns("by_subtask", _columns(summary, "by_subtask"), "{} %".format),
        *_mean_columns("figures", others, heading),
        ("minutes (median)", lambda row: "-" if row["seconds"] is None else f"{row['seconds'] / 60:.1f}"),
        *_mean_columns("curve", table.curve_steps, "curve, step {} %".format),
    ]
    claims = f" The paper says: {' '.join(table.claims)}" if table.claims else ""
    by_recipe = f"{table.real_model}, trained by its own recipe with `./reproduce.sh real_model`"
    parts = [
        f"# {table.title}",
        f"Made by `./reproduce.sh {name}`; do not edit.{claims}",
        "Figures are of sampled trajectories, means over seeds with 95 % intervals (t). "
        f"Win rates are by the {' and '.join(summary['judge']) or 'evaluating'} judge.",
        "Differences are paired over seeds, those of all tables that make the comparison: where these are more "
        "than this table's, it says how many. * means significant at 5 % after Holm's correction for all "
        f"comparisons of a family, run or not, those of {together} of {heading(table.figure)}. "
        f"Primary are those that the papers' claims name, here: {_primary(summary)}. All others are secondary.",
        f"Judge calls are those for the rewards of a run. Runs of {', '.join(summary['commits']) or 'no commit yet'}.",
        f"{by_recipe}, has one figure a seed." if table.real_model else "",
        short_table(table, summary, results),
        _table(columns, _run_rows(table, summary)),
        beside_paper(table, summary) if len([name for name in table.our_figures if name]) > 1 else "",
        _replication_table(table, summary),
        *(f"![{figure}]({figure}.png)" for figure in figures),
        "One row with one seed again, beside what is stored here: "
        f"`./reproduce.sh {name} --again --row ROW --seed SEED`.",
        scale_table(table) if any(row.at_scale for row in table.rows.values()) else "",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def scale_table(table: Table) -> str:
    """The paper's figures, ours at that scale, and the options of the scripts that run it."""
    scripts = ["train_rl.py", "evaluate.py", *(["arenarl.studies.signal_and_noise"] if table.measure else [])]
    paper = [f"paper: {column}" for column in table.paper_columns]
    lines = []
    for name, row in table.rows.items():
        if row.at_scale:
            figures = [f"{value:g}" for value in row.paper] if row.paper else ["-"] * len(paper)
            lines.append([row.label, *figures, "not run", f"`{_named(name, row)}`"])
    return markdown.table(["at scale", *paper, "ours", f"options of {', '.join(scripts)}"], lines)


def _named(name: str, row: Row) -> str:
    """A run of its own name where it changes a config and names none, that starts from the paper-scale SFT policy
    unless it names another start."""
    if "--set" not in row.at_scale or "--set name=" in row.at_scale:
        return row.at_scale
    start = "" if "rl.init=" in row.at_scale else " --set rl.init_run=travel-qwen3-8b"
    return f"{row.at_scale} --set name=travel-{name}{start}"


def _primary(summary: dict[str, Any]) -> str:
    """Those of this table, by the row that is taken away."""
    rows: dict[str, list[str]] = {}
    for figures in summary["comparisons"]:
        if figures["family"] == "primary":
            rows.setdefault(figures["rows"][1], []).append(f"`{figures['rows'][0]}`")
    return "; ".join(f"{', '.join(ones)} minus `{other}`" for other, ones in rows.items()) or "none"


def _table(columns: Sequence[Column], rows: Iterable[dict[str, Any]]) -> str:
    return markdown.table([title for title, _ in columns], [[cell(row) for _, cell in columns] for row in rows])


def _figure_column(name: str) -> Column:
    """A figure that a row may lack though it was run, as true quality without a truth."""

    def cell(row: dict[str, Any]) -> str:
        return _figure(row["figures"].get(name)) if name in row["figures"] or not row["seeds"] else "-"

    return heading(name), cell


def _mean_columns(kind: str, names: Sequence[Any], title: Callable[[Any], str]) -> list[Column]:
    """Means of what a row has of `kind`, such as `by_subtask`."""
    return [(title(name), lambda row, name=name: _mean(row[kind].get(name))) for name in names]


def _minus_reference(table: Table, summary: dict[str, Any]) -> Column:
    differences = {
        figures["rows"][0]: _difference(table, figures)
        for figures in summary["comparisons"]
        if figures["rows"][1] == table.reference
    }
    return f"minus {table.rows[table.reference].label}", lambda row: differences.get(row["row"], "-")


def _real_columns(table: Table, results: Path) -> list[Column]:
    """The figure of the real model's sampled trajectories with each seed; no column without such a model."""

    def cell(row: dict[str, Any]) -> str:
        planned = table.rows[row["row"]]
        summaries = read_summaries(results, planned.real_run) if planned.real_run else []
        policies = [summary[planned.checkpoint]["sampled"] for summary in summaries if planned.checkpoint in summary]
        return ", ".join(f"{policy[table.figure]['mean']:.1f}" for policy in policies) or "-"

    return [(f"{heading(table.figure)}, {table.real_model}", cell)] if table.real_model else []


def _columns(summary: dict[str, Any], kind: str) -> list[str]:
    """What some row has of `figures` or `by_subtask`."""
    return list(dict.fromkeys(name for row in summary["rows"] for name in row[kind]))


def _ours(row: dict[str, Any], name: str | None) -> dict[str, Any] | None:
    """Return a row's figure, subtask or criterion of this name; None without one."""
    return next((row[kind][name] for kind in ("figures", "by_subtask", "by_dimension") if name in row[kind]), None)


def _run_rows(table: Table, summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows that have something to run here."""
    return [row for row in summary["rows"] if table.rows[row["row"]].is_run]


def _compared(table: Table, figures: dict[str, Any]) -> str:
    return " minus ".join(table.rows[row].label for row in figures["rows"])


def _pairs_table(table: Table, summary: dict[str, Any]) -> list[str]:
    """The comparisons that are not with the reference, if there are any."""
    pairs = [figures for figures in summary["comparisons"] if tuple(figures["rows"]) in map(tuple, table.comparisons)]
    lines = [[_compared(table, figures), _difference(table, figures)] for figures in pairs]
    return [markdown.table(["compared", heading(table.figure)], lines)] if lines else []


def _replication_table(table: Table, summary: dict[str, Any]) -> str:
    """Each comparison over the first seeds and over the later ones; empty if none has both."""
    both = [figures for figures in summary["comparisons"] if "later" in figures]
    lines = [[_compared(table, one), _interval(one["first"]), _interval(one["later"])] for one in both]
    head = [f"{heading(table.figure)}, compared", f"seeds {FIRST_SEEDS[0]} to {FIRST_SEEDS[-1]}", "later seeds"]
    return markdown.table(head, lines) if lines else ""


def _signals_table(summary: dict[str, Any]) -> list[str]:
    """What `signal_and_noise` measured, a line a row and step."""
    steps = [(row["label"], at) for row in summary["rows"] for at in row["discrimination"]]
    lines = [
        [label, str(at["step"]), *(_figure(figure, 2) if figure else "-" for figure in at["told"].values())]
        for label, at in steps
    ]
    return [markdown.table(["groups of", "step", *steps[0][1]["told"]], lines)] if steps else []


def _calls(row: dict[str, Any]) -> str:
    return f"{row['judge_calls']:,}" if row["seeds"] else "-"


def _paper(figures: dict[str, Any] | None) -> list[str]:
    return [f"{value:g}" for value in figures.values()] if figures else ["-"]


def _figure(figure: dict[str, Any] | None, digits: int = 1) -> str:
    return format_figure(figure, digits) if figure and figure["mean"] is not None else "not run"


def _mean(figure: dict[str, Any] | None) -> str:
    return f"{figure['mean']:.1f}" if figure else "-"


def _difference(table: Table, figures: dict[str, Any]) -> str:
    """`difference [low, high]`, with a star where it is significant, and its seeds where other tables have more."""
    seeds = "" if set(figures["seeds"]) <= set(table.seeds) else f" ({len(figures['seeds'])} seeds)"
    return f"{_interval(figures)}{' *' if figures['is_beyond_chance'] else ''}{seeds}"


def _interval(figures: dict[str, Any]) -> str:
    low, high = figures["ci"]
    return f"{figures['difference']:+z.1f}" + ("" if low is None else f" [{low:+z.1f}, {high:+z.1f}]")
