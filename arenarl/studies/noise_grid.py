"""When does a tournament rank more accurately than as many pointwise scores? Every topology under every kind and
strength of noise.

    python -m arenarl.studies.noise_grid          # ./reproduce.sh fidelity --grid

Groups, judges and rankings are those of `fidelity`. Each figure is a tournament's tau minus that of the mean of as many
pointwise calls, over the same groups.

Writes results/ranking_fidelity/grid.json and a figure. Simulated throughout; not in the paper.
"""

import time
from itertools import product
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from arenarl.config.command_line import in_range
from arenarl.report import markdown
from arenarl.report.figures import LINES
from arenarl.studies import simulated_rankings as simulated
from arenarl.studies.simulated_rankings import NOISE, TOPOLOGIES, Row, format_params, pointwise_key, rows_with
from arenarl.system.errors import run_cli

STRENGTHS = (0.25, 0.5, 1.0, 1.5, 2.0)
RANKINGS = {"bracket": "by its own rules", "scores": "by the scores of its matches"}
METHODS = {  # rows of docs/tournament.md's table -> (topology, params, ranking)
    "seeded single elimination": ("seeded_single_elimination", "", "bracket"),
    "`balanced`, matches=2n-2": ("balanced", "matches=2n-2", "scores"),
}
COLOURS = [LINES[1]["color"], "white", LINES[0]["color"]]
DIVERGING = LinearSegmentedColormap.from_list("pointwise to tournament", COLOURS)


def cell_rows(kind: str, strength: float, size: int, groups: int, seed: int) -> list[Row]:
    """Return a row for each topology and ranking: its tau, the tau of as many pointwise calls, and the difference."""
    tallies = simulated.simulate(kind, strength, size, groups, seed)
    rows = []
    for (topology, params, ranking), tally in tallies.items():
        if topology != "pointwise":
            pointwise = tallies[pointwise_key(topology, params)]
            row = simulated.setting(kind, strength, size)
            row |= {"topology": topology, "params": params, "ranking": ranking}
            row |= {"judge_calls": tally.row()["judge_calls"], "tau": round(fmean(tally.tau), 4)}
            row |= {"pointwise_tau": round(fmean(pointwise.tau), 4)} | simulated.difference(tally, pointwise)
            rows.append(row)
    return rows


def run(size: int, groups: int, seed: int, processes: int) -> Row:
    """Return the rows of all cells. Every cell has its own seed, so the order of the cells does not matter."""
    jobs = [(cell_rows, *model, size, groups, seed) for model in product(NOISE, STRENGTHS)]
    results = simulated.run_jobs("noise grid", jobs, processes)
    return {"rows": [row for job in jobs for row in results[job]]}


def rows_of_method(grid: Row, topology: str, params: str, ranking: str) -> dict[tuple[str, float], Row]:
    """Return one method's rows by (kind, strength)."""
    rows = rows_with(grid["rows"], topology=topology, params=params, ranking=ranking)
    return {(row["noise"], row["strength"]): row for row in rows}


def markdown_table(grid: Row) -> str:
    """Return docs/tournament.md's table: tau minus the tau of as many pointwise calls, ± half the 95 % interval."""
    lines = []
    for method, key in METHODS.items():
        rows = rows_of_method(grid, *key)
        lines += [[method, kind, *(_format(rows[kind, strength]) for strength in STRENGTHS)] for kind in NOISE]
    return markdown.table(["tournament", "noise", *(f"{strength:g}" for strength in STRENGTHS)], lines)


def _format(row: Row) -> str:
    low, high = row["ci"]
    return f"{row['difference']:+.3f} ± {(high - low) / 2:.3f}"


def draw(grid: Row) -> Figure:
    """Draw a column of panels for each kind of noise, topologies by strengths. Above: ranked by a topology's own
    rules; below: by the scores of its matches."""
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    limit = max(abs(row["difference"]) for row in grid["rows"])
    axes = figure.subplots(len(RANKINGS), len(NOISE), sharex=True, sharey="row")
    topologies = [(name, format_params(params)) for name, params in TOPOLOGIES if "placement" not in params]
    for panels, ranking in zip(axes, RANKINGS, strict=True):
        methods = {method: rows for method in topologies if (rows := rows_of_method(grid, *method, ranking))}
        for panel, kind in zip(panels, NOISE, strict=True):
            cells = [[rows[kind, strength] for strength in STRENGTHS] for rows in methods.values()]
            image = _heatmap(panel, cells, limit)
            panel.set_title(kind if ranking == "bracket" else "")
        names = [f"{name} {params.removeprefix('matches=')}".strip().replace("_", " ") for name, params in methods]
        panels[0].set_yticks(range(len(names)), names)
        panels[0].set_ylabel(RANKINGS[ranking])
    size = grid["rows"][0]["group_size"]
    figure.supxlabel("strength of the noise, in standard deviations of quality (simulated)", fontsize=9)
    title = f"Kendall's tau less that of as many pointwise calls, by kind of noise, N={size}; in hundredths, "
    figure.suptitle(f"{title}grey where the 95 % interval holds 0", fontsize=10)
    figure.colorbar(image, ax=figure.axes, shrink=0.6)
    return figure


def _heatmap(panel: Axes, cells: list[list[Row]], limit: float) -> AxesImage:
    """Draw differences as colours, and as numbers in hundredths, which are grey where the interval contains 0."""
    values = np.array([[row["difference"] for row in line] for line in cells])
    for (y, x), value in np.ndenumerate(values):
        low, high = cells[y][x]["ci"]
        colour = "#999999" if low <= 0 <= high else "white" if abs(value) > 0.6 * limit else "black"
        panel.text(x, y, f"{round(100 * value):+d}", ha="center", va="center", fontsize=7, color=colour)
    panel.set_xticks(range(len(STRENGTHS)), [f"{strength:g}" for strength in STRENGTHS], fontsize=8)
    panel.tick_params(length=0)
    panel.grid(visible=False)
    return panel.imshow(values, cmap=DIVERGING, vmin=-limit, vmax=limit, aspect="auto")


def main() -> None:
    parser = simulated.study_parser(__doc__, "groups in a cell")
    parser.add_argument("--size", type=in_range(int, 3), default=8, help="group size")
    arguments = parser.parse_args()
    start = time.perf_counter()
    results = run(arguments.size, arguments.groups, arguments.seed, arguments.processes)
    results = {"seconds": round(time.perf_counter() - start)} | results
    grid = simulated.write_study(arguments, "grid.json", results, "noise_grid", draw)
    print("Kendall's tau minus that of as many pointwise calls, by the strength of the noise; ± half the 95 % interval")
    print(markdown_table(grid))
    written = f"{arguments.out}/grid.json, noise_grid.png and .svg"
    print(f"groups and judges are simulated; {grid['seconds']} s; written: {written}")


if __name__ == "__main__":
    run_cli(main, goes_on=False)
