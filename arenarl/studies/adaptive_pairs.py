"""Would `balanced` rank better in rounds, with the later matches where the model is least sure of the order?
How much, is measured here.

    python -m arenarl.studies.adaptive_pairs          # ./reproduce.sh fidelity --adaptive

Groups, judges and the mixed model are those of `fidelity`; the choice of matches is told what no run knows, the judge's
true variances, so what it gains is more than a run would. Two taus are measured: tau-b, which is `fidelity`'s and
leaves out pairs that share a rank, and the tau in which these count as half right. Round robin ranks by wins, of which
many have equally many; a ranking by scores has next to no ties. `Adaptive` is a topology of one's own
(docs/tournament.md), no part of the tournaments. Writes results/ranking_fidelity/adaptive.json.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from statistics import fmean
from typing import Any

import numpy as np
from scipy.special import owens_t
from scipy.stats import kendalltau

from arenarl.config.command_line import at_least
from arenarl.report import markdown
from arenarl.report.provenance import commit
from arenarl.studies.fidelity import MODELS
from arenarl.studies.simulated_groups import NOISE, ROUNDING, Group
from arenarl.studies.simulated_rankings import WARM_UP, interval, one_row_a_line, run_jobs, study_parser
from arenarl.system.atomic_files import write_text
from arenarl.system.seeds import stable_seed
from arenarl.tournament.mixed_model import JudgeVariances
from arenarl.tournament.play import play_tournament
from arenarl.tournament.ranking import scored_calls
from arenarl.tournament.schedules import Balanced, Pairing, Results, parse_budget

OWN = "arenarl.studies.adaptive_pairs:Adaptive"
UNKNOWN = 1e-4  # precision of what nothing is known of
LIKELY = 16  # candidates of which Owen's function is asked, which takes most of the time
METHODS: dict[str, dict[str, Any]] = {  # all of 4N-4 calls
    "`balanced`, all at once": {"topology": "balanced"},
    "two rounds": {"topology": OWN, "rounds": 2},
    "three rounds": {"topology": OWN, "rounds": 3},
    "one match after the other": {"topology": OWN, "rounds": 30},
    "three rounds, twice the pairs in one order": {
        "topology": OWN,
        "rounds": 3,
        "matches": "4n-4",
        "bidirectional": False,
    },
}


@dataclass(frozen=True)
class Adaptive(Balanced):
    """`matches` in so many rounds: the first spread evenly, each later one where it is expected to set the most pairs
    right.

    A round's matches are chosen one by one: each time the one that leaves the fewest pairs in the wrong order to
    expect. A pair whose qualities differ by m, give or take s, and once the match is judged give or take s', will then
    be ranked wrong with the probability 2 T(|m| / s, s' / √(s² - s'²)), where T is Owen's function; sums over all pairs
    are compared. `noise` and `shared` are variances as in `mixed_model`, in units of the quality's.
    """

    rounds: int = 3
    noise: float = 1.0
    shared: float = 0.0
    orders: int = 2  # that a match is judged in

    def ready(self, results: Results) -> list[Pairing]:
        budget, played = parse_budget(self.matches, self.size), len(results) // 2
        ends = sorted({budget * (number + 1) // self.rounds for number in range(self.rounds)} - {0})
        if not played:
            first = Balanced(self.size, self.seed, matches=ends[0]) if ends else self
            return Balanced.ready(first, results)
        if played not in ends[:-1]:
            return []
        number = ends.index(played) + 1
        return [Pairing(i, j, number) for i, j in self.choose(results, ends[number] - played)]

    def choose(self, results: Results, count: int) -> list[tuple[int, int]]:
        """`count` pairs that have not met, the most telling first; who is shown first is drawn by lot."""
        pairs = list(combinations(range(self.size), 2))
        to_d, to_t = self._designs(pairs)
        d_variance, t_variance = 2 * self.noise / self.orders, (4 * self.shared + 2 * self.noise) / self.orders
        mean, covariance = self._posterior(results, d_variance, t_variance)
        now = np.einsum("pn,nm,pm->p", to_d, covariance, to_d)
        gap = np.abs(to_d @ mean) / np.sqrt(now)
        is_taken = np.array([pair in results for pair in pairs])
        chosen = []
        for _ in range(count):
            after = _variances_after(covariance, to_d, to_t, d_variance, t_variance)
            after = np.clip(after, 1e-9, now - 1e-9)
            # what it tends to where s' is small
            roughly = np.where(is_taken, np.inf, np.sqrt(after / now) @ np.exp(-(gap**2) / 2))
            likely = np.argsort(roughly)[:LIKELY]
            # half the pairs to expect in the wrong order
            wrong = owens_t(gap, np.sqrt(after / (now - after))[likely]).sum(axis=1)
            best = likely[np.argmin(np.where(is_taken[likely], np.inf, wrong))]
            is_taken[best] = True
            i, j = pairs[best]
            chosen.append((i, j) if Random(f"{self.seed} {i} {j}").random() < 0.5 else (j, i))
            for design, variance in ((to_d[best], d_variance), (to_t[best], t_variance)):
                seen = covariance @ design
                covariance = covariance - np.outer(seen, seen) / (variance + seen @ design)
        return chosen

    def _designs(self, pairs: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        """(pairs, size + 2) of the difference and of the sum of a pair's scores:
        the qualities, the mean, the position."""
        first, second = np.eye(self.size + 2)[np.array(pairs).T]
        mean, position = np.eye(self.size + 2)[-2:]
        return first - second + position, first + second + 2 * mean

    def _posterior(self, results: Results, d_variance: float, t_variance: float) -> tuple[np.ndarray, np.ndarray]:
        """Mean (size + 2,) and covariance after the verdicts so far; in both orders the position cancels."""
        played = [(pair, scores) for pair, scores in list(results.items())[::2] if scores]
        precision, weighted = (
            np.diag([1.0] * self.size + [UNKNOWN, 1.0 if self.orders == 1 else 1e6]),
            np.zeros(self.size + 2),
        )
        for to_d, to_t, (_, (a, b)) in (
            zip(*self._designs([pair for pair, _ in played]), played, strict=True) if played else ()
        ):
            for design, value, variance in ((to_d, a - b, d_variance), (to_t, a + b, t_variance)):
                precision += np.outer(design, design) / variance
                weighted += design * value / self.orders / variance
        covariance = np.linalg.inv(precision)
        return covariance @ weighted, covariance


def _variances_after(
    covariance: np.ndarray, to_d: np.ndarray, to_t: np.ndarray, d_variance: float, t_variance: float
) -> np.ndarray:
    """(candidates, pairs): variance of each pair's difference once the candidate has been judged."""
    of_d, with_t = to_d @ covariance @ to_d.T, to_d @ covariance @ to_t.T
    of_t = np.einsum("pn,nm,pm->p", to_t, covariance, to_t)
    d, both = np.diag(of_d) + d_variance, np.diag(with_t)
    after_d = np.diag(of_d) - of_d**2 / d[:, None]
    rest = with_t.T - of_d * (both / d)[:, None]
    return after_d - rest**2 / (t_variance + of_t - both**2 / d)[:, None]


