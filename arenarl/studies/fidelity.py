"""Which topologies rank most accurately, and at what cost? Table 2 on simulated groups of known quality.

    python -m arenarl.studies.fidelity          # ./reproduce.sh fidelity

The kind and strength of a simulated judge's errors vary (`simulated_rankings`), and all topologies rank the same
groups. Each tournament is compared with the mean of as many pointwise scores from the same judge. No policy is trained,
and no judge is real.

Writes results/ranking_fidelity/summary.json and a figure. In the summary, `paired` holds differences over the same
groups, and `reach` the number of matches with which `balanced` is as accurate as all pairs. Not in the paper.
"""

import time
from collections.abc import Sequence
from itertools import product
from statistics import fmean

from matplotlib.figure import Figure

from arenarl.config.command_line import in_range
from arenarl.report import markdown
from arenarl.studies import simulated_rankings as simulated
from arenarl.studies.simulated_rankings import NOISE, TOPOLOGIES, Key, Row, format_params, pointwise_key, rows_with
from arenarl.system.errors import run_cli

STRENGTHS = (0.5, 1.0, 1.5)
MODELS = (("independent", 1.0), ("mixed", 1.0), ("shared", 1.5))  # noise models of the table and the figure
SIZES = (2, 3, 4, 6, 8, 12, 16)
PAIRED_SIZES = (8, 16)
PAIRED = (  # (a, b): tau of a minus tau of b
    (("balanced", "matches=2n-2", "scores"), ("seeded_single_elimination", "", "bracket")),
    (("balanced", "matches=n", "scores"), ("seeded_single_elimination", "", "bracket")),
    (("seeded_single_elimination", "", "scores"), ("seeded_single_elimination", "", "bracket")),
    (("balanced", "matches=2n-2", "scores"), ("round_robin", "", "bracket")),
)
MARKERS = {
    "round_robin": "o", "anchor": "v", "seeded_single_elimination": "s", "single_elimination": "^",
    "double_elimination": "D", "swiss": "P", "group_stage": "X", "balanced": "*",
}  # fmt: skip
FACES = {"bracket": "white", "scores": "black"}


def grid_rows(kind: str, strength: float, size: int, groups: int, seed: int) -> list[Row]:
    """Return the rows of one judge and group size. The topology of `pointwise` rows is named in `params`."""
    return [
        simulated.setting(kind, strength, size)
        | {"topology": topology, "params": params, "ranking": ranking, **tally.row(), "groups": groups}
        for (topology, params, ranking), tally in simulated.simulate(kind, strength, size, groups, seed).items()
    ]


def paired_rows(kind: str, strength: float, size: int, groups: int, seed: int) -> list[Row]:
    """Return the differences in tau of `PAIRED` over the same groups."""
    wanted = [entry for entry in TOPOLOGIES if entry[0] in ("round_robin", "seeded_single_elimination", "balanced")]
    tallies = simulated.simulate(kind, strength, size, groups, seed, wanted)
    rows = []
    for a, b in PAIRED:
        names = {"a": " ".join(filter(None, a)), "b": " ".join(filter(None, b))}
        taus = {"tau_a": round(fmean(tallies[a].tau), 4), "tau_b": round(fmean(tallies[b].tau), 4)}
        differences = simulated.difference(tallies[a], tallies[b])
        rows.append(simulated.setting(kind, strength, size) | names | taus | differences)
    return rows


