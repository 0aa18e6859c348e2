"""Figures of a table, in the style of a run's figures (`report/figures.py`): every row with its interval and seeds,
learning curves, and, for a table with an axis, the series along the axis and against their cost."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from arenarl.report.figures import LINES, STYLE, plot_seeds, plot_with_bars, save_figure
from arenarl.report.summary import heading
from arenarl.studies import signal_figures
from arenarl.tables.rows import Table

Found = dict[str, dict[int, dict[str, Any]]]  # row -> seed -> run

FILES = {"win_rate": "win_rates"}
_SHIFT = 0.05  # along the axis, between the lines of a panel, so that their bars do not overlap


def draw(summary: dict[str, Any], table: Table, found: Found, folder: Path) -> list[str]:
    """Write the figures into `folder`, as PNG and SVG; return their names."""
    with mpl.rc_context(STYLE):
        figures = {FILES.get(table.figure, table.figure): all_rows(table, summary, found)}
        if table.axis:
            figures["axis"] = against_axis(table, summary)
            if _has_truth(summary):
                figures["cost"] = against_cost(table, summary)
        else:
            curves = {row: [run["curve"] for run in seeds.values() if run["curve"]] for row, seeds in found.items()}
            curves = {row: of for row, of in curves.items() if of}
            figures["curves"] = learning_curves(curves, table, summary)
            if any(row in curves for rows in table.curve_panels.values() for row in rows):
                figures["curve_panels"] = curve_panels(curves, table, summary)
        for name, figure in figures.items():
            save_figure(figure, folder / name)
    names = list(figures)
    if table.measure == "discrimination":
        for row, seeds in found.items():
            if seeds:
                signal_figures.draw([run["discrimination"] for run in seeds.values()], folder / f"signal_{row}")
                names.append(f"signal_{row}")
    return names


def all_rows(table: Table, summary: dict[str, Any], found: Found) -> Figure:
    """Plot a line for each row: mean and 95 % interval over seeds, and a tick for each seed."""
    rows = [row for row in summary["rows"] if row["seeds"]][::-1]
    figure = Figure(figsize=(8.0, 0.9 + 0.34 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        values = [run["figures"][table.figure] for run in found[row["row"]].values()]
        axes.plot(values, [place] * len(values), linestyle="", marker="|", color=LINES[1]["color"], markersize=7)
        low, high = row["ci"] if row["ci"][0] is not None else (row["mean"], row["mean"])
        bounds = [[row["mean"] - low], [high - row["mean"]]]
        axes.errorbar(row["mean"], place, xerr=bounds, color=LINES[0]["color"], marker="o", capsize=3)
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
    label = _axis_label(table, summary, " of sampled trajectories")
    axes.set_xlabel(f"{label}\ndot and bar: mean, 95 % over seeds; ticks: seeds")
    axes.set_title(summary["title"])
    return figure


def learning_curves(curves: dict[str, list[list[dict[str, Any]]]], table: Table, summary: dict[str, Any]) -> Figure:
    """Plot the panels over training, means over seeds; the reference has a band from its lowest to its highest seed."""
    panels = _panels(table, summary)
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    colours = mpl.colormaps["cividis"](np.linspace(0, 0.9, len(curves)))
    for axes, (name, title) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for place, (row, seeds) in enumerate(curves.items()):
            share, values = _curve(seeds, name)
            line = LINES[place % len(LINES)] | {"color": colours[place], "label": table.rows[row].label}
            if row == table.reference:
                plot_seeds(axes, share, values, **line)
            else:
                axes.plot(share, values.mean(axis=0), **line)
        axes.set_title(title)
        axes.set_xlabel("share of the training steps")
    _add_legend(figure)
    return figure


def curve_panels(curves: dict[str, list[list[dict[str, Any]]]], table: Table, summary: dict[str, Any]) -> Figure:
    """Plot the curves of the rows of each panel, means over seeds with a band from the lowest to the highest seed."""
    panels = table.curve_panels
    figure = Figure(figsize=(3.4 * len(panels), 3.2), layout="constrained")
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, rows) in zip(grid, panels.items(), strict=True):
        for row, line in _styles(rows).items():
            if row in curves:
                share, values = _curve(curves[row], table.figure)
                plot_seeds(axes, share, values, label=table.rows[row].label, **line)
        axes.set_title(title)
        axes.set_xlabel("share of the training steps")
        if axes.lines:
            axes.legend()
    grid[0].set_ylabel(_axis_label(table, summary))
    return figure


def _curve(seeds: list[list[dict[str, Any]]], name: str) -> tuple[list[float], np.ndarray]:
    """Return x (points,), the share of the training steps, and a metric's curves (seeds, points) of finished seeds.
    A point without the metric is NaN: without stored baselines, a curve has no win rates."""
    length = max(map(len, seeds))
    whole = [points for points in seeds if len(points) == length]
    values = np.array([[point.get(f"eval/sampled/{name}") for point in points] for points in whole], dtype=float)
    return [point["step"] / whole[0][-1]["step"] for point in whole[0]], values


def against_axis(table: Table, summary: dict[str, Any]) -> Figure:
    """Plot each figure (rows of panels) against the axis, a line for each series; bars are 95 % over seeds."""
    figures, styles = _panels(table, summary), _styles(row.series for row in table.rows.values())
    figure = Figure(figsize=(9.5, 2.8 * len(figures)), layout="constrained")
    grid = figure.subplots(len(figures), len(table.panels), sharex=True, sharey="row", squeeze=False)
    for row, (name, title) in zip(grid, figures.items(), strict=True):
        for axes, panel in zip(row, table.panels, strict=True):
            for series, points in _series(table, summary, panel).items():
                places = np.array(list(points)) + _SHIFT * (list(styles).index(series) - (len(styles) - 1) / 2)
                values = [point["figures"][name] for point in points.values()]  # a single seed has no bar
                plot_with_bars(axes, places, values, elinewidth=None, label=series, **styles[series])
            axes.set_title(f"{title}\n{panel}" if panel else title)
    grid[0, 0].set_xticks(sorted({row.at for row in table.rows.values() if row.at is not None}))
    figure.supxlabel(table.axis, fontsize="medium")
    _add_legend(figure)
    return figure


def against_cost(table: Table, summary: dict[str, Any]) -> Figure:
    """Plot true quality against a run's judge calls, a point for each row, marked by its series."""
    styles = _styles(row.series for row in table.rows.values())
    figure = Figure(figsize=(9.5, 3.2), layout="constrained")
    grid = figure.subplots(1, len(table.panels), sharex=True, sharey=True, squeeze=False)[0]
    for axes, panel in zip(grid, table.panels, strict=True):
        for series, points in _series(table, summary, panel).items():
            calls = [row["judge_calls"] for row in points.values()]
            quality = [row["figures"]["quality"]["mean"] for row in points.values()]
            axes.plot(calls, quality, label=series, **styles[series] | {"linestyle": ""})
        axes.set_title(f"true quality, 0 to 10\n{panel}" if panel else "true quality, 0 to 10")
    figure.supxlabel("judge calls of a run", fontsize="medium")
    _add_legend(figure)
    return figure


