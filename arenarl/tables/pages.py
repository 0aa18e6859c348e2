"""Pages of a table's runs: results/<table>/README.md with figures, and the short tables in README and docs.

All figures come from `summary`; this module also writes them to table.json. A real model's figures come from the
summaries of its runs.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from arenarl.evaluation.over_seeds import FIRST_SEEDS
from arenarl.report import markdown
from arenarl.report.summary import DIGITS, format_figure, heading, listed, read_summaries
from arenarl.system.atomic_files import read_json, write_json, write_text
from arenarl.tables.figures import draw
from arenarl.tables.rows import Row, Table
from arenarl.tables.summary import compare_all, read_found, summary_of_table

ONLY_BEFORE = "only before Holm's correction"  # the interval of the difference excludes 0, but the test with it fails
LEVEL = "not distinguishable"  # the interval of the difference holds 0
STANDINGS = (  # of one row of a comparison to the other, in the order of texts
    "significantly ahead", "significantly behind", f"ahead {ONLY_BEFORE}", f"behind {ONLY_BEFORE}", LEVEL
)  # fmt: skip
EXTRAS = ("greedy_", "pass_at_")  # prefixes of figures that the short table has if they were measured

Column = tuple[str, Callable[[dict[str, Any]], str]]  # heading, and the cell of a row of table.json
_SEEDS: Column = "seeds", lambda row: str(len(row["seeds"]))
_ONSET_NOTE = (
    "The onset is the first step from which judge.train's score rises and judge.watch's does not "
    "([how](../../docs/judges.md#a-judge-that-only-watches)). Its 95 % interval comes from bootstrap samples of the "
    "seeds; with the upper bound `none`, more than 2.5 % of the samples have no onset. If fewer than 95 % have one, "
    "the cell says `none`, with the share that has one. Onsets are not tested against each other. judge.train's score "
    "is the mean over the last quarter of the steps, on the judge's scale: for a checklist, ten times the share met."
)


def write_tables(
    names: Sequence[str], tables: dict[str, Table], results: Path, folder: str = "tables", quick: bool = False
) -> str:
    """Write table.json, figures and page of the tables `names`, and of other `tables` whose comparisons changed.
    Returns the short tables of `names`."""
    if quick:
        tables = {name: replace(table, seeds=table.quick.seeds) for name, table in tables.items()}
    found = {name: read_found(name, table, results, folder, quick) for name, table in tables.items()}
    verdicts, family = compare_all(tables, found), "all tables" if len(tables) > 1 else "this table"
    summaries = {name: summary_of_table(name, table, found[name], verdicts) for name, table in tables.items()}
    for name, summary in summaries.items():
        place, table = results / name, tables[name]
        stored = read_json(place / "table.json")
        if name in names or stored and stored["comparisons"] != summary["comparisons"]:
            write_json(place / "table.json", summary)
            figures = draw(summary, table, found[name], place) if summary["seeds"] else []
            primary = [pair for pair in table.pairs if verdicts[frozenset(pair)]["family"] == "primary"]
            text = page(name, table, summary, results, figures, family, primary, quick)
            write_text(place / "README.md", text)
    return "\n\n".join(short_table(tables[name], summaries[name], results) for name in names)


def method_table(table: Table, summary: dict[str, Any], results: Path, names: Sequence[str] = ()) -> str:
    """Return a line for each row that was run, or for the rows `names`: figure, difference from the reference, true
    quality, judge calls; and the number of seeds if a row lacks some."""
    rows = [row for row in _run_rows(table, summary) if row["seeds"]]
    columns = [
        ("method", itemgetter("label")),
        (heading(table.figure), _figure),
        _minus_reference(table, summary),
        _figure_column("quality"),
        ("judge calls", _calls),
        *([] if _is_whole(table, rows) else [_SEEDS]),
        *_real_columns(table, results),
    ]
    return _table(columns, [row for row in rows if row["row"] in (names or table.rows)])


def _is_whole(table: Table, rows: Sequence[dict[str, Any]]) -> bool:
    return all(set(table.seeds) <= set(row["seeds"]) for row in rows)


def standing(figures: dict[str, Any], of_second: bool = False) -> str:
    """Return in words how the first row of a comparison compares with the second; `of_second` swaps them."""
    where = "ahead" if (figures["difference"] > 0) != of_second else "behind"
    if figures["is_beyond_chance"]:
        return f"significantly {where}"
    low, high = figures["ci"]
    return f"{where} {ONLY_BEFORE}" if low is not None and low * high > 0 else LEVEL


def significant_rows(table: Table, summary: dict[str, Any]) -> str:
    """Return sentences on the rows with all seeds from which the reference differs, after Holm's correction or only
    before it, and on the paper's figures."""
    labels = {row["row"]: row["label"] for row in summary["rows"]}
    rows: dict[str, list[str]] = {}
    for figures in summary["comparisons"]:
        row, other = figures["rows"]
        if other == table.reference and set(table.seeds) <= set(figures["seeds"]):
            rows.setdefault(standing(figures, of_second=True), []).append(labels[row])
    places = {"ahead": "ahead of", "behind": "behind"}
    standings = [
        f"{word} {'; '.join(rows[key])}" for at, word in places.items() if (key := f"significantly {at}") in rows
    ]
    counts = [f"{word} {len(rows[key])} more" for at, word in places.items() if (key := f"{at} {ONLY_BEFORE}") in rows]
    before = f"Only before that correction, it is {listed(counts)}, whose interval excludes 0. " if counts else ""
    run, level = _run_rows(table, summary), len(rows.get(LEVEL, []))
    per_row, others = "seeds per row", f"the other {level}"
    if not _is_whole(table, run):
        per_row, others = "seeds per row; rows with fewer are not tested", f"{level} others"
    rest = f"With these seeds, it is {LEVEL} from {others}. " if level else ""
    papers = [f"{row['label']} {_paper(row['paper'])[-1]}" for row in run if row["paper"]]
    return (
        f"{len(table.seeds)} {per_row}. After Holm's correction, {labels[table.reference]} is significantly "
        f"{', and '.join(standings) or 'ahead of or behind no row'}. {before}{rest}"
        f"In the paper: {'; '.join(papers)}."
    )


