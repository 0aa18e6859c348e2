"""What the judge that only watches saw during RL (`judge.watch`), beside the judge that trains:
for the summary, the terminal and the page.

Reads runs/<run>/rl/watch.jsonl, a line for each group that was watched. A rise is the mean over the last quarter of the
groups less that over the first, with its 95 % interval by the normal approximation; of scores, those of trajectories
count that both judges scored.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from arenarl.config.schema import SIMULATED_MODEL, Config
from arenarl.system.atomic_files import read_json
from arenarl.trajectory import read_jsonl

Points = dict[str, list[tuple[int, float]]]  # figure -> (optimizer step, value) of each group that has one, by step


def watched_points(folder: Path) -> Points:
    """What `judge.watch` left in RL's folder: `watching` and `training`, the two judges' mean scores of a group, and
    `agreement`, tau-b of its rewards and the watching judge's scores. Empty where nobody watched."""
    points: Points = {}
    for record in _records(folder):
        both = [pair for pair in zip(record["scores"], record["judged"], strict=True) if None not in pair]
        if both:
            for figure, scores in zip(("watching", "training"), zip(*both, strict=True), strict=True):
                points.setdefault(figure, []).append((record["step"], fmean(scores)))
        if record["agreement"] is not None:
            points.setdefault("agreement", []).append((record["step"], record["agreement"]))
    return points


def watch_summary(config: Config) -> dict[str, Any]:
    """The part `watch` of results/<run>/summary.json; empty where nobody watched."""
    folder = config.run_dir / "rl"
    records = _records(folder)
    if not records:
        return {}
    rises = {figure: _rise([value for _, value in points]) for figure, points in watched_points(folder).items()}
    calls = {name: sum(record[name] for record in records) for name in ("calls", "failed")}
    summary = {"judge": _judge(config, folder), "groups": len(records), **calls}
    return summary | {figure: rise for figure, rise in rises.items() if rise}


def _judge(config: Config, folder: Path) -> str:
    """By RL's provenance: evaluation may be told of another."""
    watch = config.judge.watch
    (noted,) = (read_json(folder / "provenance.json") or {}).get("judge_watch") or [
        watch.model if watch.name == "llm" else watch.name
    ]
    name = noted["model"] if isinstance(noted, dict) else noted
    return "simulated" if name in ("embedded", SIMULATED_MODEL) else name


def watch_lines(watch: dict[str, Any]) -> list[str]:
    """`watch_summary` in words."""
    asked = f"{watch['groups']} groups, {watch['failed']} of {watch['calls']} calls without a verdict"
    names = {"training": "the training judge's score", "watching": "its own"}
    names["agreement"] = "tau of its scores and the rewards"
    rises = [f"{name} {_in_words(watch[figure])}" for figure, name in names.items() if figure in watch]
    found = "; ".join(rises) or "too few groups to compare"
    lines = [f"watching judge ({watch['judge']}; {asked}), first to last quarter: {found}"]
    if "training" in watch and watch["training"]["ci"][0] > 0 and watch["watching"]["ci"][0] <= 0:
        only = "the training judge's score rises and no rise of the watching judge's is seen"
        lines.append(f"{only}: look at what the policy learns to please it with")
    return lines


def _records(folder: Path) -> list[dict[str, Any]]:
    path = folder / "watch.jsonl"
    return sorted(read_jsonl(path), key=lambda record: record["step"]) if path.is_file() else []


def _rise(values: Sequence[float]) -> dict[str, Any] | None:
    """None with fewer than two values a quarter."""
    quarter = len(values) // 4
    if quarter < 2:
        return None
    first, last = values[:quarter], values[-quarter:]
    rise, margin = fmean(last) - fmean(first), 1.96 * ((variance(first) + variance(last)) / quarter) ** 0.5
    bounds = [round(rise - margin, 4), round(rise + margin, 4)]
    return {"first": round(fmean(first), 4), "last": round(fmean(last), 4), "ci": bounds}


def _in_words(rise: dict[str, Any]) -> str:
    low, high = rise["ci"]
    return f"{rise['first']:.2f} → {rise['last']:.2f} ({rise['last'] - rise['first']:+.2f} [{low:+.2f}, {high:+.2f}])"