def _styles(names: Iterable[str | None]) -> dict[str, dict[str, Any]]:
    """Return a line style for each name. With more names than `LINES`, each has a colour of its own."""
    names = list(dict.fromkeys(filter(None, names)))
    colours = mpl.colormaps["cividis"](np.linspace(0, 0.9, len(names)))
    if len(names) <= len(LINES):
        return dict(zip(names, LINES, strict=False))
    return {name: LINES[place % len(LINES)] | {"color": colours[place]} for place, name in enumerate(names)}


def _add_legend(figure: Figure) -> None:
    """Add a legend with each label of any panel."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(list(handles.values()), list(handles), loc="outside right center")


def _series(table: Table, summary: dict[str, Any], panel: str | None) -> dict[str, dict[float, dict[str, Any]]]:
    """Return series -> place on the axis -> the row's summary, for the rows of a panel that were run."""
    series: dict[str, dict[float, dict[str, Any]]] = {}
    for row in sorted(summary["rows"], key=lambda row: table.rows[row["row"]].at or 0):
        point = table.rows[row["row"]]
        if row["seeds"] and point.series is not None and point.panel in (None, panel):
            series.setdefault(point.series, {})[point.at] = row
    return series


def _panels(table: Table, summary: dict[str, Any]) -> dict[str, str]:
    """Return figure -> title: the table's figure, and the true quality if there is a truth."""
    quality = {"quality": "true quality, 0 to 10"} if _has_truth(summary) else {}
    return {table.figure: _axis_label(table, summary)} | quality


def _has_truth(summary: dict[str, Any]) -> bool:
    return all("quality" in row["figures"] for row in summary["rows"] if row["seeds"])


def _axis_label(table: Table, summary: dict[str, Any], of: str = "") -> str:
    name = heading(table.figure).removesuffix(" %")
    judge = f", {' and '.join(summary['judge'])} judge" if table.figure == "win_rate" else ""
    return f"{name}{of}{judge}{', %' if heading(table.figure).endswith(' %') else ''}"
