"""Rivals of the tournaments on the same simulated groups, at equal judge calls and at equal tokens.

    python -m arenarl.studies.rivals          # ./reproduce.sh fidelity --rivals

Groups and judges are those of `fidelity`. A budget is a number of judge calls. Each method is measured with its own
calls, with as many as ArenaRL's tournament takes at most, 4N - 4, and with as many as read and write as many tokens as
that. How a judge errs that answers otherwise than with two scores is an assumption, and decides the result. One that
lists scores has a drift for the whole group, the noise of a score each and a lead linear in the places, `times` as much
as in a call of two. One that answers a checklist errs independently from answer to answer. No policy is trained here.

Writes results/ranking_fidelity/rivals.json. Not in the papers.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from random import Random
from statistics import fmean
from typing import Any

import numpy as np

from arenarl.config.command_line import at_least
from arenarl.report import markdown
from arenarl.report.provenance import commit
from arenarl.studies import simulated_rankings as simulated
from arenarl.studies.fidelity import MODELS
from arenarl.studies.repeated_scores import mean_of_calls
from arenarl.studies.simulated_rankings import NOISE, WARM_UP, Group, Noise, Tally
from arenarl.system.atomic_files import write_text
from arenarl.system.seeds import stable_seed
from arenarl.tournament.elo import Elo
from arenarl.tournament.mixed_model import JudgeVariances
from arenarl.tournament.play import play_tournament
from arenarl.tournament.ranking import Ranking, midranks, scored_calls
from arenarl.training.rewards.elo import elo_reward
from arenarl.training.rewards.mixture import mixture_reward

BUDGETS = ("own", "equal calls", "equal tokens")
SIZES = (8, 16)
ITEMS = 6  # of a checklist, about as many as the travel world's queries have constraints
# correlation of what an item asks for with quality: the share of items met then correlates with quality by .83,
# near what it is there
LOADING = 0.7
# standard deviation of what it takes to succeed, over queries, beside 1 of quality:
# half of the groups of 8 have one outcome
DIFFICULTY = 2.0
ALPHA = 3.0  # of `mixture`


@dataclass(frozen=True)
class Tokens:
    """What a judge reads and writes, in tokens. Our choice."""

    prompt: int = 800  # system prompt, rubric, query and task
    trajectory: int = 4000
    scores: int = 60  # of a trajectory on all dimensions
    listed: int = 50  # number, explanation and score
    item: int = 8

    @property
    def pair(self) -> int:
        return self.prompt + 2 * (self.trajectory + self.scores)

    @property
    def single(self) -> int:
        return self.prompt + self.trajectory + self.scores

    @property
    def checklist(self) -> int:
        return self.prompt + self.trajectory + ITEMS * self.item

    def listwise(self, size: int) -> int:
        return self.prompt + size * (self.trajectory + self.listed)


Scores = tuple[Sequence[float | None], int, int]  # higher is better; judge calls; tokens
Rank = Callable[[Group, int, Tokens], Awaitable[Scores]]


@dataclass(frozen=True)
class Method:
    """`own(size)` judge calls are what it takes for a group, `afforded(budget, size)` what as many tokens buy;
    `rank(group, calls, tokens)` takes at most so many calls. Who is not flexible has its own calls only.
    """

    own: Callable[[int], int]
    afforded: Callable[[int, int], int]
    rank: Rank
    is_flexible: bool = True


def paired(topology: str, **params) -> Rank:
    """Qualities by a tournament of pairs; `elo_matches` and `matches` follow the calls where the topology has such a
    budget."""
    variances = JudgeVariances()

    async def rank(group: Group, calls: int, tokens: Tokens) -> Scores:
        ranking = await _play(group, topology, calls // 2, variances, **params)
        if params.get("ranking") == "scores":
            variances.observe(len(group.quality_G), scored_calls(ranking.matches))
        places = [None if place is None else -place for place in ranking.ranks_G]
        return places, ranking.judge_calls, ranking.judge_calls * tokens.pair

    return rank


async def _play(
    group: Group, topology: str, matches: int, variances: JudgeVariances | None = None, **params
) -> Ranking:
    budget = {"balanced": {"matches": matches}, "elo": {"elo_matches": matches}}.get(topology, {})
    return await play_tournament(
        topology, len(group.quality_G), group.compare, seed=group.seed, variances=variances, **budget, **params
    )


async def pointwise(group: Group, calls: int, tokens: Tokens) -> Scores:
    return group.pointwise(calls), calls, calls * tokens.single


def ruler(times: float) -> Rank:
    """The mean of `calls` listwise calls, each in an order of its own."""

    async def rank(group: Group, calls: int, tokens: Tokens) -> Scores:
        scores = np.mean([group.listwise(call, times) for call in range(calls)], axis=0)
        return [round(float(score), 9) for score in scores], calls, calls * tokens.listwise(len(scores))

    return rank


async def brpo(group: Group, calls: int, tokens: Tokens) -> Scores:
    """The sign against one random member; with more matches than that takes,
    the mean sign against it and further ones."""
    size = len(group.quality_G)
    lots = Random(group.seed).sample(range(size), size)
    pairs = [(reference, other) for k, reference in enumerate(lots) for other in lots[k + 1 :]][: calls // 2]
    references = {reference for reference, _ in pairs}
    signs: list[list[float]] = [[] for _ in range(size)]
    for reference, other in pairs:
        (a, b), (d, c) = group.pair_scores[reference, other], group.pair_scores[other, reference]
        lead = float(np.sign(b + d - a - c))  # of the other, over both orders
        signs[other].append(lead)
        if other in references:
            signs[reference].append(-lead)
    return [fmean(of_one) if of_one else 0.0 for of_one in signs], 2 * len(pairs), 2 * len(pairs) * tokens.pair


async def mixture(group: Group, calls: int, tokens: Tokens) -> Scores:
    """A score of each, and matches: with its own calls the win rate over all pairs, with fewer Elo's ratings."""
    size = len(group.quality_G)
    matches = max(1, (calls - size) // 2)
    if matches >= size * (size - 1) // 2:
        ranking = await _play(group, "round_robin", matches)
        won_G = ranking.scores_G
    else:
        ranking = await _play(group, "elo", matches)
        won_G = elo_reward(ranking.scores_G, [True] * size)
    # a spread of 1.6 points of 10
    points_G = [min(1.0, max(0.0, 0.5 + 0.16 * score)) for score in group.pointwise(size)]
    read = size * tokens.single + ranking.judge_calls * tokens.pair
    return mixture_reward(points_G, won_G, ALPHA), size + ranking.judge_calls, read


def checklist(by: str) -> Rank:
    """The share of items met, each answer turned round at a rate that makes one item (`by` item), or the share of all
    (`by` whole), as reliable as a pointwise score."""

    async def rank(group: Group, calls: int, tokens: Tokens) -> Scores:
        size = len(group.quality_G)
        rng = np.random.default_rng(stable_seed(group.seed, "checklist"))
        met_GK = items_met(group.quality_G, rng)
        answers = met_GK[:, None] ^ (rng.random((size, -(-calls // size), ITEMS)) < flip_rate(group.noise, by))
        scores = mean_of_calls(answers.mean(axis=2), calls)
        return [round(score, 9) for score in scores], calls, calls * tokens.checklist

    return rank


def items_met(quality_G: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Which items each trajectory meets, (size, ITEMS): some are easy and some hard, all have to do with quality."""
    limits = np.linspace(-1, 1, ITEMS)
    asked = LOADING * quality_G[:, None] + np.sqrt(1 - LOADING**2) * rng.normal(size=(len(quality_G), ITEMS))
    return asked > limits


@lru_cache
def flip_rate(noise: Noise, by: str) -> float:
    """Asked twice, scores of noise s correlate by r = 1 / (1 + s²), yes-or-no answers by (1 - 2p)², and shares of K of
    them, whose true variance is V, by (1 - 2p)² V / ((1 - 2p)² V + p(1 - p) / K)."""
    wanted = 1 / (1 + noise.independent**2 + noise.shared**2)
    if by == "item":
        return (1 - wanted**0.5) / 2
    rng = np.random.default_rng(0)
    spread = items_met(rng.normal(size=20_000), rng).mean(axis=1).var()
    rates = np.linspace(0, 0.5, 5001)
    signal = (1 - 2 * rates) ** 2 * spread
    return float(rates[np.argmax(signal / (signal + rates * (1 - rates) / ITEMS) <= wanted)])


async def outcome_then_tournament(group: Group, calls: int, tokens: Tokens) -> Scores:
    """Whether each succeeds, which is known without a judge;
    where all do, or none, ArenaRL's tournament (Reasoning Arena's switch)."""
    needed = DIFFICULTY * np.random.default_rng(stable_seed(group.seed, "difficulty")).normal()
    solved_G = group.quality_G > needed
    if 0 < solved_G.sum() < len(solved_G):
        return solved_G.astype(float).tolist(), 0, 0
    return await paired("seeded_single_elimination")(group, calls, tokens)


def bracket_calls(size: int) -> int:
    """What ArenaRL's tournament takes at most: all are compared in calls and tokens with that."""
    return 2 * (2 * size - 2)


def methods(tokens: Tokens) -> dict[str, Method]:
    """Each with a memory of its own of the judge, where it has one."""

    def by_call(cost: int) -> Callable[[int, int], int]:
        return lambda budget, size: budget // cost

    def mixed(budget: int, size: int) -> int:
        return size + (budget - size * tokens.single) // tokens.pair

    def elo_calls(size: int) -> int:
        return 2 * Elo(size).budget

    def listed(budget: int, size: int) -> int:
        return budget // tokens.listwise(size)

    pair, single, items = by_call(tokens.pair), by_call(tokens.single), by_call(tokens.checklist)
    return {
        "ArenaRL: seeded single elimination": Method(
            bracket_calls, pair, paired("seeded_single_elimination"), is_flexible=False
        ),
        "`balanced`, 2n-2 matches, by scores (ours)": Method(bracket_calls, pair, paired("balanced", ranking="scores")),
        "pointwise scores": Method(lambda size: size, single, pointwise),
        "RULER": Method(lambda size: 1, listed, ruler(1.0)),
        "RULER, 1.5 times the noise": Method(lambda size: 1, listed, ruler(1.5)),
        "RULER, 2 times the noise": Method(lambda size: 1, listed, ruler(2.0)),
        "BRPO": Method(lambda size: 2 * (size - 1), pair, brpo),
        "TournO: Elo": Method(elo_calls, pair, paired("elo")),
        "TournO: Elo's matches, Bradley-Terry": Method(elo_calls, pair, paired("elo", elo_estimate="bradley_terry")),
        "TournO: mixture": Method(lambda size: size + size * (size - 1), mixed, mixture),
        "checklist, an item as reliable as a score": Method(lambda size: size, items, checklist("item")),
        "checklist, the whole as reliable as a score": Method(lambda size: size, items, checklist("whole")),
        "Reasoning Arena: outcome, else ArenaRL": Method(
            bracket_calls, pair, outcome_then_tournament, is_flexible=False
        ),
    }


def cell(*settings: Any) -> list[dict[str, Any]]:
    """Run `rows_of` in a process of its own."""
    return asyncio.run(rows_of(*settings))


async def rows_of(kind: str, strength: float, size: int, groups: int, seed: int) -> list[dict[str, Any]]:
    """A row for each method and budget: its tau with one judge, and what that took on average."""
    noise, tokens, rows = NOISE[kind](strength), Tokens(), []
    budget = bracket_calls(size)
    for number, name in product(range(len(BUDGETS)), methods(tokens)):
        method = methods(tokens)[name]  # with a memory that is new
        calls = (method.own(size), budget, method.afforded(budget * tokens.pair, size))[number]
        if number and not method.is_flexible:
            continue
        tally, found = Tally(), []
        for group_number in range(-WARM_UP, groups):
            group = Group(size, noise, stable_seed(seed, kind, strength, size, group_number))
            ranked: Scores = await method.rank(group, calls, tokens)
            if group_number >= 0:
                tally.add(group.quality_G, midranks(ranked[0]), (0, ranked[1], 0))
                found.append(ranked[2])
        found_row, kept = tally.row(), ("judge_calls", "tau", "tau_ci", "best_first")
        figures = {key: found_row[key] for key in kept}
        setting = {"noise": kind, "strength": strength, "group_size": size, "method": name, "budget": BUDGETS[number]}
        rows.append(setting | figures | {"tokens": round(fmean(found)), "groups": groups})
    return rows


def markdown_table(summary: dict[str, Any]) -> str:
    """docs/methods.md's: tau with a method's own calls / as many calls as ArenaRL's tournament / as many tokens."""
    parts = []
    for size in dict.fromkeys(row["group_size"] for row in summary["rows"]):
        rows = [row for row in summary["rows"] if row["group_size"] == size]
        found = {(row["method"], row["noise"], row["budget"]): row for row in rows}
        lines = []
        for method in dict.fromkeys(row["method"] for row in rows):
            own = found[method, MODELS[0][0], "own"]
            cells = [" / ".join(_tau(found.get((method, kind, budget))) for budget in BUDGETS) for kind, _ in MODELS]
            lines.append([method, f"{own['judge_calls']:g}", f"{own['tokens'] / 1000:.0f}", *cells])
        noises = [f"{kind} noise, {strength:g}" for kind, strength in MODELS]
        parts.append(markdown.table([f"N={size}", "judge calls", "thousand tokens", *noises], lines))
    return "\n\n".join(parts)


def _tau(row: dict[str, Any] | None) -> str:
    return f"{row['tau']:.3f}" if row else "-"


def main() -> None:
    parser = simulated.study_parser(__doc__, 300, "in a cell")
    parser.add_argument("--sizes", type=at_least(2, int), nargs="+", default=list(SIZES), help="group sizes")
    arguments = parser.parse_args()
    start = time.perf_counter()
    jobs = [(cell, *model, size, arguments.groups, arguments.seed) for model, size in product(MODELS, arguments.sizes)]
    found = simulated.run_jobs("rivals", jobs, arguments.processes)
    rows = [row for job in sorted(jobs, key=lambda job: arguments.sizes.index(job[3])) for row in found[job]]
    flips = [
        {"noise": kind, "strength": strength}
        | {by: round(flip_rate(NOISE[kind](strength), by), 3) for by in ("item", "whole")}
        for kind, strength in MODELS
    ]
    seconds = round(time.perf_counter() - start)
    summary = {"judge": "simulated", "seed": arguments.seed, "commit": commit(), "seconds": seconds}
    summary |= {"tokens_of": asdict(Tokens()), "flip_rates": flips, "rows": rows}
    write_text(arguments.out / "rivals.json", simulated.one_row_a_line(summary))
    print("Kendall's tau: a method's own calls / as many calls as ArenaRL's tournament at most / as many tokens")
    print(markdown_table(summary))
    print(f"groups and judges are simulated; {seconds} s; written: {arguments.out}/rivals.json")


if __name__ == "__main__":
    main()
