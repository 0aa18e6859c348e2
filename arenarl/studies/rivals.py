"""Rivals of the tournaments on the same simulated groups, at equal judge calls and at equal tokens.

    python -m arenarl.studies.rivals          # ./reproduce.sh fidelity --rivals

Groups and judges are those of `fidelity`. Each method runs with three budgets of judge calls: its own calls, as many
calls as ArenaRL's tournament takes at most (4N - 4), and as many calls as cost that tournament's tokens. How a judge
errs in listwise calls and checklists is our assumption, and the result depends on it. A listwise call has one drift for
the group, noise for each score, and a position bias that is linear in the position; all three are `times` as large as
in a pairwise call. Errors in a checklist are independent. No policy is trained here.

Writes results/ranking_fidelity/rivals.json. Not in the papers.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from random import Random
from statistics import fmean

import numpy as np

from arenarl.report import markdown
from arenarl.studies import simulated_rankings as simulated
from arenarl.studies.fidelity import MODELS, model_headings
from arenarl.studies.repeated_scores import mean_of_calls
from arenarl.studies.simulated_rankings import NOISE, WARM_UP, Group, Noise, Row, Tally, rows_with
from arenarl.system.errors import run_cli
from arenarl.system.seeds import stable_seed
from arenarl.tournament.dgr import feedback_arcs
from arenarl.tournament.elo import Elo
from arenarl.tournament.mixed_model import JudgeVariances
from arenarl.tournament.play import run_tournament
from arenarl.tournament.ranking import Ranking, midranks, scored_calls
from arenarl.tournament.schedules import circulant_pairs
from arenarl.training.rewards.circular import mean_scores
from arenarl.training.rewards.elo import elo_reward
from arenarl.training.rewards.mixture import mixture_reward

BUDGETS = ("own", "equal calls", "equal tokens")
SIZES = (8, 16)
ITEMS = 6  # items of a checklist, about as many as a travel query has constraints
# correlation of an item with quality: the share of items met then correlates with quality by .83, as in travel
LOADING = 0.7
# standard deviation of the difficulty over queries; quality has 1. In half of the groups of 8 all succeed or all fail
DIFFICULTY = 2.0
ALPHA = 3.0  # alpha of the method `mixture`


@dataclass(frozen=True)
class Tokens:
    """Tokens that a judge reads and writes. Our choice."""

    prompt: int = 800  # system prompt, rubric, query and task
    trajectory: int = 4000
    scores: int = 60  # written for a trajectory, on all dimensions
    listed: int = 50  # written for a trajectory in a listwise call: number, explanation and score
    item: int = 8  # written for an item of a checklist

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


TOKENS = Tokens()

Scores = tuple[Sequence[float | None], int, int]  # higher is better; judge calls; tokens
Rank = Callable[[Group, int], Scores]


@dataclass(frozen=True)
class Method:
    """A way to rank a group.

    `own(size)` is its own number of judge calls, `afforded(budget, size)` the number that `budget` tokens pay for.
    `rank(group, calls)` makes at most `calls` calls. An inflexible method runs with its own calls only.
    """

    own: Callable[[int], int]
    afforded: Callable[[int, int], int]
    rank: Rank
    is_flexible: bool = True


def paired(topology: str, **params) -> Rank:
    """Rank by a tournament of pairs. `balanced` and `elo` play as many matches as the calls allow."""
    variances = JudgeVariances()

    def rank(group: Group, calls: int) -> Scores:
        ranking = _play(group, topology, calls // 2, variances=variances, **params)
        if params.get("ranking") == "scores":
            variances.observe(len(group.quality_G), scored_calls(ranking.matches))
        places = [None if place is None else -place for place in ranking.ranks_G]
        return places, ranking.judge_calls, ranking.judge_calls * TOKENS.pair

    return rank


def _play(group: Group, topology: str, matches: int, **params) -> Ranking:
    params |= {"balanced": {"matches": matches}, "elo": {"elo_matches": matches}}.get(topology, {})
    return run_tournament(topology, len(group.quality_G), group.compare, seed=group.seed, **params)


def pointwise(group: Group, calls: int) -> Scores:
    calls = min(calls, group.point_scores.size)  # a small group has fewer than the tokens of its tournament pay for
    return group.pointwise(calls), calls, calls * TOKENS.single


def ruler(times: float) -> Rank:
    """Rank by the mean of `calls` listwise calls, each in its own random order."""

    def rank(group: Group, calls: int) -> Scores:
        scores = np.mean([group.listwise(call, times) for call in range(calls)], axis=0)
        return [round(float(score), 9) for score in scores], calls, calls * TOKENS.listwise(len(scores))

    return rank


def brpo(group: Group, calls: int) -> Scores:
    """Rank by the sign against one random reference; further calls add references, and the signs are averaged."""
    size = len(group.quality_G)
    lots = Random(group.seed).sample(range(size), size)
    pairs = [(reference, other) for k, reference in enumerate(lots) for other in lots[k + 1 :]][: calls // 2]
    references = {reference for reference, _ in pairs}
    signs: list[list[float]] = [[] for _ in range(size)]
    for reference, other in pairs:
        (a, b), (d, c) = group.pair_scores[reference, other], group.pair_scores[other, reference]
        lead = float(np.sign(b + d - a - c))  # lead of `other`, over both orders
        signs[other].append(lead)
        if other in references:
            signs[reference].append(-lead)
    scores = [fmean(signs_of_one) if signs_of_one else 0.0 for signs_of_one in signs]
    return scores, 2 * len(pairs), 2 * len(pairs) * TOKENS.pair


def mixture(group: Group, calls: int) -> Scores:
    """Combine a score of each trajectory with matches: win rates over all pairs, or with fewer calls Elo ratings."""
    size = len(group.quality_G)
    matches = max(1, (calls - size) // 2)
    if matches >= size * (size - 1) // 2:
        ranking = _play(group, "round_robin", matches)
        won_G = ranking.scores_G
    else:
        ranking = _play(group, "elo", matches)
        won_G = elo_reward(ranking.scores_G, [True] * size)
    # one standard deviation of quality is 1.6 points of 10
    points_G = [min(1.0, max(0.0, 0.5 + 0.16 * score)) for score in group.pointwise(size)]
    read = size * TOKENS.single + ranking.judge_calls * TOKENS.pair
    return mixture_reward(points_G, won_G, ALPHA), size + ranking.judge_calls, read


def circular(group: Group, calls: int) -> Scores:
    """Rank by NeMo Gym's mean score: everybody meets its neighbours on a random circle, in one order. Further calls add
    the next neighbours, up to all pairs."""
    size, rng = len(group.quality_G), Random(group.seed)
    lots = rng.sample(range(size), size)
    pairs = [(lots[p], lots[q]) for p, q in circulant_pairs(size, min(calls, size * (size - 1) // 2), rng)]
    # one standard deviation of quality is 1.6 points of 10
    points = np.clip(5 + 1.6 * group.pair_scores, 0, 10)
    scores = mean_scores([(i, j, *points[i, j].tolist()) for i, j in pairs], size)
    return scores, len(pairs), len(pairs) * TOKENS.pair


def has_cycle(group: Group, both_orders: bool) -> bool:
    """Return True if the verdicts on all pairs contain a cycle: a beats b, b beats c, and c beats a."""
    lead = group.pair_scores[..., 0] - group.pair_scores[..., 1]  # of the trajectory shown first
    lead = lead - lead.T if both_orders else np.triu(lead) - np.triu(lead).T
    return bool(feedback_arcs({(i, j) for i, j in np.argwhere(lead > 0).tolist()}, range(len(lead))))


def checklist(by: str) -> Rank:
    """Rank by the share of checklist items that are met; the judge flips answers at random.
    By `by`, the answer to one "item", or the share of the "whole" checklist, is as reliable as a pointwise score."""

    def rank(group: Group, calls: int) -> Scores:
        size = len(group.quality_G)
        rng = np.random.default_rng(stable_seed(group.seed, "checklist"))
        met_GK = items_met(group.quality_G, rng)
        answers = met_GK[:, None] ^ (rng.random((size, -(-calls // size), ITEMS)) < flip_rate(group.noise, by))
        scores = mean_of_calls(answers.mean(axis=2), calls)
        return [round(score, 9) for score in scores], calls, calls * TOKENS.checklist

    return rank


def items_met(quality_G: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return which items each trajectory meets, (size, ITEMS): easy and hard items, all correlated with quality."""
    limits = np.linspace(-1, 1, ITEMS)
    levels_GK = LOADING * quality_G[:, None] + np.sqrt(1 - LOADING**2) * rng.normal(size=(len(quality_G), ITEMS))
    return levels_GK > limits


