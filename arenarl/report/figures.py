"""Figures of a run in one style, as PNG and SVG: learning curves, win rate by subtask and by length, the judge's noise
against the spread of quality, and the effect of more turns and samples at test time.

`python -m arenarl.report RUN` writes them to runs/<run>/figures. Lines differ in marker and style as well as colour,
so figures can be read in grey. The same data gives the same bytes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from arenarl.report.summary import baseline_name, judge_label, policies_of
from arenarl.report.watching import Points, watch_lines, watched_points
from arenarl.system.atomic_files import read_json
from arenarl.trajectory import read_steps

STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so all machines draw the same
    "text.parse_math": False,  # names may contain dollar signs
    "svg.hashsalt": "arenarl",  # without it, ids in the SVG are random
    "font.size": 9, "axes.titlesize": 10, "axes.titlelocation": "left", "axes.edgecolor": "#666666",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#dddddd",
    "grid.linewidth": 0.6, "lines.linewidth": 1.6, "lines.markersize": 4.5, "legend.frameon": False,
    "figure.dpi": 110, "savefig.dpi": 160,
}  # fmt: skip
LINES = [  # alternately dark and light; marker and style differ too
    {"color": "#0b4f8a", "linestyle": "-", "marker": "o"},
    {"color": "#d9730d", "linestyle": "--", "marker": "s"},
    {"color": "#4a9a7c", "linestyle": "-.", "marker": "^"},
    {"color": "#8e4585", "linestyle": ":", "marker": "D"},
    {"color": "#555555", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
]
PANELS = {  # figure → title of its learning curve; without an entry, its name
    "win_rate": "win rate, {judge}, %",
    "quality": "true quality, 0 to 10",
    "valid_rate": "valid, %",
    "groundedness": "facts grounded, %",
    "constraints_met": "constraints met, %",
    "tool_calls": "tool calls",
    "repeated_calls": "tool calls that repeat an earlier one, %",
    "accuracy": "accuracy on closed questions, %",
    "entity_recall": "entities found, closed questions, %",
    "facts_covered": "facts covered, open-ended queries, %",
    "length_of_asked": "length, % of the request",
    "world_reward": "the environment's reward",
}
TRAINING = {  # metric of training → title of its panel
    "rollout/reward": "reward",
    "kl": "KL from the start of RL, per token",
    "entropy": "entropy, per token",
    "completions/mean_length": "length, the policy's tokens",
    "grad_norm": "gradient norm",
    "judge/failure_rate": "judge calls without a verdict",
}
# (title, unit of x) → policy → (x, figures)
Panels = dict[tuple[str, str], dict[str, tuple[list, list[dict[str, Any]]]]]
Curve = list[dict[str, Any]]  # the points of curve.jsonl
MISSING = {"mean": None, "ci": [None, None]}


def draw_figures(run_dirs: Sequence[Path], summary: dict[str, Any], folder: Path) -> dict[str, Path]:
    """Draw all figures that the run has data for; return caption → SVG in the report's order.
    `run_dirs` has the run's folder, then the folders of the same run with other seeds."""
    with mpl.rc_context(STYLE):
        figures = list(_figures(run_dirs, summary))
        return {caption: save_figure(figure, folder / name) for name, figure, caption in figures}


def _figures(run_dirs: Sequence[Path], summary: dict[str, Any]) -> Iterator[tuple[str, Figure, str]]:
    """Yield (name, figure, caption) for each figure that the run has data for."""
    judge, baseline = f"{summary['judge']} judge", baseline_name(summary)
    bars = "Bars: 95 % over test queries; one seed."
    smoothed = "Thin: single steps; thick: mean of the last ten."
    if curves := read_curves(run_dirs):
        figure, bands = learning_curves(curves, judge)
        yield "learning_curves", figure, f"Learning curves on held-out queries; win rate by the {judge}. {bands}"
    caption = f"Win rate against {baseline} by the {judge}. {bars}"
    yield "win_rate_by_subtask", win_rate_by_subtask(summary, judge), caption
    if panels := length_panels(summary, judge):
        caption = f"Win rate by the {judge} against length relative to {baseline}'s. {bars}"
        yield "win_rate_by_length", draw_panels(panels, is_log=False), caption
    if panels := scaling_panels(summary, judge):
        caption = f"Effect of more turns and samples at test time; wins are over {baseline}. {bars}"
        yield "inference_scaling", draw_panels(panels, is_log=True), caption
    log = training_log(run_dirs[0] / "rl")
    if any(_logged(log, name) for name in TRAINING):
        caption = f"Training. Rewards from ranks have a mean of ½ by construction. {smoothed}"
        yield "training_curves", training_curves(log), caption
    if _logged(log, "true/quality_spread"):
        trainer = judge_label(summary["provenance"]["judge_is_simulated"])
        caption = f"Spread of true quality within a group, and the noise of the {trainer}. {smoothed}"
        yield "noise_against_spread", noise_against_spread(log, trainer), caption
    if points := watched_points(run_dirs[0] / "rl"):
        caption = f"The training judge and the watching judge on the same trajectories. {smoothed}"
        lines = watch_lines(summary["watch"]) if "watch" in summary else []
        yield "watching_judge", watching_judge(points), ". ".join([caption.removesuffix("."), *lines]) + "."


