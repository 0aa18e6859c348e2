"""What a table's runs say: results/<table>/table.json, its figures and page, and the README's tables.

A row's figures are means over seeds with 95 % t intervals; differences are paired over the seeds that both rows have, and Holm's
method corrects for their number. `mean` is the win rate of sampled trajectories by the evaluating judge.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arenarl.config.command_line import as_overrides
from arenarl.domains.travel.queries import SUBTASKS
from arenarl.evaluation.statistics import mean_over_seeds, paired_differences
from arenarl.report import markdown
from arenarl.report.summary import format_figure
from arenarl.studies.discrimination import SIGNALS
from arenarl.system.atomic_files import read_json, write_json, write_text
from arenarl.tables.figures import draw
from arenarl.tables.rows import Row, Table

TOLD = ("ranks", "as_many_calls", "one_round", "answer_one_round")  # the signals of discrimination.SIGNALS that a table shows
Seeds = dict[int, dict[str, Any]]  # seed -> what its run found


def write_table(name: str, table: Table, results: Path) -> str:
    """Make table.json, figures and a page of what is finished; returns the README's table."""
    found = {row: _read_seeds(results / name / row) for row in table.rows}
    rows = [_row_figures(row_name, row, table, found[row_name]) for row_name, row in table.rows.items()]
    summary = {
        "table": name,
        "title": table.title,
        "judge": sorted({run["judge"] for seeds in found.values() for run in seeds.values()}),
        "seeds": sorted({seed for seeds in found.values() for seed in seeds}),
        "rows": rows,
        "comparisons": _comparisons(table, found),
    }
    write_json(results / name / "table.json", summary)
    figures = draw(summary, table, found, results / name) if summary["seeds"] else []
    write_text(results / name / "README.md", page(name, table, summary, figures))
    return short_table(table, summary)


def _read_seeds(folder: Path) -> Seeds:
    runs = [read_json(path) for path in folder.glob("seed*.json")]
    return {run["seed"]: run for run in sorted(runs, key=lambda run: run["seed"])}


def _row_figures(name: str, row: Row, table: Table, seeds: Seeds) -> dict[str, Any]:
    runs = list(seeds.values())
    win_rates = [run["figures"]["win_rate"] for run in runs]
    none = {"mean": None, "ci": [None, None], "prediction": [None, None]}
    return {
        "row": name,
        "label": row.label,
        "config": row.config,
        "overrides": as_overrides(table.set | row.set),
        "seeds": list(seeds),
        **(mean_over_seeds(win_rates) if runs else none),
        "judge_calls": round(sum(run["judge_calls"] for run in runs) / len(runs)) if runs else None,
        "seconds": round(sum(run["seconds"]["total"] for run in runs) / len(runs), 1) if runs else None,
        "paper": dict(zip(table.paper_columns, row.paper, strict=True)) if row.paper else None,
        "figures": {figure: mean_over_seeds([run["figures"][figure] for run in runs]) for figure in TRAVEL} if runs else {},
        "by_subtask": {subtask: mean_over_seeds([run["by_subtask"][subtask] for run in runs]) for subtask in SUBTASKS} if runs else {},
        "curve": _curve_points(runs, table.curve_steps),
        "discrimination": _mean_signals([run["discrimination"] for run in runs]) if runs and table.measure == "discrimination" else [],
    }


