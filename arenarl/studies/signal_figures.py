"""Table and figure of the results of `signal_and_noise`, for one run or over a table's seeds (Fig. 1a, ArenaRL)."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from arenarl.report import markdown
from arenarl.report.figures import LINES, STYLE, plot_seeds, save_figure

Rows = dict[int, dict[str, Any]]  # step -> row of `signal_and_noise.measure`

SIGNALS = {  # orders of a group -> label
    "quality": "the truth itself",
    "ranks": "tournament",
    "as_many_calls": "pointwise, as many calls",
    "mean_of_rounds": "pointwise, mean of all rounds",
    "one_round": "pointwise, one round",
    "answer_mean_of_rounds": "answer only, mean of all rounds",
    "answer_one_round": "answer only, one round",
}
SHOWN = ("ranks", "as_many_calls", "one_round", "answer_one_round")  # signals in tables and figures
PROPERTIES = {  # properties that an order is compared with -> label; the figures of the domain's truth come after
    "quality": "true quality",
    "answer_chars": "answer length",
    "tool_calls": "tool calls",
}
SEEN = {"trajectory": "whole trajectory", "answer": "answer only"}  # by the judge, when it scores pointwise


def step_figures(row: dict[str, Any]) -> dict[str, float | None]:
    """Return a step's figures for a table, by heading. Spread and noise are measured on scores of whole trajectories.
    A figure is None if no group counts or a stored row lacks it."""
    spread = row["trajectory"]
    return {
        "distinct": row["calls"]["one_round"],  # trajectories a group
        "groups counted": spread.get("groups"),
        "sigma_quality": row["sigma_quality"],
        "sigma_group": spread["sigma_group"],
        "sigma_noise": spread["sigma_noise"],
        "SNR": spread["snr"],
        **{f"tau: {SIGNALS[name]}": row["tau"][name]["quality"] for name in SHOWN},
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table with a line for each step."""
    if not rows:
        return ""
    lines = [(row["step"], row["groups"], *step_figures(row).values()) for row in rows]
    cells = [["-" if figure is None else str(figure) for figure in line] for line in lines]
    return markdown.table(["step", "groups", *step_figures(rows[0])], cells)


def draw(rows_by_seed: Sequence[list[dict[str, Any]]], path: Path) -> Path:
    """Plot spread and noise over training, agreement with the truth, and the signals' tau to each property.

    Lines are means over seeds at the steps that all seeds have; bands go from the lowest to the highest seed.
    `rows_by_seed` holds `measure`'s rows of each seed. Returns the SVG.
    """
    by_seed = [{row["step"]: row for row in rows} for rows in rows_by_seed]
    steps = sorted(set.intersection(*map(set, by_seed)))
    seeds = f"{len(by_seed)} seeds: mean, lowest to highest" if len(by_seed) > 1 else "one seed"
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.5, 6.6), layout="constrained")
        (whole, answer), (truth, bias) = figure.subplots(2, 2)
        for axes, seen in zip((whole, answer), SEEN, strict=True):
            lines = {"spread in a group, one round": (seen, "sigma_group"), "noise of one score": (seen, "sigma_noise")}
            _plot_lines(axes, by_seed, steps, lines | {"spread of the true quality": ("sigma_quality",)})
            axes.set_ylim(bottom=0)
            axes.set_title(f"standard deviation, {SEEN[seen]}, points of 10")
        _plot_lines(truth, by_seed, steps, {SIGNALS[name]: ("tau", name, "quality") for name in SHOWN})
        truth.set_title("Kendall's tau to the true quality")
        for axes in (whole, answer, truth):
            axes.set_xlabel("optimizer step")
            axes.legend(fontsize=8)
        _plot_properties(bias, by_seed, steps[-1])
        figure.suptitle(f"What a judge tells apart ({seeds})", fontsize=10)
        return save_figure(figure, path)


def _plot_lines(axes: Axes, by_seed: Sequence[Rows], steps: list[int], lines: dict[str, tuple[str, ...]]) -> None:
    axes.set_xticks(steps)
    for (label, keys), line in zip(lines.items(), LINES, strict=False):
        values = np.array([[_value(rows[step], *keys) for step in steps] for rows in by_seed])
        plot_seeds(axes, steps, values, label=label, **line)


def _plot_properties(axes: Axes, by_seed: Sequence[Rows], step: int) -> None:
    """Plot each signal's tau to each property at a step, next to that of the true quality."""
    names = ("quality", *SHOWN)
    properties = list(by_seed[0][step]["tau"]["quality"])
    for k, name in enumerate(names):
        values = np.array([[_value(rows[step], "tau", name, key) for key in properties] for rows in by_seed])
        means = values.mean(axis=0)
        places = np.arange(len(properties)) + (k - (len(names) - 1) / 2) * 0.15
        bounds = np.array([values.min(axis=0), values.max(axis=0)])
        style = {key: LINES[k][key] for key in ("color", "marker")} | {"linestyle": "", "capsize": 2}
        axes.errorbar(places, means, abs(bounds - means), label=SIGNALS[name], **style)
    axes.axhline(0, color="#666666", linewidth=0.8, linestyle=":")
    labels = [PROPERTIES.get(name, name.replace("_", " ")).replace(" ", "\n") for name in properties]
    axes.set_xticks(range(len(properties)), labels)
    axes.grid(visible=False, axis="x")
    axes.set_title(f"Kendall's tau to …, step {step}")
    axes.legend(fontsize=8)


def _value(row: dict[str, Any], *keys: str) -> float:
    for key in keys:
        row = row[key]
    return math.nan if row is None else row