def learning_curves(curves: Sequence[Curve], judge: str) -> tuple[Figure, str]:
    """Draw the curves during RL from one list of points per seed, all at the same steps.
    Also return a sentence on the meaning of the bands."""
    keys = {key for points in curves for point in points for key in point}  # a point may lack some
    decodings = [decoding for decoding in ("sampled", "greedy") if f"eval/{decoding}/win_rate" in keys]
    figure = draw_curves({decoding: (curves, decoding) for decoding in decodings}, judge)
    if len(curves) > 1:
        return figure, f"Mean of {len(curves)} seeds, bands from the lowest to the highest."
    return figure, "Bands: 95 % over test queries; one seed." if "ci" in curves[0][0] else "One seed."


def draw_curves(lines: dict[str, tuple[Sequence[Curve], str]], judge: str) -> Figure:
    """Draw a panel for each figure of the curves that has a value in any of them, as the win rate has none without
    stored baselines. `lines` maps a label to the curves of its seeds, and a decoding."""
    curves, decoding = next(iter(lines.values()))
    keys = dict.fromkeys(key for points in curves for point in points for key in point)
    names = [key.rpartition("/")[2] for key in keys if key.startswith(f"eval/{decoding}/")]
    names = [name for name in names if _has_values(lines, name)] or names
    figure, panels = _panels(len(names))
    for axes, name in zip(panels, names, strict=True):
        for k, (label, (curves, decoding)) in enumerate(lines.items()):
            _plot_curve(axes, curves, f"eval/{decoding}/{name}", label=label, **LINES[k % len(LINES)])
        axes.set_title(PANELS[name].format(judge=judge) if name in PANELS else drawable(name))
    panels[0].legend()
    return figure


def _has_values(lines: dict[str, tuple[Sequence[Curve], str]], name: str) -> bool:
    points = [(point, decoding) for curves, decoding in lines.values() for points in curves for point in points]
    return any(point.get(f"eval/{decoding}/{name}") is not None for point, decoding in points)


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with this number of panels over optimizer steps, three in a row, or four if fewer stay empty."""
    columns = min((3, 4), key=lambda columns: -count % columns)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(3.2 * columns, 2.6 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, sharex=True).flat)
    for unused in panels[count:]:
        unused.remove()
    for axes in panels[:count][-columns:]:
        axes.set_xlabel("optimizer step")
        axes.tick_params(labelbottom=True)  # also where the panel below stays empty
    return figure, panels[:count]


def _plot_curve(axes: Axes, curves: Sequence[Curve], key: str, **line: Any) -> None:
    """Plot the mean over seeds with their range, or the only seed with its interval."""
    steps = [point["step"] for point in curves[0]]
    by_seed = [{point["step"]: point for point in points} for points in curves]
    values = np.array([[points[step].get(key) for step in steps] for points in by_seed], dtype=float)
    if len(curves) > 1:
        plot_seeds(axes, steps, values, **line)
    else:
        plot_band(axes, steps, values[0], _interval(by_seed[0], steps, key), **line)


def plot_seeds(axes: Axes, x: Sequence[float], values: np.ndarray, **line: Any) -> None:
    """Plot the mean over seeds of `values` (seeds, points), with a band from the lowest to the highest seed."""
    plot_band(axes, x, values.mean(axis=0), (values.min(axis=0), values.max(axis=0)), **line)


def plot_band(axes: Axes, x: Sequence[float], values: np.ndarray, bounds: Sequence[np.ndarray], **line: Any) -> None:
    """Plot a line with a band; `bounds` are its lower and upper edge."""
    axes.plot(x, values, **line)
    axes.fill_between(x, *bounds, color=line["color"], alpha=0.18, linewidth=0)


def _interval(points: dict[int, dict[str, Any]], steps: list[int], key: str) -> np.ndarray:
    """Return the bounds of each point's interval, (2, steps); NaN without an interval."""
    return np.array([points[step].get("ci", {}).get(key, (None, None)) for step in steps], dtype=float).T


