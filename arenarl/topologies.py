"""Tournament schedules: what to play next, given the verdicts so far.

A topology does no I/O and keeps no state: both its methods read the results. `tournament.py` asks `ready` after every
verdict and starts at once what it names, so a match never waits for a round to end; at the end it asks for `standings`.
Entrants are 0 … size-1 and entrant 0 is the anchor.
Departs from the paper where it is silent or inexact: byes, draws, failed matches, and the bracket's placement and tie-breaker
(text of Section 4.3 by default; Algorithm 1 to the letter by `placement: algorithm1`, `accumulate: sum`).
"""

from dataclasses import dataclass, fields
from difflib import get_close_matches
from itertools import combinations
from math import inf
from random import Random
from statistics import fmean
from typing import NamedTuple

# results[i, j] is (score_i, score_j), or None for a failed match; every match is in there from both sides.
Results = dict[tuple[int, int], tuple[float, float] | None]

DECIMALS = 9  # scores closer than this are equal: float noise must not decide a match or a rank
BYE = -1


class Pairing(NamedTuple):
    """A match to play; `round` counts the matches, one after the other, that it had to wait for."""

    i: int
    j: int
    round: int


class Standing(NamedTuple):
    """What an entrant is ranked by (`key`: higher is better, compared item by item) and the score to report."""

    key: tuple[float, ...]
    score: float | None


@dataclass(frozen=True)
class Topology:
    """Base of all schedules; `seed` draws the lots where a schedule needs any, further fields are its parameters."""

    size: int
    seed: int = 0

    def ready(self, results: Results) -> list[Pairing]:
        """Every match without a result whose entrants are known; those being played are named again."""
        raise NotImplementedError

    def standings(self, results: Results) -> list[Standing | None]:
        """One standing an entrant, None where no match of it got a verdict."""
        raise NotImplementedError


class RoundRobin(Topology):
    """Everyone meets everyone, N(N-1)/2 matches, ranked by the share of matches won.

    A draw is a win for neither, and failed matches leave the share. Eq. 4, ArenaRL.
    """

    def ready(self, results: Results) -> list[Pairing]:
        return [Pairing(i, j, 0) for i, j in combinations(range(self.size), 2) if (i, j) not in results]

    def standings(self, results: Results) -> list[Standing | None]:
        won: list[list[bool]] = [[] for _ in range(self.size)]
        for (i, _), scores in results.items():
            if scores:
                won[i].append(scores[0] > scores[1])
        return [_standing(round(fmean(wins), DECIMALS)) if wins else None for wins in won]


class Anchor(Topology):
    """Everyone meets the anchor, N-1 matches, ranked by own score; the anchor's is its mean. Section 4.2, ArenaRL."""

    def ready(self, results: Results) -> list[Pairing]:
        return [Pairing(0, i, 0) for i in range(1, self.size) if (0, i) not in results]

    def standings(self, results: Results) -> list[Standing | None]:
        return [None if score is None else _standing(score) for score in self.anchor_scores(results)]

    def anchor_scores(self, results: Results) -> list[float | None]:
        """Scores from the matches with the anchor, None where they all failed."""
        others = range(1, self.size)
        return [_mean_score(results, 0, others)] + [_mean_score(results, i, [0]) for i in others]


class BracketWalk(NamedTuple):
    """How far the results carry a bracket: what can start, what is decided, who is left at the end."""

    ready: list[Pairing]
    outs: list[tuple[int, int, int]]  # (round of the bracket, loser, winner), in the order of the rounds
    champion: int | None


