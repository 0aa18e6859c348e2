"""TournO's batched Elo as a topology: play the pairs with the least certain outcome, and update ratings.

Differs from TournO: both orders are judged (Eq. 3, ArenaRL), a draw is half a win, and no pair is judged twice. The
budget of matches is always spent, even if ratings settle early. A pair's uncertainty falls with all matches of either
entrant; TournO counts the meetings of the pair. Elo ratings depend on the order of the matches; the Bradley-Terry
estimate from the same outcomes does not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import combinations
from typing import ClassVar

from arenarl.tournament.schedules import DECIMALS, Pairing, Results, Standing, Topology, outcome

K = 32.0  # Elo points at stake in a match; TournO's value
SCALE = 400.0 / math.log(10)  # Elo points per unit of log odds
# Our choice: draws of every entrant with an entrant of rating 0. Without them, an entrant that won all its matches
# would have an infinite rating.
PRIOR_DRAWS = 1.0

Outcome = tuple[int, int, float]  # (i, j, the share that i won: 1, .5 or 0)


@dataclass(frozen=True)
class Elo(Topology):
    """⌈N log₂ N⌉ matches, or `elo_matches`, at most one per pair, in batches of ⌊N/2⌋; ranked by rating.

    A batch takes the pairs with the largest p(1 - p) + 1 / (1 + matches of the two entrants). p is the chance to win,
    from the ratings before the batch. The random order breaks ties. `elo_estimate` is `sequential` (ratings updated
    match by match) or `bradley_terry`. Failed matches count towards the budget but change no rating. A perfect judge
    need not give the exact order.
    """

    choices: ClassVar = {"elo_estimate": ("sequential", "bradley_terry")}

    elo_matches: int | None = None
    elo_estimate: str = "sequential"

    def __post_init__(self):
        super().__post_init__()
        if self.elo_matches is not None and self.elo_matches < 1:
            raise ValueError(f"elo_matches={self.elo_matches}: must be at least 1, or None")

    @property
    def budget(self) -> int:
        """The number of matches to play."""
        wanted = math.ceil(self.size * math.log2(self.size)) if self.elo_matches is None else self.elo_matches
        return min(wanted, self.size * (self.size - 1) // 2)

    def ready(self, results: Results) -> list[Pairing]:
        played, batch = len(results) // 2, max(1, self.size // 2)
        if played % batch or played >= self.budget:
            return []
        chosen = self._most_uncertain(results, min(batch, self.budget - played))
        return [Pairing(i, j, played // batch) for i, j in chosen]

    def standings(self, results: Results) -> list[Standing | None]:
        outcomes = self._outcomes(results)
        ratings = self._ratings(outcomes) if self.elo_estimate == "sequential" else bradley_terry(self.size, outcomes)
        judged = {entrant for i, j, _ in outcomes for entrant in (i, j)}
        return [Standing.of_score(round(ratings[i], DECIMALS)) if i in judged else None for i in range(self.size)]

    def _ratings(self, outcomes: Sequence[Outcome]) -> list[float]:
        ratings = [0.0] * self.size
        for i, j, won in outcomes:
            gain = K * (won - chance(ratings[i] - ratings[j]))
            ratings[i], ratings[j] = ratings[i] + gain, ratings[j] - gain
        return ratings

    def _outcomes(self, results: Results) -> list[Outcome]:
        """Return the outcomes of the matches with a verdict, batch by batch.
        Inside a batch they follow the random order, not the order of arrival."""
        place = {entrant: k for k, entrant in enumerate(self.lots)}
        pairs, batch = [pair for pair in results if place[pair[0]] < place[pair[1]]], max(1, self.size // 2)
        for k in range(0, len(pairs), batch):
            pairs[k : k + batch] = sorted(pairs[k : k + batch], key=lambda pair: (place[pair[0]], place[pair[1]]))
        return [(i, j, 0.5 + 0.5 * outcome(results[i, j])) for i, j in pairs if results[i, j]]

    def _most_uncertain(self, results: Results, count: int) -> list[tuple[int, int]]:
        ratings, played = self._ratings(self._outcomes(results)), [0] * self.size
        for i, _ in results:  # holds each match from both sides
            played[i] += 1

        def certainty(i: int, j: int) -> float:
            p = chance(ratings[i] - ratings[j])
            return -round(p * (1 - p), DECIMALS) - 1 / (1 + played[i] + played[j])

        pairs = [pair for pair in combinations(self.lots, 2) if pair not in results]
        heap = [(certainty(*pair), place, pair) for place, pair in enumerate(pairs)]  # the place breaks ties
        heapify(heap)
        batch: list[tuple[int, int]] = []
        while len(batch) < count:
            known, place, pair = heap[0]
            # certainty only grows, so the first pair that is up to date is the least certain
            if (now := certainty(*pair)) > known:
                heapreplace(heap, (now, place, pair))
                continue
            batch.append(heappop(heap)[2])
            for entrant in pair:
                played[entrant] += 1
        return batch


def chance(lead: float) -> float:
    """Return the chance to win with a lead of `lead` Elo points.

    >>> chance(0.0), round(chance(400.0), 4)
    (0.5, 0.9091)
    """
    return 1 / (1 + 10 ** (-lead / 400))


def bradley_terry(size: int, outcomes: Sequence[Outcome]) -> list[float]:
    """Return the maximum-likelihood Bradley-Terry ratings (size,) in Elo points. The order of the outcomes does not
    matter.

    A draw is half a win for each. Every entrant has `PRIOR_DRAWS` further draws with an entrant of rating 0. Solved by
    Newton's method with steps of at most 1 in log odds.

    >>> [round(rating) for rating in bradley_terry(3, [(0, 1, 1.0), (1, 2, 1.0)])]
    [191, 0, -191]
    """
    import numpy as np  # imported late: other topologies do without it

    won, met = np.full(size, PRIOR_DRAWS / 2), np.zeros((size, size))
    for i, j, share in outcomes:
        won[[i, j]] += share, 1 - share
        met[[i, j], [j, i]] += 1
    log_odds, step = np.zeros(size), np.ones(size)
    while np.abs(step).max() > 1e-9:
        p = 1 / (1 + np.exp(log_odds - log_odds[:, None]))  # chance of the row's entrant against the column's
        prior = 1 / (1 + np.exp(-log_odds))
        weights = met * p * (1 - p)
        curvature = np.diag(weights.sum(axis=1) + PRIOR_DRAWS * prior * (1 - prior)) - weights
        step = np.linalg.solve(curvature, won - (met * p).sum(axis=1) - PRIOR_DRAWS * prior)
        log_odds += step / max(1.0, np.abs(step).max())
    return (SCALE * log_odds).tolist()