def reach_rows(kind: str, strength: float, size: int, groups: int, seed: int) -> list[Row]:
    """Find by bisection the fewest matches with which `balanced` comes within .02 of round robin's tau by wins."""

    def tau_of(topology: str, ranking: str, **params) -> float:
        tallies = simulated.simulate(kind, strength, size, groups, seed, [(topology, params)])
        return next(fmean(tally.tau) for (name, _, by), tally in tallies.items() if (name, by) == (topology, ranking))

    wins = tau_of("round_robin", "bracket")
    low, high = size - 2, size * (size - 1) // 2  # fewer than size - 1 matches cannot link all trajectories
    tau = tau_of("balanced", "scores", matches=high)
    while high - low > 1:
        middle = (low + high) // 2
        tau_middle = tau_of("balanced", "scores", matches=middle)
        if tau_middle >= wins - 0.02:
            high, tau = middle, tau_middle
        else:
            low = middle
    reached = {"matches": high, "of": size * (size - 1) // 2, "tau": round(tau, 4), "round_robin_tau": round(wins, 4)}
    return [simulated.setting(kind, strength, size) | reached | {"groups": groups}]


def run(sizes: Sequence[int], groups: int, paired_groups: int, seed: int, processes: int) -> Row:
    """Return `rows`, `paired` and `reach` of the summary. Every cell has its own seed, so their order is free."""
    grid = [(grid_rows, *cell, groups, seed) for cell in product(NOISE, STRENGTHS, sizes)]
    models = [(*model, size, paired_groups, seed) for model, size in product(MODELS, PAIRED_SIZES) if size in sizes]
    reach, paired = ([(function, *cell) for cell in models] for function in (reach_rows, paired_rows))
    results = simulated.run_jobs("fidelity", [*reach, *paired, *grid[::-1]], processes)  # start the longest jobs first
    parts = {"rows": grid, "paired": paired, "reach": reach}
    return {name: [row for job in jobs for row in results[job]] for name, jobs in parts.items()}


def rows_of_model(summary: Row, kind: str, strength: float, size: int) -> dict[Key, Row]:
    rows = rows_with(summary["rows"], **simulated.setting(kind, strength, size))
    return {(row["topology"], row["params"], row["ranking"]): row for row in rows}


def model_headings() -> list[str]:
    return [f"{kind} noise, {strength:g}" for kind, strength in MODELS]


def markdown_table(summary: Row) -> str:
    """Return docs/tournament.md's table for the largest groups: tau by a topology's own rules / by the scores of its
    matches / by as many pointwise calls."""
    size = max(row["group_size"] for row in summary["rows"])
    models = [rows_of_model(summary, *model, size) for model in MODELS]
    lines = []
    for topology, params in TOPOLOGIES:
        given = format_params(params)
        keys = ((topology, given, "bracket"), (topology, given, "scores"), pointwise_key(topology, given))
        cells = [simulated.format_taus(rows, keys) for rows in models]
        cost = rows_with(models[0].values(), topology=topology, params=given)[0]
        numbers = [f"{cost[name]:g}" for name in ("matches", "judge_calls", "critical_path")]
        lines.append([f"`{topology}`" + (f", {given}" if given else ""), *numbers, *cells])
    return markdown.table(["topology", "matches", "judge calls", "critical path", *model_headings()], lines)


def markdown_differences(summary: Row) -> str:
    """Return the table of paired differences in tau; its last line has the matches of `reach`."""
    sizes = dict.fromkeys((row["noise"], row["strength"], row["group_size"]) for row in summary["paired"])
    lines = []
    for a, b in dict.fromkeys((row["a"], row["b"]) for row in summary["paired"]):
        rows = rows_with(summary["paired"], a=a, b=b)
        cells = [f"{row['difference']:+.3f} [{row['ci'][0]:+.3f}, {row['ci'][1]:+.3f}]" for row in rows]
        lines.append([f"{a} minus {b}", *cells])
    reach = [f"{row['matches']} of {row['of']}" for row in summary["reach"]]
    lines.append(["matches with which `balanced` comes within .02 of round robin by wins", *reach])
    heads = [f"{kind} {strength:g}, N={size}" for kind, strength, size in sizes]
    return markdown.table(["tau of … minus tau of …", *heads], lines)


def draw(summary: Row) -> Figure:
    """Plot tau against judge calls: topologies by their own rules and by their matches' scores, and pointwise means."""
    size = max(row["group_size"] for row in summary["rows"])
    figure = Figure(figsize=(11, 3.9), layout="constrained")
    panels = figure.subplots(1, len(MODELS), sharey=True)
    for panel, model, heading in zip(panels, MODELS, model_headings(), strict=True):
        rows = list(rows_of_model(summary, *model, size).values())
        pointwise = sorted((row["judge_calls"], row["tau"]) for row in rows_with(rows, topology="pointwise"))
        panel.plot(*zip(*pointwise, strict=True), color="0.6", linestyle="--", label="pointwise, mean score", zorder=0)
        for (topology, marker), (ranking, face) in product(MARKERS.items(), FACES.items()):
            points = rows_with(rows, topology=topology, ranking=ranking)
            if points := [row for row in points if "placement" not in row["params"]]:
                by = ", by scores" if ranking == "scores" and topology != "balanced" else ""
                style = {"color": "black", "marker": marker, "markerfacecolor": face, "markersize": 6}
                style |= {"linestyle": "none", "elinewidth": 0.8, "label": topology.replace("_", " ") + by}
                x, y = [row["judge_calls"] for row in points], [row["tau"] for row in points]
                errors = [[abs(row["tau"] - row["tau_ci"][end]) for row in points] for end in (0, 1)]
                panel.errorbar(x, y, errors, **style)
        panel.set(xscale="log", xlabel="judge calls a group", title=f"{heading} (simulated)")
        panel.set_xticks([30, 60, 120, 240], ["30", "60", "120", "240"])
        panel.minorticks_off()
    panels[0].set_ylabel(f"Kendall's tau to the true order, N={size}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    return figure


def main() -> None:
    parser = simulated.study_parser(__doc__, "groups in a cell of the grid", SIZES)
    of = "groups for paired differences and for the matches that reach round robin"
    parser.add_argument("--paired-groups", type=in_range(int, 2), default=2000, help=of)
    arguments = parser.parse_args()
    start = time.perf_counter()
    results = run(arguments.sizes, arguments.groups, arguments.paired_groups, arguments.seed, arguments.processes)
    results = {"seconds": round(time.perf_counter() - start)} | results
    summary = simulated.write_study(arguments, "summary.json", results, "tau_by_calls", draw)
    print("Kendall's tau, largest groups: a topology's own rules / the scores of its matches / as many pointwise calls")
    print(markdown_table(summary), markdown_differences(summary), sep="\n\n")
    written = f"{arguments.out}/summary.json, tau_by_calls.png and .svg"
    print(f"groups and judges are simulated; {summary['seconds']} s; written: {written}")


if __name__ == "__main__":
    run_cli(main, goes_on=False)
