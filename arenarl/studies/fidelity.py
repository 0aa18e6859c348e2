"""How true are the rankings, and what do they cost? Groups of known quality, judges of known noise; Table 2 with the truth at hand.

    python -m arenarl.studies.fidelity          # ./reproduce.sh fidelity

A simulated judge errs in one way at one strength (`simulated_groups.py`), and all topologies rank the same groups. Beside every
tournament stands the mean of as many pointwise scores from the same judge. Groups follow each other as in training: the mixed
model knows the judge from the groups before, and from nothing else. No policy is trained here, and no judge is real.

Writes results/ranking_fidelity/summary.json (`rows`; `paired`: differences over the same groups; `reach`: the matches with which
`balanced` is as true as all pairs) and the figures. Not in the paper.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import kendalltau

from arenarl.report import markdown
from arenarl.report.figures import STYLE, save_figure
from arenarl.run.stage import commit
from arenarl.studies.simulated_groups import NOISE, Group, Noise
from arenarl.system.atomic_files import write_text
from arenarl.system.progress import Bar
from arenarl.system.seeds import stable_seed
from arenarl.tournament.mixed_model import JudgeVariances, quality_from_calls
from arenarl.tournament.play import play_tournament
from arenarl.tournament.ranking import Ranking, midranks, scored_calls

Key = tuple[str, str, str]  # topology, its parameters, ranking
Cost = tuple[int, int, int]  # matches, judge calls, critical path

WARM_UP = 10  # groups before the first that counts: the judge is not new in a training run either
STRENGTHS = (0.5, 1.0, 1.5)
MODELS = (("independent", 1.0), ("mixed", 1.0), ("shared", 1.5))  # of DESIGN's table
SIZES = (2, 3, 4, 6, 8, 12, 16)
PAIRED_SIZES = (8, 16)

TOPOLOGIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("round_robin", {}),
    ("anchor", {}),
    ("seeded_single_elimination", {}),
    ("seeded_single_elimination", {"placement": "algorithm1", "accumulate": "sum"}),
    ("single_elimination", {}),
    ("double_elimination", {}),
    ("swiss", {}),
    ("group_stage", {}),
    ("balanced", {"matches": "n"}),
    ("balanced", {"matches": "2n-2"}),
)


@dataclass
class Tally:
    """What one topology and ranking reached, group by group."""

    tau: list[float] = field(default_factory=list)
    best_first: list[float] = field(default_factory=list)
    cost: list[Cost] = field(default_factory=list)

    def add(self, quality_G: np.ndarray, ranks_G: list[float], cost: Cost) -> None:
        tau = kendalltau(quality_G, -np.array(ranks_G)).statistic
        self.tau.append(0.0 if np.isnan(tau) else float(tau))  # all ranks equal: no order at all
        best, first = int(np.argmax(quality_G)), min(ranks_G)
        self.best_first.append((ranks_G[best] == first) / ranks_G.count(first))
        self.cost.append(cost)

    def row(self) -> dict[str, Any]:
        matches, judge_calls, critical_path = (round(fmean(values), 2) for values in zip(*self.cost))
        figures = {"matches": matches, "judge_calls": judge_calls, "critical_path": critical_path}
        return figures | {"tau": round(fmean(self.tau), 4), "tau_ci": interval(self.tau), "best_first": round(fmean(self.best_first), 4)}


def interval(values: list[float]) -> list[float]:
    """95 % interval of the mean, by the normal approximation."""
    margin = 1.96 * float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return [round(fmean(values) - margin, 4), round(fmean(values) + margin, 4)]


def difference(a: Tally, b: Tally) -> dict[str, Any]:
    """Tau of a less tau of b, over the same groups."""
    differences = [tau_a - tau_b for tau_a, tau_b in zip(a.tau, b.tau, strict=True)]
    return {"difference": round(fmean(differences), 4), "ci": interval(differences), "groups": len(differences)}


def simulate(kind: str, strength: float, size: int, groups: int, seed: int, topologies=TOPOLOGIES) -> dict[Key, Tally]:
    """Rank the same `groups` groups by every topology, and by pointwise means of as many calls."""
    topologies = [entry for entry in topologies if size > 2 or entry[0] != "group_stage"]  # whose final is 2: it would play nothing
    return asyncio.run(_simulate(NOISE[kind](strength), size, groups, stable_seed(seed, kind, strength, size), topologies))


async def _simulate(noise: Noise, size: int, groups: int, seed: int, topologies) -> dict[Key, Tally]:
    tallies: dict[Key, Tally] = {}
    variances = [JudgeVariances() for _ in topologies]
    for number in range(-WARM_UP, groups):
        group = Group(size, noise, stable_seed(seed, number))
        for (topology, params), known in zip(topologies, variances):
            judge = group.choose if topology == "group_stage" else group.compare
            ranking = await play_tournament(topology, size, judge, seed=number, variances=known, **params)
            if number >= 0:
                for key, ranks_G, cost in _rankings(topology, params, ranking, group, known):
                    tallies.setdefault(key, Tally()).add(group.quality_G, ranks_G, cost)
            known.observe(size, scored_calls(ranking.matches))
    return tallies


def _rankings(
    topology: str, params: dict[str, Any], ranking: Ranking, group: Group, known: JudgeVariances
) -> Iterator[tuple[Key, list[float], Cost]]:
    """By the topology's own rules, by the mixed model of the same calls, and by the mean of as many pointwise calls."""
    given = format_params(params)
    cost = (len(ranking.matches), ranking.judge_calls, ranking.critical_path)
    if topology != "balanced":
        yield (topology, given, "bracket"), ranking.ranks_G, cost
    if topology != "group_stage":
        qualities_G = quality_from_calls(len(group.quality_G), scored_calls(ranking.matches), known)
        yield (topology, given, "scores"), midranks(qualities_G), cost
    calls = ranking.judge_calls
    yield pointwise_key(topology, given), midranks(group.pointwise(calls)), (0, calls, 1)