@lru_cache
def flip_rate(noise: Noise, by: str) -> float:
    """Return the flip rate p at which repeated answers correlate as much as repeated scores.

    Repeated scores with noise s correlate by 1 / (1 + s²), yes-or-no answers by (1 - 2p)², and shares of K answers with
    true variance V by (1 - 2p)² V / ((1 - 2p)² V + p(1 - p) / K).
    """
    wanted = 1 / (1 + noise.independent**2 + noise.shared**2)
    if by == "item":
        return (1 - wanted**0.5) / 2
    rng = np.random.default_rng(0)
    spread = items_met(rng.normal(size=20_000), rng).mean(axis=1).var()
    rates = np.linspace(0, 0.5, 5001)
    signal = (1 - 2 * rates) ** 2 * spread
    return float(rates[np.argmax(signal / (signal + rates * (1 - rates) / ITEMS) <= wanted)])


def outcome_then_tournament(group: Group, calls: int) -> Scores:
    """Rank by success, which needs no judge; if all or none succeed, play ArenaRL's tournament (Reasoning Arena)."""
    needed = DIFFICULTY * np.random.default_rng(stable_seed(group.seed, "difficulty")).normal()
    solved_G = group.quality_G > needed
    if 0 < solved_G.sum() < len(solved_G):
        return solved_G.astype(float).tolist(), 0, 0
    return paired("seeded_single_elimination")(group, calls)


