"""Knockouts: single elimination, seeded at random or against the anchor, and double elimination.

After every result the bracket is walked again from the first round; matches that can start now are ready. Entrants are
ranked by the round in which they are out (their tier), inside a tier by their mean match score. Our rules, where the
paper is silent:

- A bye is a place in the bracket that every entrant beats without a match.
- After a draw or a failed match, the entrant with the better mean score so far advances. If these are equal, the
  seeding order decides. The seeding order is not evidence, so the loser gets the tier that the winner reaches.
- An entrant that advances from a failed match against an opponent without any score has a pass, not a win. The pass
  does not count towards its tier until the entrant beats an opponent that got as far. An entrant without any verdict is
  not ranked.
- A pair that meets again is not judged again. Its first verdict counts for the second meeting.
"""

from dataclasses import dataclass
from math import inf
from typing import ClassVar, NamedTuple

from arenarl.tournament.schedules import (
    DECIMALS,
    Anchor,
    Pairing,
    Place,
    Results,
    Standing,
    Topology,
    anchor_means,
    mean_score,
)

BYE = -1


class Out(NamedTuple):
    """An elimination. A higher `depth` is a later round; passes are not counted."""

    loser: int
    winner: int
    depth: int
    is_tiebreak: bool


class BracketWalk:
    """The state of a bracket after some results: ready matches, eliminations, rounds and the champion.
    `order` is the seeding order, `met` the opponents that each entrant met before the bracket."""

    def __init__(self, results: Results, order: list[int], met: dict[int, set[int]] | None = None):
        self.results = results
        self.place = {entrant: k for k, entrant in enumerate(order)}
        self.met = met or {entrant: set() for entrant in order}
        self.waits = dict.fromkeys(order, 1 if met else 0)
        self.ready: list[Pairing] = []
        self.outs: list[Out] = []
        self.rounds: list[list[Place]] = []
        self.champion: int | None = None
        self.passes = dict.fromkeys(order, 0)

    def play_single(self, places: list[int | None]) -> "BracketWalk":
        """Play a single elimination. A round with an odd number of places gets a bye after the first place."""
        while len(places) > 1:
            if len(places) % 2:
                places.insert(1, BYE)
            winners, _ = self.play_round(places, depth=len(self.rounds))
            matches = zip(places[::2], places[1::2], winners, strict=True)
            self.rounds.append([Place(*(None if place == BYE else place for place in match)) for match in matches])
            places = winners
        self.champion = places[0]
        return self

    def play_round(
        self, places: list[int | None], depth: int | None = None
    ) -> tuple[list[int | None], list[int | None]]:
        """Play neighbouring places; return winners and losers, None while unknown.
        Losers are out at `depth`. If `depth` is None, they stay in the tournament."""
        pairs = [self._meet(a, b, depth) for a, b in zip(places[::2], places[1::2], strict=True)]
        return [winner for winner, _ in pairs], [loser for _, loser in pairs]

    def _meet(self, a: int | None, b: int | None, depth: int | None) -> tuple[int | None, int | None]:
        if BYE in (a, b):
            return (b if a == BYE else a), BYE
        if a is None or b is None:
            return None, None
        wait = max(self.waits[a], self.waits[b])
        if (a, b) not in self.results:
            self.ready.append(Pairing(a, b, wait))
            return None, None
        winner, loser, is_tiebreak, is_pass = self._decide(a, b)
        self.passes[winner] = self.passes[winner] + 1 if is_pass else min(self.passes[winner], self.passes[loser])
        self.waits[a] = self.waits[b] = wait + (b not in self.met[a])
        self.met[a].add(b)
        self.met[b].add(a)
        if depth is not None:
            self.outs.append(Out(loser, winner, depth - self.passes[loser], is_tiebreak))
        return winner, loser

    def _decide(self, a: int, b: int) -> tuple[int, int, bool, bool]:
        """Return (winner, loser, True if the seeding order decided, True if the winner has only a pass)."""
        scores = self.results[a, b]
        if scores and scores[0] != scores[1]:
            return (a, b, False, False) if scores[0] > scores[1] else (b, a, False, False)
        means = {i: mean_score(self.results, i, self.met[i]) for i in (a, b)}
        winner, loser = sorted((a, b), key=lambda i: (means[i] is None, -(means[i] or 0.0), self.place[i]))
        return winner, loser, means[a] == means[b], scores is None and means[loser] is None


class Bracket(Topology):
    """Base class of the knockouts: turns a walk into ready matches and standings."""

    def ready(self, results: Results) -> list[Pairing]:
        return self._walk(results).ready

    def standings(self, results: Results) -> list[Standing | None]:
        walk = self._walk(results)
        tiers: dict[int | None, float] = {walk.champion: inf}
        for out in reversed(walk.outs):
            tiers[out.loser] = tiers[out.winner] if out.is_tiebreak else out.depth
        scores = self._scores(results, walk)
        return [None if score is None else Standing((tiers[i], score), score) for i, score in enumerate(scores)]

    def bracket(self, results: Results) -> list[list[Place]]:
        return self._walk(results).rounds

    def _walk(self, results: Results) -> BracketWalk:
        """Walk the bracket up to the first matches without a result."""
        raise NotImplementedError

    def _scores(self, results: Results, walk: BracketWalk) -> list[float | None]:
        return [mean_score(results, i, range(self.size)) for i in range(self.size)]


