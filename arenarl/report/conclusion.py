"""What a finished run means, in two lines computed from its summary, where its files are, and what to try next.

python -m arenarl.report.conclusion quickstart
"""

import argparse
import math
from pathlib import Path
from typing import Any

from arenarl.system.atomic_files import read_json
from arenarl.system.errors import UserError, guarded


def meaning(summary: dict[str, Any]) -> list[str]:
    """One line for what RL changed, one for what the figures can bear."""
    figures = summary["rl"].get("sampled") or summary["rl"]["greedy"]
    # pass@k has a k for each sample
    queries = math.ceil(figures["cases"] / max(map(len, figures.get("pass_at_k", {}).values()), default=1))
    judge = "the judge is simulated" if summary["judge"] == "simulated" else "a language model judged"
    limits = "the intervals say nothing about other seeds (--set seed=1) or other judges"
    return [
        "RL after SFT: " + "; ".join(f"{decoding} {_change(summary, decoding)}" for decoding in summary["rl"]) + ".",
        f"One seed, {queries} test queries, and {judge}: {limits}.",
    ]


def _change(summary: dict[str, Any], decoding: str) -> str:
    found = []
    for word, figure in (("wins", "win_rate"), ("accuracy", "accuracy")):
        before, after = (summary[name][decoding].get(figure) or {"mean": None} for name in ("sft", "rl"))
        # without stored baselines the first policy is what the others are compared with, and has no win rate itself
        if None not in (before["mean"], after["mean"]):
            found.append(f"{word} {_verdict(before, after)}")
    return ", ".join(found) or "no metric that both have"


def _verdict(before: dict[str, Any], after: dict[str, Any]) -> str:
    (low, high), (new_low, new_high) = before["ci"], after["ci"]
    apart = "the 95 % intervals do not overlap"
    if None in (low, new_low):
        verdict = "no interval: one query a subtask"
    elif new_low > high:
        verdict = f"higher, {apart}"
    else:
        verdict = f"lower, {apart}" if new_high < low else "the 95 % intervals overlap: no difference is shown"
    return f"{before['mean']:.1f} → {after['mean']:.1f} % ({verdict})"


def print_conclusion(run: str, found: Path = Path("results")) -> None:
    """For the run whose summary is in `found`/<run>."""
    results, folder = Path("results") / run, Path("runs") / run
    summary = read_json(found / run / "summary.json")
    if summary is None:
        raise UserError(f"{results / 'summary.json'} does not exist; ./reproduce.sh evaluate writes it")
    if {"sft", "rl"} <= summary.keys():
        print("", *meaning(summary), sep="\n")
    files = {
        results / "report.html": "open it in a browser: curves, every trajectory, every match",
        results / "summary.json": "all metrics, with intervals and provenance",
        folder: f"policies, checkpoints, trajectories; the curves in the terminal: wandb leet {folder}/wandb",
    }
    width = max(len(str(path)) for path in files)
    print("", *(f"{path!s:{width}}  {what}" for path, what in files.items()), sep="\n")
    if run.startswith("quickstart"):
        print("\nnext: ./reproduce.sh baselines    the paper's GRPO and GSPO rows, from the same SFT policy")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("run", help="the run's name in runs/ and results/")
    guarded(lambda: print_conclusion(parser.parse_args().run))
