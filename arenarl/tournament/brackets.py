"""Knockouts: single elimination, seeded at random or against the anchor, and double elimination.

The bracket is walked once. A result seats its winner and its loser in their next games, and a match is ready as soon as
both entrants are known. Entrants are ranked by the round in which they are out (their tier), inside a tier by their
mean match score. Our rules, where the paper is silent:

- A bye is a place in the bracket that every entrant beats without a match.
- After a draw or a failed match, the entrant with the better mean score so far advances. If these are equal, the
  seeding order decides. The seeding order is not evidence, so the loser gets the tier that the winner reaches.
- An entrant that advances from a failed match against an opponent without any score has a pass, not a win. The pass
  does not count towards its tier until the entrant beats an opponent that got as far. An entrant without any verdict is
  not ranked.
- A pair that meets again is not judged again. Its first verdict counts for the second meeting.
"""

from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import ClassVar, NamedTuple, cast

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


@dataclass(eq=False)
class Seat:
    """A place of a round: its entrant (None while unknown), and the game in which the entrant plays next."""

    entrant: int | None = None
    game: "Game | None" = None


@dataclass(eq=False)
class Game:
    """The meeting of two seats, and the seats of its winner and its loser."""

    first: Seat
    second: Seat
    depth: int | None
    winner: Seat = field(default_factory=Seat)
    loser: Seat = field(default_factory=Seat)


class BracketWalk:
    """The state of a bracket after some results: ready matches, eliminations, rounds and the champion.
    `order` is the seeding order, `met` the opponents that each entrant met before the bracket."""

    def __init__(self, results: Results, order: list[int], met: dict[int, set[int]] | None = None):
        self.results = results
        self.known: Results = {}  # the results at the last call
        self.place = {entrant: k for k, entrant in enumerate(order)}
        self.met = met or {entrant: set() for entrant in order}
        self.waits = dict.fromkeys(order, 1 if met else 0)
        self.ready: dict[Pairing, Game] = {}
        self.outs: list[Out] = []
        self.rounds: list[list[tuple[Seat, Seat, Seat]]] = []
        self.champion = Seat()
        self.passes = dict.fromkeys(order, 0)

    def play_single(self, seats: list[Seat]) -> "BracketWalk":
        """Play a single elimination. A round with an odd number of seats gets a bye after the first seat."""
        while len(seats) > 1:
            if len(seats) % 2:
                seats.insert(1, Seat(BYE))
            winners, _ = self.play_round(seats, depth=len(self.rounds))
            self.rounds.append(list(zip(seats[::2], seats[1::2], winners, strict=True)))
            seats = winners
        self.champion = seats[0]
        return self

    def play_round(self, seats: list[Seat], depth: int | None = None) -> tuple[list[Seat], list[Seat]]:
        """Let neighbouring seats meet; return the seats of the winners and of the losers.
        Losers are out at `depth`. If `depth` is None, they stay in the tournament."""
        pairs = [self._meet(a, b, depth) for a, b in zip(seats[::2], seats[1::2], strict=True)]
        return [winner for winner, _ in pairs], [loser for _, loser in pairs]

    def go_on(self) -> None:
        """Decide the games whose results arrived since the last call, and the games that follow from them."""
        for pairing in [pairing for pairing in self.ready if pairing[:2] in self.results]:
            self._end(self.ready.pop(pairing))

    def _meet(self, a: Seat, b: Seat, depth: int | None) -> tuple[Seat, Seat]:
        if BYE in (a.entrant, b.entrant):
            return (b, a) if a.entrant == BYE else (a, b)
        game = a.game = b.game = Game(a, b, depth)
        self._start(game)
        return game.winner, game.loser

    def _start(self, game: Game) -> None:
        a, b = game.first.entrant, game.second.entrant
        if a is None or b is None:
            return
        if (a, b) in self.results:
            self._end(game)
        else:
            self.ready[Pairing(a, b, max(self.waits[a], self.waits[b]))] = game

    def _end(self, game: Game) -> None:
        """Seat the winner and the loser of a game with a result, and start the games for which they were missing."""
        a, b = cast(int, game.first.entrant), cast(int, game.second.entrant)
        winner, loser, is_tiebreak, is_pass = self._decide(a, b)
        self.passes[winner] = self.passes[winner] + 1 if is_pass else min(self.passes[winner], self.passes[loser])
        self.waits[a] = self.waits[b] = max(self.waits[a], self.waits[b]) + (b not in self.met[a])
        self.met[a].add(b)
        self.met[b].add(a)
        if game.depth is not None:
            self.outs.append(Out(loser, winner, game.depth - self.passes[loser], is_tiebreak))
        for seat, entrant in ((game.winner, winner), (game.loser, loser)):
            seat.entrant = entrant
            if seat.game:
                self._start(seat.game)

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
        return list(self._walked(results).ready)

    def standings(self, results: Results) -> list[Standing | None]:
        walk = self._walked(results)
        tiers: dict[int | None, float] = {walk.champion.entrant: inf}
        for out in reversed(walk.outs):
            tiers[out.loser] = tiers[out.winner] if out.is_tiebreak else out.depth
        scores = self._scores(results, walk)
        return [None if score is None else Standing((tiers[i], score), score) for i, score in enumerate(scores)]

    def bracket(self, results: Results) -> list[list[Place]]:
        def entrant(seat: Seat) -> int | None:
            return None if seat.entrant == BYE else seat.entrant

        return [[Place(*map(entrant, match)) for match in matches] for matches in self._walked(results).rounds]

    def _walked(self, results: Results) -> BracketWalk:
        """Return the walk up to the first matches without a result. It goes on from the last call's state if `results`
        is the same dictionary and only gained entries."""
        last = self._walks[0] if self._walks else None
        if last and last.results is results and last.known.items() <= results.items():
            last.go_on()
        else:
            self._walks[:] = [self._walk(results)]
        self._walks[0].known = dict(results)
        return self._walks[0]

    @cached_property
    def _walks(self) -> list[BracketWalk]:
        """The last walk, if any."""
        return []

    def _walk(self, results: Results) -> BracketWalk:
        """Walk the bracket from the first round up to the first matches without a result."""
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
        return super().ready(results) if self._is_seeded(results) else []

    def _is_seeded(self, results: Results) -> bool:
        return all((0, i) in results for i in range(1, self.size))

    def _walked(self, results: Results) -> BracketWalk:
        walk = super()._walked(results)
        if not self._is_seeded(results):  # a bracket drawn too early must not fix the seeds
            self._walks.clear()
        return walk

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
        unbeaten = filled("standard", self.lots)
        dropped = []
        while len(unbeaten) > 1:
            unbeaten, losers = walk.play_round(unbeaten)
            dropped.append(losers)
        once_beaten = dropped[0]
        for k, losers in enumerate(dropped[1:]):
            once_beaten, _ = walk.play_round(once_beaten, 2 * k)
            pairs = zip(once_beaten, losers[::-1], strict=True)
            once_beaten, _ = walk.play_round([seat for pair in pairs for seat in pair], 2 * k + 1)
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


def filled(placement: str, seeds: list[int]) -> list[Seat]:
    """Return the seats of the first round, with byes for missing seeds. `seeds` starts with the best seed."""
    order = (standard_placement if placement == "standard" else algorithm1_placement)(len(seeds))
    return [Seat(seeds[k] if k < len(seeds) else BYE) for k in order]


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
