"""Scores of a watching judge during RL (`judge.watch`) beside the training judge's: for summary, terminal and page.

Reads runs/<run>/rl/watch.jsonl, one line per watched group. A rise is the mean over the last quarter of the groups
minus the mean over the first quarter, with its 95 % interval by the normal approximation. Scores count only for
trajectories that both judges scored.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from arenarl.config.schema import SIMULATED_MODEL, Config
from arenarl.system.atomic_files import read_json
from arenarl.trajectory import read_steps

Points = dict[str, list[tuple[int, float]]]  # figure → (optimizer step, value) of each group with a value, by step


def watched_points(folder: Path) -> Points:
    """Return the points to plot from RL's folder; empty without a watching judge. `watching` and `training` are the
    judges' mean scores of a group, `agreement` is tau-b between its rewards and the watching judge's scores."""
    points: Points = {}
    for record in _records(folder):
        both = [pair for pair in zip(record["scores"], record["judged"], strict=True) if None not in pair]
        if both:
            for figure, scores in zip(("watching", "training"), zip(*both, strict=True), strict=True):
                points.setdefault(figure, []).append((record["step"], fmean(scores)))
        if record["agreement"] is not None:
            points.setdefault("agreement", []).append((record["step"], record["agreement"]))
    return points


def watched_series(folder: Path) -> dict[str, list[float]]:
    """Return the watched steps, and the mean score of their groups by both judges: `step`, `training`, `watching`.
    All are empty if no trajectory has both scores."""
    points, series = watched_points(folder), {"step": []}
    for judge in ("training", "watching"):
        by_step: dict[int, list[float]] = {}
        for step, score in points.get(judge, ()):
            by_step.setdefault(step, []).append(score)
        series |= {"step": list(by_step), judge: [round(fmean(scores), 4) for scores in by_step.values()]}
    return series


def last_quarter(values: Sequence[float]) -> Sequence[float]:
    """Return the last quarter of the values, rounded down, but at least one value if there is one.

    >>> last_quarter([1, 2, 3, 4, 5, 6, 7, 8, 9]), last_quarter([1, 2])
    ([8, 9], [2])
    """
    return values[-max(1, len(values) // 4) :]


def watch_summary(config: Config) -> dict[str, Any]:
    """Return the section `watch` of runs/<run>/summary.json; empty without a watching judge."""
    folder = config.run_dir / "rl"
    records = _records(folder)
    if not records:
        return {}
    rises = {figure: _rise([value for _, value in points]) for figure, points in watched_points(folder).items()}
    calls = {name: sum(record[name] for record in records) for name in ("calls", "failed")}
    summary = {"judge": _judge_name(config, folder), "groups": len(records), **calls}
    return summary | {figure: rise for figure, rise in rises.items() if rise}


def _judge_name(config: Config, folder: Path) -> str:
    """Return the watching judge's name from RL's provenance, because evaluation's config may name another judge."""
    watch, provenance = config.judge.watch, read_json(folder / "provenance.json", dict[str, Any]) or {}
    (judge,) = provenance.get("judge_watch") or [watch.model if watch.name == "llm" else watch.name]
    name = judge["model"] if isinstance(judge, dict) else judge
    return "simulated" if name in ("embedded", SIMULATED_MODEL) else name


def watch_lines(watch: dict[str, Any]) -> list[str]:
    """Return `watch_summary` in words, with a warning if only the training judge's score rises significantly."""
    calls = f"{watch['groups']} groups, {watch['failed']} of {watch['calls']} calls without a verdict"
    names = {"training": "the training judge's score", "watching": "its own score"}
    names["agreement"] = "tau between its scores and the rewards"
    rises = [f"{name} {_in_words(watch[figure])}" for figure, name in names.items() if figure in watch]
    result = "; ".join(rises) or "too few groups to compare"
    lines = [f"watching judge ({watch['judge']}; {calls}), first to last quarter: {result}"]
    if "training" in watch and watch["training"]["ci"][0] > 0 and watch["watching"]["ci"][0] <= 0:
        finding = "the training judge's score rises, but the watching judge's does not rise significantly"
        lines.append(f"{finding}: check what the policy does to please the training judge")
    return lines


def _records(folder: Path) -> list[dict[str, Any]]:
    path = folder / "watch.jsonl"
    return sorted(read_steps(path), key=lambda record: record["step"]) if path.is_file() else []


def _rise(values: Sequence[float]) -> dict[str, Any] | None:
    """Return the means of first and last quarter, and the rise's interval; None with under two values a quarter."""
    last = last_quarter(values)
    if len(last) < 2:
        return None
    first = values[: len(last)]
    rise, margin = fmean(last) - fmean(first), 1.96 * ((variance(first) + variance(last)) / len(last)) ** 0.5
    bounds = [round(rise - margin, 4), round(rise + margin, 4)]
    return {"first": round(fmean(first), 4), "last": round(fmean(last), 4), "ci": bounds}


def _in_words(rise: dict[str, Any]) -> str:
    low, high = rise["ci"]
    return f"{rise['first']:.2f} → {rise['last']:.2f} ({rise['last'] - rise['first']:+.2f} [{low:+.2f}, {high:+.2f}])"