def _curve_points(runs: Sequence[dict[str, Any]], steps: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Win rate on the curve's queries at those of the steps that a run reached."""
    win_rates = {step: [point["eval/sampled/win_rate"] for run in runs for point in run["curve"] if point["step"] == step] for step in steps}
    return {step: mean_over_seeds(of_step) for step, of_step in win_rates.items() if of_step}


def _mean_signals(rows_by_seed: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """By step: spread and noise of scores of whole trajectories, and Kendall's tau to the truth, each with its interval over seeds."""
    steps = sorted(set.intersection(*({row["step"] for row in rows} for rows in rows_by_seed)))
    at = {step: [row for rows in rows_by_seed for row in rows if row["step"] == step] for step in steps}
    return [
        {"step": step}
        | {name: mean_over_seeds([row["trajectory"][name] for row in rows]) for name in ("sigma_group", "sigma_noise", "snr")}
        | {"tau": {signal: mean_over_seeds([row["tau"][signal]["quality"] for row in rows]) for signal in TOLD}}
        for step, rows in at.items()
    ]


def _comparisons(table: Table, found: dict[str, Seeds]) -> list[dict[str, Any]]:
    """Of win rates, over the seeds that both rows have."""
    shared = {pair: sorted(set(found[pair[0]]) & set(found[pair[1]])) for pair in table.pairs}
    win_rates = {
        pair: tuple([found[row][seed]["figures"]["win_rate"] for seed in seeds] for row in pair) for pair, seeds in shared.items() if seeds
    }
    differences = paired_differences(win_rates)
    return [{"rows": list(pair), "seeds": shared[pair], **figures} for pair, figures in differences.items()]


def method_table(table: Table, summary: dict[str, Any]) -> str:
    """A line a row: win rate, difference from the reference, noise-free quality, judge calls."""
    differences = _from_reference(table, summary)
    lines = [
        [row["label"], _figure(row), _difference(differences.get(row["row"])), _figure(row["figures"].get("quality")), _calls(row)]
        for row in _run_rows(table, summary)
    ]
    return markdown.table(["method", "win rate %", _less(table), "quality 0-10", "judge calls"], lines)


def short_table(table: Table, summary: dict[str, Any]) -> str:
    """What docs/results.md shows: a row's win rate, its difference from the reference, what it cost, and the paper's figure."""
    head = ["method", "row", "win rate %", *([_less(table)] if table.compare_with_reference else []), "quality 0-10", "judge calls", "seeds"]
    head += [f"paper, {table.paper_columns[-1]}"] if table.paper_columns else []
    differences = _from_reference(table, summary)
    lines = []
    for row in _run_rows(table, summary):
        cells = [row["label"], f"`{row['row']}`", _figure(row), *([_difference(differences.get(row["row"]))] if table.compare_with_reference else [])]
        cells += [_figure(row["figures"].get("quality")), _calls(row), str(len(row["seeds"]))]
        lines.append(cells + ([_paper(row["paper"])[-1]] if table.paper_columns else []))
    return "\n\n".join([markdown.table(head, lines), *_pairs_table(table, summary), *_signals_table(table, summary)])


def page(name: str, table: Table, summary: dict[str, Any], figures: Sequence[str]) -> str:
    """results/<table>/README.md: all figures, and the same rows at the paper's scale."""
    head = ["row", "win rate %", *(f"{subtask} %" for subtask in SUBTASKS), "valid %", "grounded %", "constraints %", "tool calls", "minutes"]
    head += [f"curve, step {step} %" for step in table.curve_steps]
    lines = []
    for row in _run_rows(table, summary):
        cells = [row["label"], _figure(row), *(_mean(row["by_subtask"].get(subtask)) for subtask in SUBTASKS)]
        cells += [_mean(row["figures"].get(name)) for name in ("valid_rate", "groundedness", "constraints_met", "tool_calls")]
        cells += ["-" if row["seconds"] is None else f"{row['seconds'] / 60:.1f}", *(_mean(row["curve"].get(step)) for step in table.curve_steps)]
        lines.append(cells)
    parts = [
        f"# {table.title}",
        "Made by `./reproduce.sh " + name + f"`; do not edit. The paper says: {' '.join(table.claims)}",
        f"Win rates of sampled trajectories by the {' and '.join(summary['judge']) or 'evaluating'} judge, means over seeds with 95 % intervals (t).",
        "Differences are paired over seeds; * is beyond chance at 5 % after Holm's correction for all comparisons of the table. Judge calls are "
        "those for the rewards of a run.",
        short_table(table, summary),
        markdown.table(head, lines),
        *(f"![{figure}]({figure}.png)" for figure in figures),
        f"One row with one seed again, beside what is stored here: `./reproduce.sh {name} --again --row ROW --seed SEED`.",
    ]
    at_scale = any(row.at_scale for row in table.rows.values())
    return "\n\n".join([*parts, *([scale_table(table)] if at_scale else [])]) + "\n"


def scale_table(table: Table) -> str:
    """The paper's figures, ours at that scale, and the options of the scripts that run it."""
    scripts = ["train_rl.py", "evaluate.py", *([f"arenarl.{table.measure}"] if table.measure else [])]
    paper = [f"paper: {column}" for column in table.paper_columns]
    head = ["at the paper's scale", *paper, "ours", f"options of {', '.join(scripts)}"]
    unknown = ["-"] * len(table.paper_columns)
    rows = [
        [row.label, *([f"{value:g}" for value in row.paper] if row.paper else unknown), "not run", f"`{_named(name, row)}`"]
        for name, row in table.rows.items()
        if row.at_scale
    ]
    return markdown.table(head, rows)


def _named(name: str, row: Row) -> str:
    """A run of its own name where it changes a config, that starts from the paper-scale SFT policy unless it names another start."""
    if "--set" not in row.at_scale:
        return row.at_scale
    start = "" if "rl.init=" in row.at_scale else " --set rl.init_run=travel-qwen3-8b"
    return f"{row.at_scale} --set name=travel-{name}{start}"


def _run_rows(table: Table, summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows that have something to run here."""
    return [row for row in summary["rows"] if table.rows[row["row"]].is_run]


def _from_reference(table: Table, summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {figures["rows"][0]: figures for figures in summary["comparisons"] if figures["rows"][1] == table.reference}


def _pairs_table(table: Table, summary: dict[str, Any]) -> list[str]:
    """The comparisons that are not with the reference, if there are any."""
    pairs = [figures for figures in summary["comparisons"] if tuple(figures["rows"]) in {tuple(pair) for pair in table.comparisons}]
    lines = [[" less ".join(table.rows[row].label for row in figures["rows"]), _difference(figures)] for figures in pairs]
    return [markdown.table(["compared", "win rate %"], lines)] if lines else []


def _signals_table(table: Table, summary: dict[str, Any]) -> list[str]:
    """What `discrimination` measured, a line a row and step."""
    head = ["groups of", "step", "sigma_group", "sigma_noise", "SNR", *(f"tau: {SIGNALS[signal]}" for signal in TOLD)]
    lines = [
        [row["label"], str(at["step"]), *(_figure(figure, 2) for figure in (at["sigma_group"], at["sigma_noise"], at["snr"], *at["tau"].values()))]
        for row in summary["rows"]
        for at in row["discrimination"]
    ]
    return [markdown.table(head, lines)] if lines else []


def _less(table: Table) -> str:
    return f"less {table.rows[table.reference].label}"


def _calls(row: dict[str, Any]) -> str:
    return f"{row['judge_calls']:,}" if row["seeds"] else "-"


def _paper(figures: dict[str, Any] | None) -> list[str]:
    return [f"{value:g}" for value in figures.values()] if figures else ["-"]


def compare_with_stored(name: str, again: Path, stored: Path) -> str:
    """A line for each row and seed that was run again: beside the stored figure of the same seed, or the interval for a new one."""
    table = read_json(stored / name / "table.json") or {"rows": []}
    rows = {row["row"]: row for row in table["rows"]}
    lines = []
    for path in sorted((again / name).glob("*/seed*.json")):
        run, earlier = read_json(path), read_json(stored / name / path.parent.name / path.name)
        line = f"{name}, {run['row']}, seed {run['seed']}: win rate {run['figures']['win_rate']:.4f} %"
        if earlier:
            same = "all figures are the same" if earlier["figures"] == run["figures"] else f"different{_other_cpu(earlier, run)}"
            lines.append(f"{line}, stored {earlier['figures']['win_rate']:.4f} %: {same}")
        elif (bounds := rows.get(run["row"], {}).get("prediction")) and bounds[0] is not None:
            inside = bounds[0] <= run["figures"]["win_rate"] <= bounds[1]
            lines.append(f"{line}, 95 % prediction interval {bounds[0]:.1f} to {bounds[1]:.1f}: {'inside' if inside else 'outside'}")
        else:
            lines.append(f"{line}, nothing stored to compare with")
    return "\n".join(lines)


def _other_cpu(earlier: dict[str, Any], run: dict[str, Any]) -> str:
    """Where two runs of a seed had different CPUs, that it may be these; a CPU that was not noted is no reason."""
    before, now = (one.get("provenance", {}).get("cpu") for one in (earlier, run))
    return f", but stored from another CPU ({before}; this is {now}), which rounds otherwise" if before and before != now else ""


def _figure(figure: dict[str, Any] | None, digits: int = 1) -> str:
    return format_figure(figure, digits) if figure and figure["mean"] is not None else "not run"


def _mean(figure: dict[str, Any] | None) -> str:
    return f"{figure['mean']:.1f}" if figure else "-"


def _difference(figures: dict[str, Any] | None) -> str:
    """`difference [low, high]`, with a star where it is beyond chance."""
    if figures is None:
        return "-"
    low, high = figures["ci"]
    interval = "" if low is None else f" [{low:+.1f}, {high:+.1f}]"
    return f"{figures['difference']:+.1f}{interval}{' *' if figures['is_beyond_chance'] else ''}"


TRAVEL = ("win_rate", "quality", "valid_rate", "groundedness", "constraints_met", "tool_calls")  # the columns of the README's table