@dataclass(frozen=True)
class SeededSingleElimination(Anchor):
    """Seeding against the anchor, then a knockout; at most 2N-2 matches. Section 4.3 and Algorithm 1, ArenaRL.

    Ranked by depth of survival, inside a tier by the `accumulate`d scores: `mean` of all an entrant's matches, or `sum` of
    its seeding score and its bracket scores. Matches of the seeding count again in the bracket and are not played twice.
    Equal seeding scores are placed by lot, entrants without one come last.

    After a draw or a failed match the better seed goes on. Between equal seeding scores that is the lot's choice and no evidence:
    there both take the tier that the chosen one reaches. So equal scores throughout give one shared midrank (with `mean`;
    `sum` favours whoever played more).

    `placement: algorithm1` is the paper's filling from front and back, defined there for powers of two. Elsewhere a round with
    an odd number of places gives the bye to the place of seed 1, whoever holds it by then.
    """

    accumulate: str = "mean"
    placement: str = "standard"

    def __post_init__(self):
        _check_choice("accumulate", self.accumulate, ["mean", "sum"])
        _check_choice("placement", self.placement, PLACEMENTS)

    def ready(self, results: Results) -> list[Pairing]:
        return super().ready(results) or self._walk(results).ready

    def standings(self, results: Results) -> list[Standing | None]:
        walk = self._walk(results)
        tiers = {walk.champion: inf}
        seeding = self.anchor_scores(results)
        for depth, loser, winner in reversed(walk.outs):
            is_by_lot = _is_open(results[loser, winner]) and seeding[loser] == seeding[winner]
            tiers[loser] = tiers[winner] if is_by_lot else depth
        scores = self._accumulated(results, walk)
        return [None if score is None else Standing((tiers[i], score), score) for i, score in enumerate(scores)]

    def _accumulated(self, results: Results, walk: BracketWalk) -> list[float | None]:
        means = [_mean_score(results, i, range(self.size)) for i in range(self.size)]
        if self.accumulate == "mean":
            return means
        sums = [score or 0.0 for score in self.anchor_scores(results)]
        for _, loser, winner in walk.outs:
            if results[loser, winner]:
                sums[loser] += results[loser, winner][0]
                sums[winner] += results[winner, loser][0]
        return [None if mean is None else round(total, DECIMALS) for mean, total in zip(means, sums)]

    def _seeds(self, results: Results) -> list[int]:
        """Entrants, best seeding score first."""
        scores = self.anchor_scores(results)
        by_lot = Random(self.seed).sample(range(self.size), self.size)
        return sorted(by_lot, key=lambda i: (scores[i] is None, -(scores[i] or 0.0)))

    def _walk(self, results: Results) -> BracketWalk:
        """Play the bracket as far as the results go."""
        seeds = self._seeds(results)
        seed_of = {entrant: k for k, entrant in enumerate(seeds)}
        waited = dict.fromkeys(seeds, 0)
        walk = BracketWalk([], [], None)

        def meet(a: int | None, b: int | None, depth: int) -> int | None:
            """The one who goes on, None while that is open."""
            if a == BYE or b == BYE:
                return b if a == BYE else a
            if a is None or b is None:
                return None
            # The anchor met everyone in the seeding, so its bracket matches are decided already and delay nobody.
            wait = max(waited[a], waited[b]) + (0 not in (a, b))
            if (a, b) not in results:
                walk.ready.append(Pairing(a, b, wait))
                return None
            winner, loser = sorted((a, b), key=seed_of.get)
            if results[loser, winner] and results[loser, winner][0] > results[loser, winner][1]:
                winner, loser = loser, winner
            waited[winner] = wait
            walk.outs.append((depth, loser, winner))
            return winner

        places = [seeds[k] if k < self.size else BYE for k in PLACEMENTS[self.placement](self.size)]
        depth = 0
        while len(places) > 1:
            if len(places) % 2:
                places.insert(1, BYE)
            places = [meet(a, b, depth) for a, b in zip(places[::2], places[1::2])]
            depth += 1
        return walk._replace(champion=places[0])


def standard_placement(size: int) -> list[int]:
    """Seeds (0 is best) in bracket order, where the best two can meet only in the final; seeds >= `size` are byes.

    >>> standard_placement(6)
    [0, 7, 3, 4, 1, 6, 2, 5]
    """
    order = [0]
    while len(order) < size:
        order = [seed for k in order for seed in (k, 2 * len(order) - 1 - k)]
    return order


def algorithm1_placement(size: int) -> list[int]:
    """Pairs (first, last), (second, last but one), …, filled in turn from the front and from the back of the bracket.

    With an odd size the best seed stands alone in front. Lines 13-23 of Algorithm 1, ArenaRL.

    >>> algorithm1_placement(8)
    [0, 7, 2, 5, 3, 4, 1, 6]
    >>> algorithm1_placement(5)
    [0, 1, 4, 2, 3]
    """
    is_odd = size % 2
    front, back = [0] * is_odd, []
    for k in range(size // 2):
        pair = [k + is_odd, size - 1 - k]
        front, back = (front, pair + back) if k % 2 else (front + pair, back)
    return front + back


PLACEMENTS = {"standard": standard_placement, "algorithm1": algorithm1_placement}
TOPOLOGIES = {"round_robin": RoundRobin, "anchor": Anchor, "seeded_single_elimination": SeededSingleElimination}


def build_topology(name: str, size: int, seed: int = 0, **params) -> Topology:
    """The schedule called `name` for `size` entrants. Raises ValueError for an unknown name, parameter or value."""
    _check_choice("topology", name, TOPOLOGIES)
    known = [field.name for field in fields(TOPOLOGIES[name])][2:]
    if unknown := sorted(set(params) - set(known)):
        raise ValueError(f"{name} has no parameter {', '.join(unknown)}; it has: {', '.join(known) or 'none'}")
    return TOPOLOGIES[name](size, seed, **params)


def _check_choice(what: str, value: str, choices) -> None:
    if value not in choices:
        nearest = get_close_matches(str(value), choices, n=1, cutoff=0)[0]
        raise ValueError(f"unknown {what} {value!r}; did you mean {nearest!r}? (one of: {', '.join(choices)})")


def _standing(score: float) -> Standing:
    return Standing((score,), score)


def _mean_score(results: Results, i: int, opponents) -> float | None:
    scores = [results[i, j][0] for j in opponents if results.get((i, j))]
    return round(fmean(scores), DECIMALS) if scores else None


def _is_open(scores: tuple[float, float] | None) -> bool:
    """Whether the match, failed or drawn, names no winner."""
    return scores is None or scores[0] == scores[1]
