"""How true are the rankings, and what do they cost?
Groups of known quality, judges of known noise; Table 2 with the truth at hand.

    python -m arenarl.studies.fidelity          # ./reproduce.sh fidelity

One kind of a simulated judge's errors is varied (`simulated_rankings`), and all topologies rank the same groups. Beside
every tournament stands the mean of as many pointwise scores from the same judge. No policy is trained here, and no
judge is real.

Writes results/ranking_fidelity/summary.json (`rows`; `paired`: differences over the same groups; `reach`: the matches
with which `balanced` is as true as all pairs) and the figures. Not in the paper.
"""

import time
from collections.abc import Sequence
from itertools import product
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from arenarl.config.command_line import at_least
from arenarl.report import markdown
from arenarl.report.figures import STYLE, save_figure
from arenarl.report.provenance import commit
from arenarl.studies import simulated_rankings as simulated
from arenarl.studies.simulated_rankings import NOISE, TOPOLOGIES, Key, difference, format_params, pointwise_key
from arenarl.system.atomic_files import write_text

STRENGTHS = (0.5, 1.0, 1.5)
MODELS = (("independent", 1.0), ("mixed", 1.0), ("shared", 1.5))  # of the table and the figure
SIZES = (2, 3, 4, 6, 8, 12, 16)
PAIRED_SIZES = (8, 16)


def grid_rows(kind: str, strength: float, size: int, groups: int, seed: int) -> list[dict[str, Any]]:
    """The rows of one judge and group size; `pointwise` rows say under `topology` whose calls they had."""
    setting = {"noise": kind, "strength": strength, "group_size": size}
    tallies = simulated.simulate(kind, strength, size, groups, seed)
    return [
        setting | {"topology": topology, "params": params, "ranking": ranking} | tally.row() | {"groups": groups}
        for (topology, params, ranking), tally in tallies.items()
    ]


WINS = ("round_robin", "", "bracket")
PAIRED = (  # (a, b): tau of a less tau of b
    (("balanced", "matches=2n-2", "scores"), ("seeded_single_elimination", "", "bracket")),
    (("balanced", "matches=n", "scores"), ("seeded_single_elimination", "", "bracket")),
    (("seeded_single_elimination", "", "scores"), ("seeded_single_elimination", "", "bracket")),
    (("balanced", "matches=2n-2", "scores"), WINS),
)


def paired_rows(kind: str, strength: float, size: int, groups: int, seed: int) -> list[dict[str, Any]]:
    """Differences in tau over the same groups."""
    wanted = [entry for entry in TOPOLOGIES if entry[0] in ("round_robin", "seeded_single_elimination", "balanced")]
    tallies = simulated.simulate(kind, strength, size, groups, seed, wanted)
    rows = []
    for a, b in PAIRED:
        row = {"noise": kind, "strength": strength, "group_size": size}
        row |= {"a": " ".join(filter(None, a)), "b": " ".join(filter(None, b))}
        row |= {"tau_a": round(fmean(tallies[a].tau), 4), "tau_b": round(fmean(tallies[b].tau), 4)}
        rows.append(row | difference(tallies[a], tallies[b]))
    return rows