async def _rank(
    group: Group, size: int, seed: int, known: JudgeVariances, topology: str, **options: Any
) -> list[float | None]:
    """Ranks by the mixed model, which then learns from the group."""
    if topology == OWN:
        noise, orders = group.noise, 1 + options.get("bidirectional", True)
        options |= {"noise": noise.independent**2 + ROUNDING**2 / 12, "shared": noise.shared**2, "orders": orders}
    ranking = await play_tournament(topology, size, group.compare, seed, ranking="scores", variances=known, **options)
    known.observe(size, scored_calls(ranking.matches))
    return ranking.ranks_G


def taus(quality_G: np.ndarray, ranks_G: Sequence[float]) -> tuple[float, float]:
    """Kendall's tau-b, and the tau in which pairs that share a rank are half right."""
    ranks = np.array(ranks_G)
    agree = [
        np.sign((quality_G[i] - quality_G[j]) * (ranks[j] - ranks[i])) for i, j in combinations(range(len(ranks)), 2)
    ]
    return float(np.nan_to_num(kendalltau(quality_G, -ranks).statistic)), float(np.mean(agree))


def rows(kind: str, strength: float, size: int, groups: int, seed: int) -> list[dict[str, Any]]:
    """Of each method its taus less those of round robin by wins, over the same groups."""

    async def play() -> dict[str, list[tuple[float, float]]]:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ("round_robin", *METHODS)}
        known = {name: JudgeVariances() for name in METHODS}
        for number in range(-WARM_UP, groups):
            group = Group(size, NOISE[kind](strength), stable_seed(seed, "adaptive", kind, strength, size, number))
            ranks = {
                name: await _rank(group, size, number, known[name], **options) for name, options in METHODS.items()
            }
            ranks["round_robin"] = (await play_tournament("round_robin", size, group.compare, number)).ranks_G
            for name, ranks_G in ranks.items() if number >= 0 else ():
                found[name].append(taus(group.quality_G, ranks_G))
        return found

    found = asyncio.run(play())
    wins = np.array(found.pop("round_robin"))
    lines = []
    for name, values in found.items():
        less = (np.array(values) - wins).T
        line = {"noise": kind, "strength": strength, "group_size": size, "groups": groups, "method": name}
        for tau, differences, of_wins in zip(("tau_b", "tau"), less, wins.T, strict=True):
            line[tau] = {
                "round_robin": round(fmean(of_wins), 4),
                "less": round(fmean(differences), 4),
                "ci": interval(list(differences)),
            }
        lines.append(line)
    return lines


def markdown_table(summary: dict[str, Any]) -> str:
    """Each method's tau less that of round robin by wins, with half the width of its 95 % interval."""
    found = {(row["method"], row["noise"]): row for row in summary["rows"]}
    names = {"tau_b": "tau-b", "tau": "ties half right"}
    heads = [f"{kind} {strength:g}, {names[tau]}" for tau in names for kind, strength in MODELS]
    lines = [[name, *(_format(found[name, kind][tau]) for tau in names for kind, _ in MODELS)] for name in METHODS]
    return markdown.table(["4N-4 calls, minus round robin by wins", *heads], lines)


def _format(figure: dict[str, Any]) -> str:
    low, high = figure["ci"]
    return f"{figure['less']:+.3f} ± {(high - low) / 2:.3f}"


def main() -> None:
    parser = study_parser(__doc__, 1000, "for each kind of noise")
    parser.add_argument("--size", type=at_least(3, int), default=16, help="group size")
    arguments = parser.parse_args()
    jobs = [(rows, *model, arguments.size, arguments.groups, arguments.seed) for model in MODELS]
    rows_of = run_jobs("adaptive pairs", jobs, arguments.processes)
    summary = {
        "judge": "simulated",
        "seed": arguments.seed,
        "commit": commit(),
        "rows": [row for job in jobs for row in rows_of[job]],
    }
    write_text(arguments.out / "adaptive.json", one_row_a_line(summary))
    print(markdown_table(summary))
    print(f"groups and judges are simulated; written: {arguments.out}/adaptive.json")


if __name__ == "__main__":
    main()