def win_rate_by_subtask(summary: dict[str, Any], judge: str) -> Figure:
    """Draw each policy's win rate and interval, by subtask."""
    policies = policies_of(summary)
    subtasks = list(next(iter(policies.values()))["by_subtask"])
    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    axes = figure.subplots()
    for k, (policy, results) in enumerate(policies.items()):
        figures = [results["by_subtask"][subtask]["win_rate"] for subtask in subtasks]
        places = np.arange(len(subtasks)) + (k - (len(policies) - 1) / 2) * 0.16
        style = {key: LINES[k % len(LINES)][key] for key in ("color", "marker")}
        plot_with_bars(axes, places, figures, label=policy, linestyle="", markersize=6, elinewidth=None, **style)
    axes.axhline(50, color="#666666", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(subtasks)), map(drawable, subtasks))
    axes.set_title(f"win rate, {judge}, % (50: as good as {baseline_name(summary)})")
    axes.grid(visible=False, axis="x")
    axes.legend(ncols=min(5, len(policies)), loc="upper center", bbox_to_anchor=(0.5, -0.08))
    return figure


def length_panels(summary: dict[str, Any], judge: str) -> Panels:
    """Return the panels for the summary's `by_length`; empty for an older summary without it."""
    titles = {"win_rate": f"win rate, {judge}, %", "quality": PANELS["quality"], "share": "share of the answers, %"}
    by_policy = {policy: figures.get("by_length", {}) for policy, figures in policies_of(summary).items()}
    panels: Panels = {}
    for figure, title in titles.items():
        for policy, classes in by_policy.items():
            if any(figure in values for values in classes.values()):
                curve = list(classes), [values.get(figure, MISSING) for values in classes.values()]
                panels.setdefault((title, "length relative to the baseline's"), {})[policy] = curve
    return panels


def scaling_panels(summary: dict[str, Any], judge: str) -> Panels:
    """Return the panels for `evaluate.max_turns` and `evaluate.samples`; empty if they are not set."""
    panels: Panels = {}
    titles = {"win": f"win, {judge}", "constraints": "all constraints met", "accuracy": "accuracy"}
    for policy, figures in policies_of(summary).items():
        if by_turns := figures.get("by_turns"):
            curve = list(map(int, by_turns)), [values["win_rate"] for values in by_turns.values()]
            panels.setdefault((f"win rate, {judge}, %", "turns, at most"), {})[policy] = curve
        for success, values in (figures.get("pass_at_k") or {}).items():
            title = f"pass@k, {titles.get(success) or drawable(success)}, %"
            panels.setdefault((title, "k, samples"), {})[policy] = (list(range(1, len(values) + 1)), values)
    return panels


def draw_panels(panels: Panels, is_log: bool) -> Figure:
    """Draw panels side by side, with one style per policy; x is logarithmic or has classes of answers by length.
    Turns at test time are Fig. 8, AgentGym-RL; pass@k is its Fig. 9. A class without answers has no point."""
    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    policies = list(dict.fromkeys(policy for curves in panels.values() for policy in curves))
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, ((title, unit), curves) in zip(grid, panels.items(), strict=True):
        for policy, (x, values) in curves.items():
            k = policies.index(policy)
            places = x if is_log else np.arange(len(x)) + (k - (len(policies) - 1) / 2) * 0.12
            plot_with_bars(axes, places, values, label=policy, **LINES[k % len(LINES)])
        if is_log:
            axes.set_xscale("log", base=2)
            ticks = x if len(x) <= 6 else [k for k in x if k & (k - 1) == 0]
            axes.set_xticks(ticks, map(str, ticks), minor=False)
            axes.minorticks_off()
        else:
            axes.set_xticks(range(len(x)), [name.replace(" to ", "-") for name in x], fontsize=7)
        axes.set_title(title)
        axes.set_xlabel(unit)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=min(5, len(labels)), loc="outside lower center")
    return figure


def plot_with_bars(
    axes: Axes, places: Sequence[float], values: Sequence[dict[str, Any]], elinewidth: float | None = 0.8, **line: Any
) -> None:
    """Plot a line through figures with their intervals."""
    means = np.array([value["mean"] for value in values], dtype=float)
    bounds = np.array([value["ci"] for value in values], dtype=float).T
    axes.errorbar(places, means, abs(bounds - means), capsize=2, elinewidth=elinewidth, **line)


