"""Simulated groups of known quality, a judge of known noise, and every topology's ranking of the same groups.

Shared by `fidelity`, `noise_grid` and `rivals`; no trajectories, not in the paper. Qualities are N(0, 1), so a judge's
errors are in units of their standard deviation. All topologies see the same verdicts: a call that several of them make
has one outcome. Each topology is compared with the mean of as many pointwise scores from the same judge. As in
training, the mixed model estimates the judge's noise from earlier groups only.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from scipy.stats import kendalltau

from arenarl.config.command_line import in_range
from arenarl.report.figures import STYLE, save_figure
from arenarl.report.provenance import commit
from arenarl.studies.repeated_scores import mean_of_calls
from arenarl.system.atomic_files import write_text
from arenarl.system.progress import Bar
from arenarl.system.seeds import stable_seed
from arenarl.tournament.mixed_model import JudgeVariances, quality_from_calls
from arenarl.tournament.play import run_tournament
from arenarl.tournament.ranking import Ranking, midranks, scored_calls

Key = tuple[str, str, str]  # topology, its parameters, ranking
Cost = tuple[int, int, int]  # matches, judge calls, critical path
Row = dict[str, Any]  # one result: the setting, the method, its tau and cost

ROUNDING = 0.25
PADDING = -0.5  # correlation of length with quality: a length bias favours worse trajectories
WARM_UP = 10  # groups before the first measured group: a training run also has earlier groups

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


@dataclass(frozen=True)
class Noise:
    """Standard deviations of a judge's errors. `position` is a constant instead: the first trajectory shown gains it,
    the last one loses it."""

    independent: float = 0.5  # drawn for every score
    shared: float = 0.0  # drawn once per call, for all trajectories shown
    sticking: float = 0.0  # drawn once per trajectory, so repeated calls do not average it out
    position: float = 0.3
    length: float = 0.0  # points for a standard deviation of length


NOISE = {  # kind -> strength -> judge; `fidelity`'s table has the first three, at strengths 1, 1 and 1.5
    "independent": lambda strength: Noise(independent=strength),
    "mixed": lambda strength: Noise(independent=0.7 * strength, shared=0.7 * strength),
    "shared": lambda strength: Noise(shared=strength),
    "sticking": lambda strength: Noise(sticking=strength),
    "position": lambda strength: Noise(position=strength),
    "length": lambda strength: Noise(length=strength),
}


class Group:
    """`size` trajectories with every score the judge can give them, drawn from `seed`.
    `quality_G` (size,); `pair_scores` (first, second, 2); `point_scores` (size, calls)."""

    def __init__(self, size: int, noise: Noise, seed: int):
        self.seed, self.noise = seed, noise
        rng = np.random.default_rng(seed)
        self.quality_G = rng.normal(size=size)
        length_G = PADDING * self.quality_G + np.sqrt(1 - PADDING**2) * rng.normal(size=size)
        # quality with the errors that all calls share
        self.seen_G = self.quality_G + noise.sticking * rng.normal(size=size) + noise.length * length_G
        pairs = np.stack([np.repeat(self.seen_G[:, None], size, 1), np.repeat(self.seen_G[None], size, 0)], axis=-1)
        self.pair_scores = self._draw_scores(pairs + noise.position * np.array([1, -1]), rng)
        self.point_scores = self._draw_scores(np.repeat(self.seen_G[:, None, None], size, 1), rng)[..., 0]

    def _draw_scores(self, seen: np.ndarray, rng: np.random.Generator, times: float = 1.0) -> np.ndarray:
        """Draw the scores of calls that show `seen` (..., shown), with `times` the usual noise."""
        drift = self.noise.shared * rng.normal(size=(*seen.shape[:-1], 1))
        scores = seen + times * (drift + self.noise.independent * rng.normal(size=seen.shape))
        return np.round(scores / ROUNDING) * ROUNDING

    async def compare(self, i: int, j: int) -> tuple[float, float]:
        return tuple(self.pair_scores[i, j])

    async def choose(self, indices: tuple[int, ...], winners: int) -> list[int]:
        lead = self.noise.position * np.linspace(1, -1, len(indices))
        scores = self._draw_scores(
            self.seen_G[list(indices)] + lead, np.random.default_rng(stable_seed(self.seed, indices))
        )
        return [indices[place] for place in np.argsort(-scores, kind="stable")[:winners]]

    def listwise(self, call: int, times: float = 1.0) -> np.ndarray:
        """Return the scores (size,) of one call that shows all trajectories in random order.

        All share one drift, each has its own noise, and the position bias falls linearly over the places; `times`
        scales all three.
        """
        rng = np.random.default_rng(stable_seed(self.seed, "listwise", call))
        lead = np.linspace(1, -1, len(self.seen_G))[rng.permutation(len(self.seen_G))]
        return self._draw_scores(self.seen_G + times * self.noise.position * lead, rng, times)

    def pointwise(self, calls: int) -> list[float]:
        """Return mean scores (size,) of `calls` pointwise calls, spread evenly over the group."""
        return mean_of_calls(self.point_scores, calls)


@dataclass
class Tally:
    """Results of one topology and ranking, one entry per group."""

    tau: list[float] = field(default_factory=list)
    best_first: list[float] = field(default_factory=list)
    cost: list[Cost] = field(default_factory=list)

    def add(self, quality_G: np.ndarray, ranks_G: list[float], cost: Cost) -> None:
        tau = kendalltau(quality_G, -np.array(ranks_G)).statistic
        self.tau.append(0.0 if np.isnan(tau) else float(tau))  # NaN: all ranks are equal
        best, first = int(np.argmax(quality_G)), min(ranks_G)
        self.best_first.append((ranks_G[best] == first) / ranks_G.count(first))
        self.cost.append(cost)

    def row(self) -> Row:
        matches, judge_calls, critical_path = (round(fmean(values), 2) for values in zip(*self.cost, strict=True))
        cost = {"matches": matches, "judge_calls": judge_calls, "critical_path": critical_path}
        tau = {"tau": round(fmean(self.tau), 4), "tau_ci": interval(self.tau)}
        return cost | tau | {"best_first": round(fmean(self.best_first), 4)}


def interval(values: list[float]) -> list[float]:
    """Return the 95 % interval of the mean, by the normal approximation."""
    margin = 1.96 * float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return [round(fmean(values) - margin, 4), round(fmean(values) + margin, 4)]


def difference(a: Tally, b: Tally) -> Row:
    """Return tau of `a` minus tau of `b` over the same groups, with its 95 % interval."""
    differences = [tau_a - tau_b for tau_a, tau_b in zip(a.tau, b.tau, strict=True)]
    return {"difference": round(fmean(differences), 4), "ci": interval(differences), "groups": len(differences)}


def simulate(kind: str, strength: float, size: int, groups: int, seed: int, topologies=TOPOLOGIES) -> dict[Key, Tally]:
    """Rank the same `groups` groups by every topology, and by pointwise means of as many calls."""
    # a group stage of 2 entrants is only its final and plays no match
    topologies = [entry for entry in topologies if size > 2 or entry[0] != "group_stage"]
    seed, noise = stable_seed(seed, kind, strength, size), NOISE[kind](strength)
    tallies: dict[Key, Tally] = {}
    variances = [JudgeVariances() for _ in topologies]
    for number in range(-WARM_UP, groups):
        group = Group(size, noise, stable_seed(seed, number))
        for (topology, params), known in zip(topologies, variances, strict=True):
            judge = group.choose if topology == "group_stage" else group.compare
            ranking = run_tournament(topology, size, judge, seed=number, variances=known, **params)
            if number >= 0:
                for key, ranks_G, cost in _rankings(topology, format_params(params), ranking, group, known):
                    tallies.setdefault(key, Tally()).add(group.quality_G, ranks_G, cost)
            known.observe(size, scored_calls(ranking.matches))
    return tallies


def _rankings(
    topology: str, params: str, ranking: Ranking, group: Group, known: JudgeVariances
) -> Iterator[tuple[Key, list[float], Cost]]:
    """Yield the ranks by the topology's rules, by the mixed model of the same calls, and by as many pointwise calls."""
    cost = (len(ranking.matches), ranking.judge_calls, ranking.critical_path)
    if topology != "balanced":
        yield (topology, params, "bracket"), ranking.ranks_G, cost
    if topology != "group_stage":
        qualities_G = quality_from_calls(len(group.quality_G), scored_calls(ranking.matches), known)
        yield (topology, params, "scores"), midranks(qualities_G), cost
    calls = ranking.judge_calls
    yield pointwise_key(topology, params), midranks(group.pointwise(calls)), (0, calls, 1)


