"""Elo: matches go where the outcome is least certain, ratings follow the verdicts; TournO's batched Elo, as a topology.

Departs from it: both orders are asked (Eq. 3, ArenaRL), a draw is half a win, no pair is judged twice, and the budget
of matches is spent, as nothing here depends on when ratings have settled. Since a pair meets once, how often the two
have played at all stands for how often they have met. Elo's ratings depend on the order of the matches; the
Bradley-Terry estimate of the same outcomes does not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from arenarl.tournament.schedules import DECIMALS, Pairing, Results, Standing, Topology, check_choice

K = 32.0  # points that a match is about, TournO's
SCALE = 400.0 / math.log(10)  # Elo points of a unit of log odds
# that everybody has against an entrant of rating 0: without any, who won all would have no estimate. Our choice
PRIOR_DRAWS = 1.0

Outcome = tuple[int, int, float]  # (i, j, what i won of it: 1, .5 or 0)


@dataclass(frozen=True)
class Elo(Topology):
    """⌈N log₂ N⌉ matches, or `elo_matches`, at most one a pair, in batches of ⌊N/2⌋; ranked by rating.

    A batch takes the pairs with the largest p(1 - p) + 1 / (1 + matches that the two have played), p being the chance
    to win by the ratings before it; equal ones by lot. `elo_estimate`: `sequential` ratings, from match to match, or
    `bradley_terry`. Failed matches count towards the budget and rate nobody. Promises no exact order.
    """

    elo_matches: int | None = None
    elo_estimate: str = "sequential"

    def __post_init__(self):
        check_choice("elo_estimate", self.elo_estimate, ["sequential", "bradley_terry"])

    @property
    def budget(self) -> int:
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
        """Of the matches with a verdict, batch by batch, inside a batch by lot: whatever came first."""
        place = {entrant: k for k, entrant in enumerate(self.lots)}
        pairs, batch = [pair for pair in results if place[pair[0]] < place[pair[1]]], max(1, self.size // 2)
        outcomes = []
        for k in range(0, len(pairs), batch):
            for i, j in sorted(pairs[k : k + batch], key=lambda pair: (place[pair[0]], place[pair[1]])):
                if scores := results[i, j]:
                    outcomes.append((i, j, 0.5 + 0.5 * ((scores[0] > scores[1]) - (scores[0] < scores[1]))))
        return outcomes

    def _most_uncertain(self, results: Results, count: int) -> list[tuple[int, int]]:
        ratings, played = self._ratings(self._outcomes(results)), [0] * self.size
        for i, _ in results:  # which holds each match from both sides
            played[i] += 1
        variance = {}
        for i, j in combinations(self.lots, 2):
            if (i, j) not in results:
                p = chance(ratings[i] - ratings[j])
                variance[i, j] = round(p * (1 - p), DECIMALS)
        batch = []
        for _ in range(count):
            # of equal ones the first
            batch.append(max(variance, key=lambda pair: variance[pair] + 1 / (1 + played[pair[0]] + played[pair[1]])))
            del variance[batch[-1]]
            for entrant in batch[-1]:
                played[entrant] += 1
        return batch


def chance(lead: float) -> float:
    """To win, of who leads by so many Elo points.

    >>> chance(0.0), round(chance(400.0), 4)
    (0.5, 0.9091)
    """
    return 1 / (1 + 10 ** (-lead / 400))


def bradley_terry(size: int, outcomes: Sequence[Outcome]) -> list[float]:
    """Ratings (size,) in Elo points of the most likely Bradley-Terry model, a draw being half a win of each; in any
    order of the outcomes the same.

    Everybody also drew `PRIOR_DRAWS` times with an entrant of rating 0.
    By the minorization-maximization steps of Hunter (2004).

    >>> [round(rating) for rating in bradley_terry(3, [(0, 1, 1.0), (1, 2, 1.0)])]
    [191, 0, -191]
    """
    won = [PRIOR_DRAWS / 2] * size
    rivals: list[list[int]] = [[] for _ in range(size)]
    for i, j, share in outcomes:
        won[i], won[j] = won[i] + share, won[j] + 1 - share
        rivals[i].append(j)
        rivals[j].append(i)
    strength = [1.0] * size
    for _ in range(200):
        met = []
        for i, s in enumerate(strength):
            met.append(PRIOR_DRAWS / (s + 1) + sum(1 / (s + strength[j]) for j in sorted(rivals[i])))
        strength, before = [of / against for of, against in zip(won, met, strict=True)], strength
        if max(abs(math.log(now / then)) for now, then in zip(strength, before, strict=True)) < 1e-10:
            break
    return [SCALE * math.log(s) for s in strength]