def training_curves(log: Sequence[dict[str, Any]]) -> Figure:
    """Draw the metrics in `TRAINING` that the log has, a panel each."""
    points = {name: of_metric for name in TRAINING if (of_metric := _logged(log, name))}
    figure, panels = _panels(len(points))
    for axes, (name, of_metric) in zip(panels, points.items(), strict=True):
        _plot_smoothed(axes, of_metric, label=name, **LINES[0])
        axes.set_title(TRAINING[name])
    return figure


def noise_against_spread(log: Sequence[dict[str, Any]], judge: str) -> Figure:
    """Draw the true spread of quality within a group, and the judge's noise estimated from its scores."""
    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    axes = figure.subplots()
    names = {
        "true/quality_spread": "quality in a group, noise-free",
        "judge/sigma_quality": "quality, estimated from the scores",
        "judge/sigma_noise": "noise of one score",
        "judge/sigma_shared": "noise shared by a call's two scores",
    }
    for (key, label), line in zip(names.items(), LINES, strict=False):
        if points := _logged(log, key):
            _plot_smoothed(axes, points, label=label, **line)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("optimizer step")
    axes.set_title(f"standard deviation, {judge}, points of 10")
    axes.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    return figure


def watching_judge(points: Points) -> Figure:
    """Draw both judges' mean scores, and the agreement of the rewards with the watching judge's scores."""
    figure = Figure(figsize=(9.5, 3.4), layout="constrained")
    panels = figure.subplots(1, 2)
    names = {"training": "training judge", "watching": "watching judge", "agreement": "rewards and watching judge"}
    for (key, label), line, axes in zip(names.items(), LINES, (panels[0], panels[0], panels[1]), strict=False):
        if key in points:
            steps, values = map(np.array, zip(*points[key], strict=True))
            means = [(step, values[steps == step].mean()) for step in np.unique(steps)]
            _plot_smoothed(axes, means, label=label, **line)
            axes.legend()
    panels[0].set_title("mean score, 0 to 10")
    panels[1].set_title("Kendall's tau-b within a group, mean")
    for axes in panels:
        axes.set_xlabel("optimizer step")
    return figure


def _logged(log: Sequence[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    """Return (step, value) of a metric. Steps without a finite value, which JSON lacks, are left out."""
    return [(entry["step"], entry[name]) for entry in log if entry.get(name) is not None]


def _plot_smoothed(axes: Axes, points: Sequence[tuple[float, float]], label: str, **line: Any) -> None:
    steps, values = map(np.array, zip(*points, strict=True))
    means = [values[max(0, k - 9) : k + 1].mean() for k in range(len(values))]
    axes.plot(steps, values, color=line["color"], linewidth=0.6, alpha=0.3)
    axes.plot(steps, means, label=label, markevery=max(1, len(steps) // 8), **line)


def drawable(name: str) -> str:
    """Return a name with blanks for characters that fonts and SVG lack, such as control characters."""
    return "".join(character if character.isprintable() else " " for character in name)


@dataclass(frozen=True)
class _State:
    """Content of the trainer's state in a checkpoint."""

    log_history: list[dict[str, Any]]


def training_log(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics logged per step, from an offline method's metrics.jsonl or the newest checkpoint's log.
    Empty if `folder` has neither."""
    if (folder / "metrics.jsonl").is_file():
        return list(read_steps(folder / "metrics.jsonl"))
    states = {path.parent.name.partition("-")[2]: path for path in folder.glob("checkpoint-*/trainer_state.json")}
    last = max(filter(str.isdecimal, states), key=int, default=None)  # others are the user's own copies
    return read_json(states[last], _State, "restore it, or delete its folder").log_history if last else []


def save_figure(figure: Figure, path: Path) -> Path:
    """Write <path>.png and <path>.svg without dates and version strings; return the SVG's path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_suffix(".png"), metadata={"Software": None})
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None, "Creator": None})
    return path.with_suffix(".svg")


def read_curves(run_dirs: Sequence[Path]) -> list[Curve]:
    """Return the first run's curve, and the curves of all other runs that have the same steps; empty without a point
    of the first run."""
    paths = [run_dir / "rl" / "curve.jsonl" for run_dir in run_dirs]
    first, *others = [list(read_steps(path)) if path.is_file() else [] for path in paths]
    steps = [point["step"] for point in first]
    return [first, *(curve for curve in others if [point["step"] for point in curve] == steps)] if first else []
