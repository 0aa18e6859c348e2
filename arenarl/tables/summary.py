"""What a table's runs say in figures, results/<table>/table.json, and what a run that is done again says of a stored one.

A row's figures are means over seeds with 95 % t intervals; differences are paired over the seeds that both rows have, and Holm's
method corrects for their number. `mean` is the win rate of sampled trajectories by the evaluating judge.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from arenarl.config.command_line import as_overrides
from arenarl.config.load import load_config
from arenarl.domains.domain import make_domain
from arenarl.studies.signal_figures import TOLD
from arenarl.system.atomic_files import read_json
from arenarl.tables.over_seeds import mean_over_seeds, paired_differences
from arenarl.tables.rows import Row, Table

Seeds = dict[int, dict[str, Any]]  # seed -> what its run found


def read_seeds(folder: Path) -> Seeds:
    """A row's finished runs."""
    runs = [read_json(path) for path in folder.glob("seed*.json")]
    return {run["seed"]: run for run in sorted(runs, key=lambda run: run["seed"])}


def summary_of_table(name: str, table: Table, found: dict[str, Seeds]) -> dict[str, Any]:
    """What table.json holds of the runs found, by row."""
    runs = [run for seeds in found.values() for run in seeds.values()]
    subtasks = _subtasks(table, runs)
    return {
        "table": name,
        "title": table.title,
        "judge": sorted({run["judge"] for run in runs}),
        "seeds": sorted({run["seed"] for run in runs}),
        "rows": [_row_figures(row_name, row, table, subtasks, found[row_name]) for row_name, row in table.rows.items()],
        "comparisons": _comparisons(table, found),
    }


def _subtasks(table: Table, runs: Iterable[dict[str, Any]]) -> Sequence[str]:
    """In the order of the table's domain, or as they come where the queries name them."""
    config = load_config(table.cold_start, as_overrides(table.cold_start_set))
    return make_domain(config.environment, config.data).subtasks or list(dict.fromkeys(subtask for run in runs for subtask in run["by_subtask"]))


def _row_figures(name: str, row: Row, table: Table, subtasks: Sequence[str], seeds: Seeds) -> dict[str, Any]:
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
        "figures": {figure: mean_over_seeds([run["figures"][figure] for run in runs]) for figure in runs[0]["figures"]} if runs else {},
        "by_subtask": {subtask: mean_over_seeds([run["by_subtask"][subtask] for run in runs]) for subtask in subtasks} if runs else {},
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