def short_table(table: Table, summary: dict[str, Any], results: Path) -> str:
    """Return docs/results.md's table: each row's figure, difference from the reference, cost and the paper's figure."""
    extras = [figure for figure in _columns(summary, "figures") if figure.startswith(EXTRAS)]
    # our figure for the paper's last column, if it differs from the table's figure
    ours = [name for name in table.our_figures[-1:] if name not in (None, table.figure)]
    gaming = [("judge.train's score 0-10", lambda row: _figure(row["training_score"])), ("onset, step", _onset)]
    columns = [
        ("method", itemgetter("label")),
        ("row", lambda row: f"`{row['row']}`"),
        (heading(table.figure), _figure),
        *([_minus_reference(table, summary)] if table.compare_with_reference else []),
        *map(_figure_column, (*extras, *(["quality"] if table.figure != "quality" else []))),
        *(gaming if table.measure == "onset" else []),
        ("judge calls", _calls),
        *([("judge tokens, estimated", _tokens)] if _has_tokens(summary) else []),
        _SEEDS,
        *_real_columns(table, results),
    ]
    subtasks = _columns(summary, "by_subtask")
    for name in ours:
        title = f"{name} %" if name in subtasks else heading(name)
        columns.append(
            (title, lambda row, name=name: _figure(_own_figure(row, name)) if _own_figure(row, name) else "-")
        )
    if table.paper_columns:
        columns.append((f"paper, {table.paper_columns[-1]}", lambda row: _paper(row["paper"])[-1]))
    rows = _table(columns, _run_rows(table, summary))
    return "\n\n".join([rows, *_pairs_table(table, summary), *_signals_table(summary)])