class SingleElimination(Bracket):
    """A knockout with random seeds, N-1 matches: the control for the paper's seeding.
    A perfect judge puts the true best first, and gives the true order inside each tier."""

    def _walk(self, results: Results) -> BracketWalk:
        return BracketWalk(results, self.lots).play_single(filled("standard", self.lots))


@dataclass(frozen=True)
class SeededSingleElimination(Bracket):
    """Seeding by matches with the anchor, then a knockout; at most 2N-2 matches. Section 4.3, Algorithm 1, ArenaRL.

    `accumulate` orders entrants inside a tier: `mean` of all match scores, or `sum` of the seeding score and the
    bracket scores, scaled up for failed matches. Seeding matches also count in the bracket and are not played twice.
    The random order breaks ties between seeding scores; entrants without a score are seeded last. With the default
    parameters, a perfect judge gives the true order.

    `placement: algorithm1` fills the bracket from front and back, as in the paper, which defines it for powers of two.
    For other sizes, a round with an odd number of places gives a bye to the place of seed 1, whichever entrant holds
    it.
    """

    surely_meets: ClassVar = "anchor"
    choices: ClassVar = {"accumulate": ("mean", "sum"), "placement": ("standard", "algorithm1")}

    accumulate: str = "mean"
    placement: str = "standard"

    def ready(self, results: Results) -> list[Pairing]:
        if not results:
            return Anchor(self.size).ready(results)
        is_seeded = all((0, i) in results for i in range(1, self.size))
        return super().ready(results) if is_seeded else []

    def _walk(self, results: Results) -> BracketWalk:
        scores = anchor_means(results, self.size)
        seeds = sorted(self.lots, key=lambda i: (scores[i] is None, -(scores[i] or 0.0)))
        met = {i: {0} for i in seeds} | {0: set(range(1, self.size))}
        return BracketWalk(results, seeds, met).play_single(filled(self.placement, seeds))

    def _scores(self, results: Results, walk: BracketWalk) -> list[float | None]:
        means = super()._scores(results, walk)
        if self.accumulate == "mean":
            return means
        addends = [[score] for score in anchor_means(results, self.size)]
        for out in walk.outs:
            for i, j in ((out.loser, out.winner), (out.winner, out.loser)):
                addends[i].append(results[i, j] and results[i, j][0])
        sums = [round(scaled_sum(scores), DECIMALS) for scores in addends]
        return [None if mean is None else total for mean, total in zip(means, sums, strict=True)]


class DoubleElimination(Bracket):
    """A knockout with random seeds in which the second defeat eliminates; at most 2N-2 matches. Section 4.4, ArenaRL.

    Losers drop into a second bracket; its winner meets the unbeaten entrant in a single final. Each round drops its
    losers in reverse order, so that pairs rarely meet again. If they do, the first verdict counts again, because a
    second call would bring no new opinion. So one verdict can count as both defeats, and most finals are decided by an
    earlier match. A perfect judge puts the true best first and the second best second, and gives the true order inside
    each tier.
    """

    def _walk(self, results: Results) -> BracketWalk:
        walk = BracketWalk(results, self.lots)
        unbeaten: list[int | None] = filled("standard", self.lots)
        dropped = []
        while len(unbeaten) > 1:
            unbeaten, losers = walk.play_round(unbeaten)
            dropped.append(losers)
        once_beaten = dropped[0]
        for k, losers in enumerate(dropped[1:]):
            once_beaten, _ = walk.play_round(once_beaten, 2 * k)
            pairs = zip(once_beaten, losers[::-1], strict=True)
            once_beaten, _ = walk.play_round([entrant for pair in pairs for entrant in pair], 2 * k + 1)
        (walk.champion,), _ = walk.play_round(unbeaten + once_beaten, 2 * len(dropped))
        return walk


def scaled_sum(scores: list[float | None]) -> float:
    """Return the mean of the known scores times the number of all scores; 0 without any known score.

    A sum would count a failed match as 0.

    >>> scaled_sum([12.0, 8.0]), scaled_sum([12.0, None, 9.0])
    (20.0, 31.5)
    """
    known = [score for score in scores if score is not None]
    return sum(known) * (len(scores) / len(known)) if known else 0.0


def filled(placement: str, seeds: list[int]) -> list[int | None]:
    """Return the entrants in bracket order, with byes for missing seeds. `seeds` starts with the best seed."""
    order = (standard_placement if placement == "standard" else algorithm1_placement)(len(seeds))
    return [seeds[k] if k < len(seeds) else BYE for k in order]


def standard_placement(size: int) -> list[int]:
    """Return seeds (0 is best) in bracket order, so that the best two meet in the final. Seeds >= `size` are byes.

    >>> standard_placement(6)
    [0, 7, 3, 4, 1, 6, 2, 5]
    """
    order = [0]
    while len(order) < size:
        order = [seed for k in order for seed in (k, 2 * len(order) - 1 - k)]
    return order


def algorithm1_placement(size: int) -> list[int]:
    """Return seeds in the paper's bracket order. Lines 13-23 of Algorithm 1, ArenaRL.

    The pairs (first, last), (second, last but one), … fill the bracket in turn from the front and from the back. With
    an odd size, the best seed stands alone in front.

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