def bracket_calls(size: int) -> int:
    """Return the most judge calls that ArenaRL's tournament takes, the budget of all methods."""
    return 2 * (2 * size - 2)


def methods() -> dict[str, Method]:
    """Return all methods by name. Methods that estimate the judge's noise start without an estimate."""

    def calls_of(cost: int) -> Callable[[int, int], int]:
        return lambda budget, size: budget // cost

    def mixed(budget: int, size: int) -> int:
        return size + (budget - size * TOKENS.single) // TOKENS.pair

    def elo_calls(size: int) -> int:
        return 2 * Elo(size).budget

    def listwise(times: float) -> Method:
        return Method(lambda size: 1, lambda budget, size: budget // TOKENS.listwise(size), ruler(times))

    pair, single, items = calls_of(TOKENS.pair), calls_of(TOKENS.single), calls_of(TOKENS.checklist)
    bracket, outcome_first = paired("seeded_single_elimination"), outcome_then_tournament
    return {
        "ArenaRL: seeded single elimination": Method(bracket_calls, pair, bracket, is_flexible=False),
        "`balanced`, 2n-2 matches, by scores (ours)": Method(bracket_calls, pair, paired("balanced", ranking="scores")),
        "pointwise scores": Method(lambda size: size, single, pointwise),
        "RULER": listwise(1.0),
        "RULER, 1.5 times the noise": listwise(1.5),
        "RULER, 2 times the noise": listwise(2.0),
        "BRPO": Method(lambda size: 2 * (size - 1), pair, brpo),
        "TournO: Elo": Method(elo_calls, pair, paired("elo")),
        "TournO: Elo's matches, Bradley-Terry": Method(elo_calls, pair, paired("elo", elo_estimate="bradley_terry")),
        "NeMo Gym: circular": Method(lambda size: size, pair, circular),
        "DGR": Method(lambda size: size * (size - 1), pair, paired("dgr"), is_flexible=False),
        "TournO: mixture": Method(lambda size: size + size * (size - 1), mixed, mixture),
        "checklist, an item as reliable as a score": Method(lambda size: size, items, checklist("item")),
        "checklist, the whole as reliable as a score": Method(lambda size: size, items, checklist("whole")),
        "Reasoning Arena: outcome, else ArenaRL": Method(bracket_calls, pair, outcome_first, is_flexible=False),
    }


def rows_of(kind: str, strength: float, size: int, groups: int, seed: int) -> list[Row]:
    """Return a row for each method and budget: its tau, and its mean calls and tokens per group."""
    noise, rows = NOISE[kind](strength), []
    budget = bracket_calls(size)
    for number, name in product(range(len(BUDGETS)), methods()):
        method = methods()[name]  # a new instance, which has no estimate of the judge from the previous budget
        if number and not method.is_flexible:
            continue
        calls = (method.own(size), budget, method.afforded(budget * TOKENS.pair, size))[number]
        tally, spent = Tally(), []
        for group_number in range(-WARM_UP, groups):
            group = Group(size, noise, stable_seed(seed, kind, strength, size, group_number))
            scores, judge_calls, tokens_used = method.rank(group, calls)
            if group_number >= 0:
                tally.add(group.quality_G, midranks(scores), (0, judge_calls, 0))
                spent.append(tokens_used)
        figures = {key: tally.row()[key] for key in ("judge_calls", "tau", "tau_ci", "best_first")}
        row = simulated.setting(kind, strength, size) | {"method": name, "budget": BUDGETS[number]} | figures
        rows.append(row | {"tokens": round(fmean(spent)), "groups": groups})
    return rows


def cycle_rates(kind: str, strength: float, size: int, groups: int, seed: int) -> Row:
    """Return the share of groups whose verdicts on all pairs contain a cycle, with one order a match and with both."""
    noise, numbers = NOISE[kind](strength), range(groups)
    drawn = [Group(size, noise, stable_seed(seed, kind, strength, size, number)) for number in numbers]
    rates = {order: round(fmean(has_cycle(group, order == "both") for group in drawn), 3) for order in ("one", "both")}
    return simulated.setting(kind, strength, size) | rates


def markdown_table(summary: Row) -> str:
    """Return docs/methods.md's tables: tau with each of `BUDGETS`, and the share of groups with a cycle."""
    tables = []
    for size in dict.fromkeys(row["group_size"] for row in summary["rows"]):
        rows = rows_with(summary["rows"], group_size=size)
        row_of = {(row["method"], row["noise"], row["budget"]): row for row in rows}
        lines = []
        for method in dict.fromkeys(row["method"] for row in rows):
            own = row_of[method, MODELS[0][0], "own"]
            cells = [
                simulated.format_taus(row_of, [(method, kind, budget) for budget in BUDGETS]) for kind, _ in MODELS
            ]
            lines.append([method, f"{own['judge_calls']:g}", f"{own['tokens'] / 1000:.0f}", *cells])
        tables.append(markdown.table([f"N={size}", "judge calls", "thousand tokens", *model_headings()], lines))
    kinds = [f"{name}, {orders}" for name in model_headings() for orders in ("one order", "both")]
    sizes = dict.fromkeys(row["group_size"] for row in summary["cycles"])
    lines = []
    for size in sizes:
        rows = rows_with(summary["cycles"], group_size=size)
        lines.append([f"N={size}", *(f"{100 * row[order]:.0f} %" for row in rows for order in ("one", "both"))])
    return "\n\n".join([*tables, markdown.table(["groups with a cycle", *kinds], lines)])


def main() -> None:
    arguments = simulated.study_parser(__doc__, "groups in a cell", SIZES).parse_args()
    start = time.perf_counter()
    jobs = [
        (rows_of, *model, size, arguments.groups, arguments.seed) for model, size in product(MODELS, arguments.sizes)
    ]
    results = simulated.run_jobs("rivals", jobs, arguments.processes)
    rows = [row for job in sorted(jobs, key=lambda job: arguments.sizes.index(job[3])) for row in results[job]]
    flips = []
    for kind, strength in MODELS:
        rates = {by: round(flip_rate(NOISE[kind](strength), by), 3) for by in ("item", "whole")}
        flips.append({"noise": kind, "strength": strength} | rates)
    cycles = [cycle_rates(*job[1:]) for job in jobs]
    seconds = round(time.perf_counter() - start)
    results = {"seconds": seconds, "tokens_of": asdict(TOKENS), "flip_rates": flips, "cycles": cycles, "rows": rows}
    summary = simulated.write_study(arguments, "rivals.json", results)
    print("Kendall's tau: a method's own calls / as many calls as ArenaRL's tournament at most / as many tokens")
    print(markdown_table(summary))
    print(f"groups and judges are simulated; {seconds} s; written: {arguments.out}/rivals.json")


if __name__ == "__main__":
    run_cli(main, goes_on=False)