def format_params(params: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in params.items())


def pointwise_key(topology: str, params: str) -> Key:
    """Where the pointwise means stand that had as many calls as this topology."""
    return "pointwise", " ".join(filter(None, ["calls of", topology, params])), "mean"


def grid_rows(kind: str, strength: float, size: int, groups: int, seed: int) -> list[dict[str, Any]]:
    """The rows of one judge and group size; `pointwise` rows say under `topology` whose calls they had."""
    setting = {"noise": kind, "strength": strength, "group_size": size}
    tallies = simulate(kind, strength, size, groups, seed)
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
    tallies = simulate(kind, strength, size, groups, seed, wanted)
    rows = []
    for a, b in PAIRED:
        rows.append(
            {"noise": kind, "strength": strength, "group_size": size, "a": " ".join(filter(None, a)), "b": " ".join(filter(None, b))}
            | {"tau_a": round(fmean(tallies[a].tau), 4), "tau_b": round(fmean(tallies[b].tau), 4)}
            | difference(tallies[a], tallies[b])
        )
    return rows


def reach_rows(kind: str, strength: float, size: int, groups: int, seed: int) -> list[dict[str, Any]]:
    """The fewest matches with which `balanced` comes within .02 of round robin's tau by wins, found by bisection."""

    def tau_of(topology: str, ranking: str, **params) -> float:
        tallies = simulate(kind, strength, size, groups, seed, [(topology, params)])
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
    """`rows`, `paired` and `reach` of the summary. Every cell has its own seed, so the order of work changes nothing."""
    grid = [(grid_rows, *cell, groups, seed) for cell in product(NOISE, STRENGTHS, sizes)]
    models = [(*model, size, paired_groups, seed) for model, size in product(MODELS, PAIRED_SIZES) if size in sizes]
    jobs = [(reach_rows, *cell) for cell in models] + [(paired_rows, *cell) for cell in models] + grid[::-1]  # the longest first
    rows_of = run_jobs("fidelity", jobs, processes)
    return {
        "rows": [row for job in grid for row in rows_of[job]],
        "paired": [row for job in jobs if job[0] is paired_rows for row in rows_of[job]],
        "reach": [row for job in jobs if job[0] is reach_rows for row in rows_of[job]],
    }


def run_jobs(title: str, jobs: Sequence[tuple], processes: int) -> dict[tuple, Any]:
    """What each job, (function, *arguments), returned; begun in the order given."""
    with ProcessPoolExecutor(processes) as pool:
        futures = {pool.submit(*job): job for job in jobs}
        with Bar(title, len(jobs)) as bar:
            return {futures[future]: future.result() for future in bar.over(as_completed(futures))}


def one_row_a_line(summary: dict[str, Any]) -> str:
    """JSON whose thousands of rows take a line each."""
    items = []
    for key, value in summary.items():
        rows = ",\n  ".join(map(json.dumps, value)) if isinstance(value, list) else None
        items.append(f'"{key}": ' + (json.dumps(value) if rows is None else f"[\n  {rows}\n]"))
    return "{\n" + ",\n".join(items) + "\n}\n"


def rows_of_model(summary: dict[str, Any], kind: str, strength: float, size: int) -> dict[Key, dict[str, Any]]:
    rows = [row for row in summary["rows"] if (row["noise"], row["strength"], row["group_size"]) == (kind, strength, size)]
    return {(row["topology"], row["params"], row["ranking"]): row for row in rows}


def largest(summary: dict[str, Any]) -> int:
    return max(row["group_size"] for row in summary["rows"])


