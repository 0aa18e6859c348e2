"""Conclusion of a finished run: its meaning in two lines computed from the summary, its files, and the next command.

python -m arenarl.report.conclusion quickstart
"""

import argparse
import math
from pathlib import Path
from typing import Any

from arenarl.system.atomic_files import read_json
from arenarl.system.errors import EVALUATE_AGAIN, UserError, missing, one_line, run_cli
from arenarl.system.user_input import text_of_file
from arenarl.system.yaml_text import read_yaml


def meaning(summary: dict[str, Any]) -> list[str]:
    """Return a line on what RL changed and a line on the limits of the figures."""
    figures = summary["rl"].get("sampled") or summary["rl"]["greedy"]
    # the length of a pass@k curve is the number of samples per query
    queries = math.ceil(figures["cases"] / max(map(len, figures.get("pass_at_k", {}).values()), default=1))
    is_simulated = summary["judge"] == "simulated"
    judge = "and the judge is simulated" if is_simulated else f"judged by {summary['judge']}"
    limits = "the intervals say nothing about other seeds (--set seed=1) or other judges"
    return [
        "RL after SFT: " + "; ".join(f"{decoding} {_change(summary, decoding)}" for decoding in summary["rl"]) + ".",
        f"One seed, {queries} test queries, {judge}: {limits}.",
    ]


def _change(summary: dict[str, Any], decoding: str) -> str:
    changes = []
    for word, figure in (("wins", "win_rate"), ("accuracy", "accuracy")):
        before, after = (summary[name][decoding].get(figure) or {"mean": None} for name in ("sft", "rl"))
        # without stored baselines, the first policy is the reference and has no win rate
        if None not in (before["mean"], after["mean"]):
            verdict = _verdict(*before["ci"], *after["ci"])
            counts = [part["n"] for part in (before, after) if "n" in part]
            of = f"n={' and '.join(map(str, counts))}; " if counts else ""
            changes.append(f"{word} {before['mean']:.1f} → {after['mean']:.1f} % ({of}{verdict})")
    return ", ".join(changes) or "SFT and RL share no metric"


def _verdict(low: float | None, high: float | None, new_low: float | None, new_high: float | None) -> str:
    if None in (low, new_low):
        return "no interval: one query a subtask"
    if low <= new_high and new_low <= high:
        return "the 95 % intervals overlap: no difference is shown"
    return f"{'higher' if new_low > high else 'lower'}, the 95 % intervals do not overlap"


def folders_of(run: str) -> tuple[Path, Path]:
    """Return the folder of a run, which is given by name or folder, and the folder of its evaluation's results.
    Raises UserError for a folder outside runs/, and if the evaluation's config is damaged."""
    runs, folder = Path("runs").resolve(), Path(run)
    if folder.is_absolute() or folder.parts[:1] in (("runs",), ("..",)):
        if not folder.resolve().is_relative_to(runs):
            raise UserError(f"{run} is not a folder in {runs}; give a run's name, or its folder in runs/")
        folder = folder.resolve().relative_to(runs)
    config = Path("runs") / folder / "evaluate" / "config.yaml"
    try:
        settings = read_yaml(text_of_file(config)) if config.is_file() else {}
        results = Path(settings.get("results", "runs"))  # earlier versions lack the key
    except (UserError, ValueError, AttributeError, TypeError) as error:
        raise UserError(f"{config} is damaged ({one_line(error)}); {EVALUATE_AGAIN}") from error
    return Path("runs") / folder, results / folder


def print_conclusion(folder: Path, results: Path, summary: dict[str, Any]) -> None:
    """Print the conclusion of the run in `folder`, whose summary and page are in `results`."""
    if {"sft", "rl"} <= summary.keys():
        print("", *meaning(summary), sep="\n")
    files = {
        results / "report.html": "open it in a browser: curves, every trajectory, every match",
        results / "summary.json": "all metrics, with intervals and provenance",
        folder: f"policies, checkpoints, trajectories; the curves in the terminal: wandb leet {folder}/wandb",
    }
    width = max(len(str(path)) for path in files)
    print("", *(f"{path!s:{width}}  {text}" for path, text in files.items()), sep="\n")
    if folder.name.startswith("quickstart"):
        print("\nnext: ./reproduce.sh baselines    the paper's GRPO and GSPO rows, from the same SFT policy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("run", help="the run's name, or its folder in runs/")
    folder, results = folders_of(parser.parse_args().run)
    path = results / "summary.json"
    summary = read_json(path, dict[str, Any], "rerun evaluate.py")
    if summary is None:
        raise UserError(missing(path, "; ./reproduce.sh evaluate writes it"))
    print_conclusion(folder, results, summary)


if __name__ == "__main__":
    run_cli(main)
