"""Where is a tournament truer than as many pointwise scores? Every topology under every kind of noise, weak to strong.

    python -m arenarl.studies.noise_grid          # ./reproduce.sh fidelity --grid

Groups, judges and rankings are those of `fidelity`. What counts here is tau of a tournament less tau of the mean of as
many pointwise calls, over the same groups.

Writes results/ranking_fidelity/grid.json and the figure. Simulated throughout; not in the paper.
"""

import time
from itertools import product
from statistics import fmean
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from arenarl.config.command_line import at_least
from arenarl.report import markdown
from arenarl.report.figures import LINES, STYLE, save_figure
from arenarl.report.provenance import commit
from arenarl.studies import simulated_rankings as simulated
from arenarl.studies.simulated_rankings import NOISE, TOPOLOGIES, difference, format_params, pointwise_key, simulate
from arenarl.system.atomic_files import write_text

STRENGTHS = (0.25, 0.5, 1.0, 1.5, 2.0)
RANKINGS = {"bracket": "by its own rules", "scores": "by the scores of its matches"}
METHODS = {  # rows of docs/tournament.md's table -> (topology, params, ranking)
    "seeded single elimination": ("seeded_single_elimination", "", "bracket"),
    "`balanced`, matches=2n-2": ("balanced", "matches=2n-2", "scores"),
}
COLOURS = [LINES[1]["color"], "white", LINES[0]["color"]]
DIVERGING = LinearSegmentedColormap.from_list("pointwise to tournament", COLOURS)


def cell(*settings: Any) -> tuple[list[dict[str, Any]], float]:
    """`cell_rows`, and the seconds of a core that they took."""
    start = time.process_time()
    return cell_rows(*settings), time.process_time() - start


def cell_rows(kind: str, strength: float, size: int, groups: int, seed: int) -> list[dict[str, Any]]:
    """A row for each topology and ranking: its tau, that of as many pointwise calls, and the difference."""
    tallies = simulate(kind, strength, size, groups, seed)
    rows = []
    for (topology, params, ranking), tally in tallies.items():
        if topology != "pointwise":
            pointwise = tallies[pointwise_key(topology, params)]
            row = {"noise": kind, "strength": strength, "group_size": size}
            row |= {"topology": topology, "params": params, "ranking": ranking}
            taus = {"tau": round(fmean(tally.tau), 4), "pointwise_tau": round(fmean(pointwise.tau), 4)}
            rows.append(row | {"judge_calls": tally.row()["judge_calls"]} | taus | difference(tally, pointwise))
    return rows


def run(size: int, groups: int, seed: int, processes: int) -> dict[str, Any]:
    """All cells. Each has its own seed, so the order of work changes nothing."""
    jobs = [(cell, *model, size, groups, seed) for model in product(NOISE, STRENGTHS)]
    found = simulated.run_jobs("noise grid", jobs, processes)
    rows, seconds = zip(*(found[job] for job in jobs), strict=True)
    return {"core_seconds": round(sum(seconds)), "rows": [row for of_cell in rows for row in of_cell]}


def differences(grid: dict[str, Any], *method: str) -> dict[tuple[str, float], dict[str, Any]]:
    """(kind, strength) -> row of one method: topology, params, ranking."""
    rows = [row for row in grid["rows"] if (row["topology"], row["params"], row["ranking"]) == method]
    return {(row["noise"], row["strength"]): row for row in rows}


def markdown_table(grid: dict[str, Any]) -> str:
    """docs/tournament.md's table: tau less that of as many pointwise calls,
    with half the width of its 95 % interval."""
    rows = []
    for method, key in METHODS.items():
        found = differences(grid, *key)
        for kind in NOISE:
            rows.append([method, kind, *(_format(found[kind, strength]) for strength in STRENGTHS)])
    return markdown.table(["tournament", "noise", *(f"{strength:g}" for strength in STRENGTHS)], rows)


def _format(row: dict[str, Any]) -> str:
    low, high = row["ci"]
    return f"{row['difference']:+.3f} ± {(high - low) / 2:.3f}"


def draw(grid: dict[str, Any]) -> Figure:
    """A panel for each kind of noise: topologies by strengths, above by a topology's own rules,
    below by the scores of its matches."""
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    limit = max(abs(row["difference"]) for row in grid["rows"])
    grid_of_axes = figure.subplots(len(RANKINGS), len(NOISE), sharex=True, sharey="row")
    topologies = [(name, format_params(params)) for name, params in TOPOLOGIES if "placement" not in params]
    for panels, ranking in zip(grid_of_axes, RANKINGS, strict=True):
        methods = {method: found for method in topologies if (found := differences(grid, *method, ranking))}
        for panel, kind in zip(panels, NOISE, strict=True):
            rows = [[found[kind, strength] for strength in STRENGTHS] for found in methods.values()]
            image = _heatmap(panel, rows, limit)
            panel.set_title(kind if ranking == "bracket" else "")
        names = [f"{name} {params.removeprefix('matches=')}".strip().replace("_", " ") for name, params in methods]
        panels[0].set_yticks(range(len(names)), names)
        panels[0].set_ylabel(RANKINGS[ranking])
    size = grid["rows"][0]["group_size"]
    figure.supxlabel("strength of the noise, in standard deviations of quality (simulated)", fontsize=9)
    title = (
        f"Kendall's tau less that of as many pointwise calls, by kind of noise, N={size}; in hundredths, "
        "grey where the 95 % interval holds 0"
    )
    figure.suptitle(title, fontsize=10)
    figure.colorbar(image, ax=figure.axes, shrink=0.6)
    return figure


def _heatmap(panel: Axes, rows: list[list[dict[str, Any]]], limit: float) -> AxesImage:
    """Differences as colours and, in hundredths, as numbers: grey where they may be chance."""
    values = np.array([[row["difference"] for row in line] for line in rows])
    for (y, x), value in np.ndenumerate(values):
        low, high = rows[y][x]["ci"]
        colour = "#999999" if low <= 0 <= high else "white" if abs(value) > 0.6 * limit else "black"
        panel.text(x, y, f"{round(100 * value):+d}", ha="center", va="center", fontsize=7, color=colour)
    panel.set_xticks(range(len(STRENGTHS)), [f"{strength:g}" for strength in STRENGTHS], fontsize=8)
    panel.tick_params(length=0)
    panel.grid(visible=False)
    return panel.imshow(values, cmap=DIVERGING, vmin=-limit, vmax=limit, aspect="auto")


def main() -> None:
    parser = simulated.study_parser(__doc__, 300, "in a cell")
    parser.add_argument("--size", type=at_least(3, int), default=8, help="group size")
    arguments = parser.parse_args()
    found = run(arguments.size, arguments.groups, arguments.seed, arguments.processes)
    grid = {"judge": "simulated", "seed": arguments.seed, "commit": commit(), **found}
    write_text(arguments.out / "grid.json", simulated.one_row_a_line(grid))
    with mpl.rc_context(STYLE):
        save_figure(draw(grid), arguments.out / "noise_grid")
    print("Kendall's tau less that of as many pointwise calls, by the strength of the noise; ± half the 95 % interval")
    print(markdown_table(grid))
    written = f"{arguments.out}/grid.json, noise_grid.png and .svg"
    print(f"groups and judges are simulated; {grid['core_seconds']} s of one core; written: {written}")


if __name__ == "__main__":
    main()