def beside_paper(table: Table, summary: dict[str, Any]) -> str:
    """Return a table with the paper's columns: our figures of each row, then the paper's."""
    lines = []
    for row in summary["rows"]:
        if row["seeds"]:
            lines.append([row["label"], "here", *(_mean(_own_figure(row, name)) for name in table.our_figures)])
        if row["paper"]:
            lines.append([row["label"], "paper", *_paper(row["paper"])])
    known = [name for name in table.our_figures if name]
    is_whole = all(_own_figure(row, name) for name in known for row in summary["rows"] if row["seeds"])
    note = "\n\nRows with `-` in a column were stored before that figure was kept; a rerun fills it in."
    return markdown.table(["row", "figures", *table.paper_columns], lines) + ("" if is_whole else note)


def page(
    name: str, table: Table, summary: dict[str, Any], results: Path, figures: Sequence[str], family: str,
    primary: Sequence[tuple[str, str]], quick: bool = False,
) -> str:  # fmt: skip
    """Return <results>/<table>/README.md: all figures, and the same rows at the paper's scale.

    Args:
        family: the tables that one correction for multiple comparisons covers.
        primary: this table's primary comparisons, run or not.
        quick: the rows are a smoke test.
    """
    others = [
        figure
        for figure in _columns(summary, "figures")
        if figure not in (table.figure, "quality") and not figure.startswith(EXTRAS)
    ]
    judges = _columns(summary, "by_judge")
    unit = " %" if heading(table.figure).endswith(" %") else f", {heading(table.figure)}"
    columns = [
        ("row", itemgetter("label")),
        (heading(table.figure), _figure),
        *_mean_columns("by_judge", judges if len(judges) > 1 else [], f"{heading('win_rate')}, {{}}".format),
        *_mean_columns("by_subtask", _columns(summary, "by_subtask"), f"{{}}{unit}".format),
        *_mean_columns("figures", others, heading),
        ("minutes (median)", lambda row: "-" if row["seconds"] is None else f"{row['seconds'] / 60:.1f}"),
        *_mean_columns("curve", table.curve_steps, f"curve, step {{}}{unit}".format),
    ]
    claims = f" The paper says: {' '.join(table.claims)}" if table.claims else ""
    again = f"./reproduce.sh {name} --again --row ROW --seed SEED"
    recipe = f"{table.real_model}, trained by its own recipe with `./reproduce.sh real_model`"
    parts = [
        f"# {table.title}",
        f"Made by `./reproduce.sh {name}{' --quick' * quick}`; do not edit.{claims}",
        "A smoke test: with so few steps and so little data, the figures mean nothing." if quick else "",
        "Figures are of sampled trajectories, means over seeds with 95 % intervals (t). "
        f"Win rates are by the {' and '.join(summary['judge']) or 'evaluating'} judge.",
        "Differences are paired over the seeds of all tables that make the comparison; the number of seeds is shown "
        "if it is larger than this table's. * means significant at 5 % after Holm's correction, which counts all "
        f"primary or all secondary comparisons, run or not, in {family} of {heading(table.figure)}. A comparison is "
        "tested once all its seeds are run. Primary comparisons are those that the papers' claims name, here: "
        f"{_grouped(primary)}. All others are secondary.",
        "Judge calls are those for the rewards of a run; tokens are those that an LLM judge would read and write. "
        f"Runs of {', '.join(summary['commits']) or 'no commit yet'}.",
        f"{recipe}, has one figure a seed." if table.real_model else "",
        _ONSET_NOTE if table.measure == "onset" else "",
        short_table(table, summary, results),
        _table(columns, _run_rows(table, summary)),
        beside_paper(table, summary) if len([figure for figure in table.our_figures if figure]) > 1 else "",
        _replication_table(table, summary),
        *(f"![{figure}]({figure}.png)" for figure in figures),
        "" if quick else f"One row with one seed again, beside what is stored here: `{again}`.",
        scale_table(table) if any(row.at_scale for row in table.rows.values()) else "",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def scale_table(table: Table) -> str:
    """Return the rows at the paper's scale: the paper's figures, ours, and the options of the scripts that run it."""
    scripts = [
        "train_rl.py",
        "evaluate.py",
        *(["arenarl.studies.signal_and_noise"] if table.measure == "discrimination" else []),
    ]
    paper = [f"paper: {column}" for column in table.paper_columns]
    lines = []
    for name, row in table.rows.items():
        if row.at_scale:
            figures = [f"{value:g}" for value in row.paper] if row.paper else ["-"] * len(paper)
            lines.append([row.label, *figures, "not run", f"`{_scale_options(name, row)}`"])
    return markdown.table(["at scale", *paper, "ours", f"options of {', '.join(scripts)}"], lines)


def _scale_options(name: str, row: Row) -> str:
    """Return a row's options at scale. If they change a config without naming the run, add a name and a start: the
    paper-scale SFT policy, unless the row has another start."""
    if "--set" not in row.at_scale or "--set name=" in row.at_scale:
        return row.at_scale
    start = "" if "rl.init=" in row.at_scale else " --set rl.init_run=travel-qwen3-8b"
    return f"{row.at_scale} --set name=travel-{name}{start}"


def _grouped(pairs: Sequence[tuple[str, str]]) -> str:
    """Return comparisons in words, grouped by the row that is subtracted."""
    rows: dict[str, list[str]] = {}
    for first, other in dict.fromkeys(pairs):
        rows.setdefault(other, []).append(f"`{first}`")
    return "; ".join(f"{', '.join(firsts)} minus `{other}`" for other, firsts in rows.items()) or "none"


def _table(columns: Sequence[Column], rows: Iterable[dict[str, Any]]) -> str:
    return markdown.table([title for title, _ in columns], [[cell(row) for _, cell in columns] for row in rows])


def _figure_column(name: str) -> Column:
    """Return a figure's column; a row that was run without the figure has `-`, such as true quality without a truth."""

    def cell(row: dict[str, Any]) -> str:
        return _figure(row["figures"].get(name)) if name in row["figures"] or not row["seeds"] else "-"

    return heading(name), cell


def _mean_columns(kind: str, names: Sequence[Any], title: Callable[[Any], str]) -> list[Column]:
    """Return a column of means for each name of a row's `kind`, such as `by_subtask`."""
    return [(title(name), lambda row, name=name: _mean(row[kind].get(name), DIGITS.get(name, 1))) for name in names]


def _minus_reference(table: Table, summary: dict[str, Any]) -> Column:
    cells = {tuple(figures["rows"]): _difference(table, figures) for figures in summary["comparisons"]}
    title = f"minus {table.rows[table.reference].label}"
    return title, lambda row: cells.get((row["row"], table.reference), "-")


def _real_columns(table: Table, results: Path) -> list[Column]:
    """Return a column with the real model's figure for each seed, or none without such a model."""

    def cell(row: dict[str, Any]) -> str:
        planned = table.rows[row["row"]]
        summaries = read_summaries(results, planned.real_run) if planned.real_run else []
        policies = [summary[planned.checkpoint]["sampled"] for summary in summaries if planned.checkpoint in summary]
        return ", ".join(f"{policy[table.figure]['mean']:.1f}" for policy in policies) or "-"

    return [(f"{heading(table.figure)}, {table.real_model}", cell)] if table.real_model else []


def _columns(summary: dict[str, Any], kind: str) -> list[str]:
    """Return the names that any row has in `kind`, such as `figures` or `by_subtask`."""
    return list(dict.fromkeys(name for row in summary["rows"] for name in row[kind]))


def _own_figure(row: dict[str, Any], name: str | None) -> dict[str, Any] | None:
    """Return a row's value for the figure, subtask or criterion of this name, or None."""
    return next((row[kind][name] for kind in ("figures", "by_subtask", "by_dimension") if name in row[kind]), None)


def _run_rows(table: Table, summary: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in summary["rows"] if table.rows[row["row"]].is_run]


def _pair_label(table: Table, figures: dict[str, Any]) -> str:
    return " minus ".join(table.rows[row].label for row in figures["rows"])


def _pairs_table(table: Table, summary: dict[str, Any]) -> list[str]:
    """Return a table of the comparisons between other rows than the reference; empty if there are none."""
    pairs = [figures for figures in summary["comparisons"] if tuple(figures["rows"]) in map(tuple, table.comparisons)]
    lines = [[_pair_label(table, figures), _difference(table, figures)] for figures in pairs]
    return [markdown.table(["compared", heading(table.figure)], lines)] if lines else []


def _replication_table(table: Table, summary: dict[str, Any]) -> str:
    """Return the table of comparisons over the first seeds and over the later seeds; "" if no comparison has both."""
    both = [figures for figures in summary["comparisons"] if "later" in figures]
    lines = [
        [_pair_label(table, figures), _interval(figures["first"]), _interval(figures["later"])] for figures in both
    ]
    head = [f"{heading(table.figure)}, compared", f"seeds {FIRST_SEEDS[0]} to {FIRST_SEEDS[-1]}", "later seeds"]
    return markdown.table(head, lines) if lines else ""


def _signals_table(summary: dict[str, Any]) -> list[str]:
    """Return a table of `signal_and_noise`, a line for each row and step, if it was measured."""
    steps = [(row["label"], at) for row in summary["rows"] for at in row["discrimination"]]
    lines = [
        [label, str(at["step"]), *(_figure(figure, 2) if figure else "-" for figure in at["told"].values())]
        for label, at in steps
    ]
    return [markdown.table(["groups of", "step", *steps[0][1]["told"]], lines)] if steps else []


def _calls(row: dict[str, Any]) -> str:
    return f"{row['judge_calls']:,}" if row["seeds"] else "-"


def _has_tokens(summary: dict[str, Any]) -> bool:
    """Return True if a run has tokens, or nothing was run; runs of earlier versions have none."""
    tokens = [row["judge_tokens"] for row in summary["rows"] if "judge_tokens" in row]
    return bool(tokens) and (not summary["seeds"] or any(count is not None for count in tokens))


def _tokens(row: dict[str, Any]) -> str:
    return "-" if row["judge_tokens"] is None else f"{row['judge_tokens'] / 1e6:.1f}M"


def _onset(row: dict[str, Any]) -> str:
    """Return the step of onset and its interval; without one, the share of bootstrap samples that have one."""
    if (onset := row["onset"]) is None:
        return "needs 3 seeds" if row["seeds"] else "not run"
    if onset["step"] is None:
        return f"none ({100 * onset['share']:.0f} %)"
    low, high = ("none" if bound is None else f"{bound:.0f}" for bound in onset["ci"])
    return f"{onset['step']} [{low}, {high}]"


def _paper(figures: dict[str, Any] | None) -> list[str]:
    return [f"{value:g}" for value in figures.values()] if figures else ["-"]


def _figure(figure: dict[str, Any] | None, digits: int = 1) -> str:
    return format_figure(figure, digits) if figure and figure["mean"] is not None else "not run"


def _mean(figure: dict[str, Any] | None, digits: int = 1) -> str:
    return f"{figure['mean']:.{digits}f}" if figure else "-"


def _difference(table: Table, figures: dict[str, Any]) -> str:
    """Return `difference [low, high]`, a star if significant, and the number of seeds if other tables add some."""
    seeds = "" if set(figures["seeds"]) <= set(table.seeds) else f" ({len(figures['seeds'])} seeds)"
    return f"{_interval(figures)}{' *' if figures['is_beyond_chance'] else ''}{seeds}"


def _interval(figures: dict[str, Any]) -> str:
    low, high = figures["ci"]
    return f"{figures['difference']:+z.1f}" + ("" if low is None else f" [{low:+z.1f}, {high:+z.1f}]")