def format_params(params: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in params.items())


def pointwise_key(topology: str, params: str) -> Key:
    """Return the key of the pointwise means with as many calls as this topology."""
    return "pointwise", " ".join(filter(None, ["calls of", topology, params])), "mean"


def setting(kind: str, strength: float, size: int) -> Row:
    return {"noise": kind, "strength": strength, "group_size": size}


def rows_with(rows: Iterable[Row], **values: Any) -> list[Row]:
    """Return the rows that have all these values."""
    return [row for row in rows if values.items() <= row.items()]


def format_taus(rows: Mapping[Any, Row], keys: Iterable[Any]) -> str:
    """Return the taus of these rows as one cell; "-" for a missing row."""
    return " / ".join(f"{rows[key]['tau']:.3f}" if key in rows else "-" for key in keys)


def study_parser(about: str, of: str, sizes: Sequence[int] = ()) -> argparse.ArgumentParser:
    """Return the options that all studies of simulated groups share; with default `sizes` also `--sizes`."""
    parser = argparse.ArgumentParser(description=about.split("\n\n")[0])
    parser.add_argument("--groups", type=in_range(int, 2), default=300, help=of)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=in_range(int, 1), default=2)
    parser.add_argument("--out", type=Path, default=Path("results/ranking_fidelity"))
    if sizes:
        parser.add_argument("--sizes", type=in_range(int, 2), nargs="+", default=list(sizes), help="group sizes")
    return parser


def run_jobs(title: str, jobs: Sequence[tuple], processes: int) -> dict[tuple, Any]:
    """Run each job, (function, *arguments), in a process pool and return its result; jobs start in the given order."""
    with ProcessPoolExecutor(processes) as pool:
        futures = {pool.submit(*job): job for job in jobs}
        with Bar(title, len(jobs)) as bar:
            return {futures[future]: future.result() for future in bar.over(as_completed(futures))}


def write_study(
    arguments: argparse.Namespace, file: str, found: Row, figure: str = "", draw: Callable[[Row], Figure] | None = None
) -> Row:
    """Write a study's results with its seed and commit, and its figure; return the written summary."""
    summary = {"judge": "simulated", "seed": arguments.seed, "commit": commit()} | found
    write_text(arguments.out / file, one_row_a_line(summary))
    if draw:
        with mpl.rc_context(STYLE):
            save_figure(draw(summary), arguments.out / figure)
    return summary


def one_row_a_line(summary: Row) -> str:
    """Return JSON in which each entry of a list has a line."""
    items = []
    for key, value in summary.items():
        is_list = isinstance(value, list)
        text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n]" if is_list else json.dumps(value)
        items.append(f'"{key}": {text}')
    return "{\n" + ",\n".join(items) + "\n}\n"