def markdown_table(summary: dict[str, Any]) -> str:
    """The README's table, of the largest groups: tau by a topology's own rules / by the scores of its matches / by as many pointwise calls."""
    size = largest(summary)
    models = [rows_of_model(summary, *model, size) for model in MODELS]
    heads = ["topology", "matches", "judge calls", "critical path", *(f"{kind} noise, {strength:g}" for kind, strength in MODELS)]
    lines = []
    for topology, params in TOPOLOGIES:
        given = format_params(params)
        cells = []
        for rows in models:
            found = [rows.get(key) for key in ((topology, given, "bracket"), (topology, given, "scores"), pointwise_key(topology, given))]
            cells.append(" / ".join("-" if row is None else f"{row['tau']:.3f}" for row in found))
        cost = next(row for (name, of, _), row in models[0].items() if (name, of) == (topology, given))
        numbers = [f"{cost[name]:g}" for name in ("matches", "judge_calls", "critical_path")]
        lines.append([f"`{topology}`" + (f", {given}" if given else ""), *numbers, *cells])
    return markdown.table(heads, lines)


def markdown_differences(summary: dict[str, Any]) -> str:
    """Differences in tau over the same groups, and the matches that `balanced` needs to come within .02 of round robin by wins."""
    sizes = dict.fromkeys((row["noise"], row["strength"], row["group_size"]) for row in summary["paired"])
    heads = [f"{kind} {strength:g}, N={size}" for kind, strength, size in sizes]
    lines = []
    for a, b in dict.fromkeys((row["a"], row["b"]) for row in summary["paired"]):
        rows = [row for row in summary["paired"] if (row["a"], row["b"]) == (a, b)]
        cells = [f"{row['difference']:+.3f} [{row['ci'][0]:+.3f}, {row['ci'][1]:+.3f}]" for row in rows]
        lines.append([f"{a} less {b}", *cells])
    reach = [f"{row['matches']} of {row['of']}" for row in summary["reach"]]
    lines.append(["matches with which `balanced` comes within .02 of round robin by wins", *reach])
    return markdown.table(["tau of … less tau of …", *heads], lines)


def draw(summary: dict[str, Any]) -> Figure:
    """Tau against judge calls: each topology by its own rules and by the scores of the same matches, beside pointwise means."""
    size = largest(summary)
    figure = Figure(figsize=(11, 3.9), layout="constrained")
    panels = figure.subplots(1, len(MODELS), sharey=True)
    for panel, (kind, strength) in zip(panels, MODELS):
        rows = list(rows_of_model(summary, kind, strength, size).values())
        pointwise = sorted((row["judge_calls"], row["tau"]) for row in rows if row["topology"] == "pointwise")
        panel.plot(*zip(*pointwise), color="0.6", linestyle="--", label="pointwise, mean score", zorder=0)
        for topology, marker in MARKERS.items():
            for ranking, face in (("bracket", "white"), ("scores", "black")):
                found = [row for row in rows if (row["topology"], row["ranking"]) == (topology, ranking) and "placement" not in row["params"]]
                if found:
                    name = topology.replace("_", " ") + (", by scores" if ranking == "scores" and topology != "balanced" else "")
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
    "round_robin": "o",
    "anchor": "v",
    "seeded_single_elimination": "s",
    "single_elimination": "^",
    "double_elimination": "D",
    "swiss": "P",
    "group_stage": "X",
    "balanced": "*",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="of the groups")
    parser.add_argument("--groups", type=int, default=300, help="in a cell of the grid")
    parser.add_argument("--paired-groups", type=int, default=2000, help="for differences and for the matches that reach round robin")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/ranking_fidelity"))
    arguments = parser.parse_args()
    if min(arguments.groups, arguments.paired_groups, *arguments.sizes) < 2 or arguments.processes < 1:
        parser.error("--sizes, --groups and --paired-groups must be at least 2, --processes at least 1")
    start = time.perf_counter()
    results = run(arguments.sizes, arguments.groups, arguments.paired_groups, arguments.seed, arguments.processes)
    summary = {"judge": "simulated", "seed": arguments.seed, "commit": commit(), "seconds": round(time.perf_counter() - start), **results}
    write_text(arguments.out / "summary.json", one_row_a_line(summary))
    with mpl.rc_context(STYLE):
        save_figure(draw(summary), arguments.out / "tau_by_calls")
    print("Kendall's tau, largest groups: a topology's own rules / the scores of its matches / as many pointwise calls")
    print(markdown_table(summary), markdown_differences(summary), sep="\n\n")
    print(f"groups and judges are simulated; {summary['seconds']} s; written: {arguments.out}/summary.json, tau_by_calls.png and .svg")


if __name__ == "__main__":
    main()