def reach_rows(kind: str, strength: float, size: int, groups: int, seed: int) -> list[dict[str, Any]]:
    """The fewest matches with which `balanced` comes within .02 of round robin's tau by wins, found by bisection."""

    def tau_of(topology: str, ranking: str, **params) -> float:
        tallies = simulated.simulate(kind, strength, size, groups, seed, [(topology, params)])
        return next(fmean(tally.tau) for (name, _, by), tally in tallies.items() if (name, by) == (topology, ranking))

    wins = tau_of("round_robin", "bracket")
    low, high = size - 2, size * (size - 1) // 2  # size - 1 are the least that link everyone with everyone
    tau = tau_of("balanced", "scores", matches=high)
    while high - low > 1:
        middle = (low + high) // 2
        tau_middle = tau_of("balanced", "scores", matches=middle)
        if tau_middle >= wins - 0.02:
            high, tau = middle, tau_middle
        else:
            low = middle
    reached = {"matches": high, "of": size * (size - 1) // 2, "tau": round(tau, 4), "round_robin_tau": round(wins, 4)}
    return [{"noise": kind, "strength": strength, "group_size": size} | reached | {"groups": groups}]


def run(sizes: Sequence[int], groups: int, paired_groups: int, seed: int, processes: int) -> dict[str, Any]:
    """`rows`, `paired` and `reach` of the summary. Every cell has its own seed,
    so the order of work changes nothing."""
    grid = [(grid_rows, *cell, groups, seed) for cell in product(NOISE, STRENGTHS, sizes)]
    models = [(*model, size, paired_groups, seed) for model, size in product(MODELS, PAIRED_SIZES) if size in sizes]
    # the longest first
    jobs = [(reach_rows, *cell) for cell in models] + [(paired_rows, *cell) for cell in models] + grid[::-1]
    rows_of = simulated.run_jobs("fidelity", jobs, processes)
    return {
        "rows": [row for job in grid for row in rows_of[job]],
        "paired": [row for job in jobs if job[0] is paired_rows for row in rows_of[job]],
        "reach": [row for job in jobs if job[0] is reach_rows for row in rows_of[job]],
    }


def rows_of_model(summary: dict[str, Any], kind: str, strength: float, size: int) -> dict[Key, dict[str, Any]]:
    wanted = (kind, strength, size)
    rows = [row for row in summary["rows"] if (row["noise"], row["strength"], row["group_size"]) == wanted]
    return {(row["topology"], row["params"], row["ranking"]): row for row in rows}


def markdown_table(summary: dict[str, Any]) -> str:
    """docs/tournament.md's table, of the largest groups: tau by a topology's own rules / its matches' scores / as many
    pointwise calls."""
    size = max(row["group_size"] for row in summary["rows"])
    models = [rows_of_model(summary, *model, size) for model in MODELS]
    noises = [f"{kind} noise, {strength:g}" for kind, strength in MODELS]
    heads = ["topology", "matches", "judge calls", "critical path", *noises]
    lines = []
    for topology, params in TOPOLOGIES:
        given, cells = format_params(params), []
        keys = ((topology, given, "bracket"), (topology, given, "scores"), pointwise_key(topology, given))
        for rows in models:
            found = map(rows.get, keys)
            cells.append(" / ".join("-" if row is None else f"{row['tau']:.3f}" for row in found))
        cost = next(row for (name, of, _), row in models[0].items() if (name, of) == (topology, given))
        numbers = [f"{cost[name]:g}" for name in ("matches", "judge_calls", "critical_path")]
        lines.append([f"`{topology}`" + (f", {given}" if given else ""), *numbers, *cells])
    return markdown.table(heads, lines)


def markdown_differences(summary: dict[str, Any]) -> str:
    """Differences in tau over the same groups, and the matches that `balanced` needs to come within .02 of round robin
    by wins."""
    sizes = dict.fromkeys((row["noise"], row["strength"], row["group_size"]) for row in summary["paired"])
    heads = [f"{kind} {strength:g}, N={size}" for kind, strength, size in sizes]
    lines = []
    for a, b in dict.fromkeys((row["a"], row["b"]) for row in summary["paired"]):
        rows = [row for row in summary["paired"] if (row["a"], row["b"]) == (a, b)]
        cells = [f"{row['difference']:+.3f} [{row['ci'][0]:+.3f}, {row['ci'][1]:+.3f}]" for row in rows]
        lines.append([f"{a} minus {b}", *cells])
    reach = [f"{row['matches']} of {row['of']}" for row in summary["reach"]]
    lines.append(["matches with which `balanced` comes within .02 of round robin by wins", *reach])
    return markdown.table(["tau of … minus tau of …", *heads], lines)


def draw(summary: dict[str, Any]) -> Figure:
    """Tau against judge calls: each topology by its own rules and by the scores of the same matches,
    beside pointwise means."""
    size = max(row["group_size"] for row in summary["rows"])
    figure = Figure(figsize=(11, 3.9), layout="constrained")
    panels = figure.subplots(1, len(MODELS), sharey=True)
    for panel, (kind, strength) in zip(panels, MODELS, strict=True):
        rows = list(rows_of_model(summary, kind, strength, size).values())
        pointwise = sorted((row["judge_calls"], row["tau"]) for row in rows if row["topology"] == "pointwise")
        panel.plot(*zip(*pointwise, strict=True), color="0.6", linestyle="--", label="pointwise, mean score", zorder=0)
        for topology, marker in MARKERS.items():
            for ranking, face in (("bracket", "white"), ("scores", "black")):
                of = [row for row in rows if (row["topology"], row["ranking"]) == (topology, ranking)]
                if found := [row for row in of if "placement" not in row["params"]]:
                    by = ", by scores" if ranking == "scores" and topology != "balanced" else ""
                    name = topology.replace("_", " ") + by
                    _plot_points(panel, found, label=name, marker=marker, markerfacecolor=face)
        panel.set(xscale="log", xlabel="judge calls a group", title=f"{kind} noise, {strength:g} (simulated)")
        panel.set_xticks([30, 60, 120, 240], ["30", "60", "120", "240"])
        panel.minorticks_off()
    panels[0].set_ylabel(f"Kendall's tau to the true order, N={size}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    return figure


def _plot_points(panel: Axes, rows: list[dict[str, Any]], **style: Any) -> None:
    x, y = [row["judge_calls"] for row in rows], [row["tau"] for row in rows]
    errors = [[row["tau"] - row["tau_ci"][0] for row in rows], [row["tau_ci"][1] - row["tau"] for row in rows]]
    panel.errorbar(x, y, errors, color="black", elinewidth=0.8, markersize=6, linestyle="none", **style)


MARKERS = {
    "round_robin": "o", "anchor": "v", "seeded_single_elimination": "s", "single_elimination": "^",
    "double_elimination": "D", "swiss": "P", "group_stage": "X", "balanced": "*",
}  # fmt: skip


def main() -> None:
    parser = simulated.study_parser(__doc__, 300, "in a cell of the grid")
    parser.add_argument("--sizes", type=at_least(2, int), nargs="+", default=list(SIZES), help="group sizes")
    of = "groups for differences and the matches that reach round robin"
    parser.add_argument("--paired-groups", type=at_least(2, int), default=2000, help=of)
    arguments = parser.parse_args()
    start = time.perf_counter()
    results = run(arguments.sizes, arguments.groups, arguments.paired_groups, arguments.seed, arguments.processes)
    about = {"judge": "simulated", "seed": arguments.seed, "commit": commit()}
    summary = about | {"seconds": round(time.perf_counter() - start)} | results
    write_text(arguments.out / "summary.json", simulated.one_row_a_line(summary))
    with mpl.rc_context(STYLE):
        save_figure(draw(summary), arguments.out / "tau_by_calls")
    print("Kendall's tau, largest groups: a topology's own rules / the scores of its matches / as many pointwise calls")
    print(markdown_table(summary), markdown_differences(summary), sep="\n\n")
    print(
        f"groups and judges are simulated; {summary['seconds']} s; written: {arguments.out}/summary.json, "
        "tau_by_calls.png and .svg"
    )


if __name__ == "__main__":
    main()
