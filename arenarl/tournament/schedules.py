"""What a topology is, and the ones that know all their matches from the start: round robin, anchor, random reference,
balanced.

A topology is a pure schedule: it does no I/O, and what it says follows from the results so far. `play.py` asks `ready`
before the first result and after each, and starts at once what it names, so a match never waits for a round to end; at
the end it asks for `standings`. Entrants are 0 … size-1 and entrant 0 is the anchor. `brackets.py` and `swiss.py` hold
the schedules that depend on results, `topologies.py` finds them all by name.
Departs from the paper where it is silent: draws and failed matches. `balanced` is ours.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import chain, combinations
from math import gcd
from random import Random
from statistics import fmean
from typing import ClassVar, Literal, NamedTuple

# results[i, j] is (score_i, score_j), or None for a failed match.
# In the order of the verdicts, [i, j] and [j, i] together.
Results = dict[tuple[int, int], tuple[float, float] | None]

DECIMALS = 9  # scores closer than this are equal: float noise must not decide a match or a rank


class Pairing(NamedTuple):
    """A match to play; `round` counts the matches, one after the other, that it had to wait for."""

    i: int
    j: int
    round: int


class Place(NamedTuple):
    """A match's place in a bracket. `i` or `j` is None for a bye, `winner` goes on to the next round."""

    i: int | None
    j: int | None
    winner: int | None


class Standing(NamedTuple):
    """What an entrant is ranked by (`key`: higher is better, compared item by item) and the score to report."""

    key: tuple[float, ...]
    score: float | None

    @classmethod
    def of_score(cls, score: float) -> "Standing":
        return cls((score,), score)


@dataclass(frozen=True)
class Topology:
    """Base of all schedules, those of one's own included; `seed` draws the lots where a schedule needs any, further
    fields are its parameters.
    """

    rankings: ClassVar[tuple[str, ...]] = ("bracket", "scores")  # what its matches can be ranked by, the default first
    # whom an entrant meets whoever else enters
    surely_meets: ClassVar[Literal["nobody", "anchor", "everyone"]] = "nobody"

    size: int
    seed: int = 0

    @cached_property
    def lots(self) -> list[int]:
        """The entrants in a random order."""
        return Random(self.seed).sample(range(self.size), self.size)

    def ready(self, results: Results) -> list[Pairing]:
        """The matches that can start now. One that was named for fewer results may be missing, or named again."""
        raise NotImplementedError

    def standings(self, results: Results) -> list[Standing | None]:
        """One standing an entrant, None where no match of it got a verdict."""
        raise NotImplementedError

    def bracket(self, results: Results) -> list[list[Place]]:
        """For a single knockout: its rounds, to be drawn as a tree. Empty for everything else."""
        return []


class RoundRobin(Topology):
    """Everyone meets everyone, N(N-1)/2 matches, ranked by the share of matches won.

    A draw is a win for neither, and failed matches leave the share. A perfect judge gives the true order. Eq.
    4, ArenaRL.
    """

    surely_meets: ClassVar = "everyone"

    def ready(self, results: Results) -> list[Pairing]:
        return [] if results else [Pairing(i, j, 0) for i, j in combinations(range(self.size), 2)]

    def standings(self, results: Results) -> list[Standing | None]:
        won: list[list[bool]] = [[] for _ in range(self.size)]
        for (i, _), scores in results.items():
            if scores:
                won[i].append(scores[0] > scores[1])
        return [Standing.of_score(round(fmean(wins), DECIMALS)) if wins else None for wins in won]


class Anchor(Topology):
    """Everyone meets the anchor, N-1 matches, ranked by own score; the anchor's is its mean.

    A perfect judge gives the true order. Section 4.2, ArenaRL.
    """

    surely_meets: ClassVar = "anchor"

    def ready(self, results: Results) -> list[Pairing]:
        return [] if results else [Pairing(0, i, 0) for i in range(1, self.size)]

    def standings(self, results: Results) -> list[Standing | None]:
        return [None if score is None else Standing.of_score(score) for score in anchor_scores(results, self.size)]


class RandomReference(Topology):
    """Everyone meets one entrant, drawn by lot, N-1 matches; ranked by the outcome:
    1 for a win, -1 for a loss, 0 for a draw and the reference.

    A perfect judge tells who is better than the reference, and no more. BRPO, Writing-Zero (arXiv 2506.00103).
    """

    def ready(self, results: Results) -> list[Pairing]:
        return [] if results else [Pairing(self.lots[0], i, 0) for i in self.lots[1:]]

    def standings(self, results: Results) -> list[Standing | None]:
        reference, others = self.lots[0], self.lots[1:]
        signs = {
            i: float((scores[0] > scores[1]) - (scores[0] < scores[1]))
            for i in others
            if (scores := results.get((i, reference)))
        }
        if signs:
            signs[reference] = 0.0
        return [Standing.of_score(signs[i]) if i in signs else None for i in range(self.size)]


@dataclass(frozen=True)
class Balanced(Topology):
    """`matches` spread evenly over the group, all ready at once,
    ranked by the qualities that explain their scores best.

    `matches` is a number, or a multiple of the entrants n like `2n-2` or `n/2` (rounded down); no pair meets twice, so
    there are at most N(N-1)/2. Numbers of matches differ by one at most, and from N-1 on everyone is linked with
    everyone by a chain of matches. Promises no exact order: the estimate draws those with less evidence closer to the
    mean. Not in the paper.
    """

    rankings: ClassVar[tuple[str, ...]] = ("scores",)

    matches: int | str = "2n-2"

    def __post_init__(self):
        parse_budget(self.matches, self.size)

    def ready(self, results: Results) -> list[Pairing]:
        if results:
            return []
        places = circulant_pairs(self.size, parse_budget(self.matches, self.size), Random(self.seed))
        return [Pairing(self.lots[p], self.lots[q], 0) for p, q in places]


def circulant_pairs(size: int, matches: int, random: Random) -> list[tuple[int, int]]:
    """`matches` different pairs of 0 … size-1, each in as many as any other, give or take one;
    connected from size-1 on.

    An offset d pairs every place p with p+d, in a circle. Offsets are used up in random order but for 1, the first,
    whose pairs form one ring. The order is drawn again where the last, cut short, serves some places twice and others
    not at all. That cannot go on forever: last of all, size/2 suits a cut at half the places or before, and 2 any other
    cut.
    """
    while True:
        offsets = [1, *random.sample(range(2, size // 2 + 1), max(0, size // 2 - 1))]
        pairs = list(chain.from_iterable(_pairs_at(offset, size) for offset in offsets))[:matches]
        appearances = list(chain.from_iterable(pairs))
        counts = {appearances.count(place) for place in range(size)}
        if max(counts) - min(counts) <= 1:
            return pairs


def _pairs_at(offset: int, size: int) -> Iterable[tuple[int, int]]:
    """All pairs at this distance in the circle, every other one of each cycle first."""
    cycles, length = gcd(offset, size), size // gcd(offset, size)
    for parity in (0, 1) if length > 2 else (0,):
        for start in range(cycles):
            for k in range(parity, length, 2):
                yield (start + k * offset) % size, (start + (k + 1) * offset) % size


def parse_budget(matches: int | str, size: int) -> int:
    """How many matches `matches` grants a group of `size`, at most one a pair.

    >>> parse_budget("2n-2", 16), parse_budget("n/2", 7), parse_budget("3n/2 + 1", 8), parse_budget(20, 4)
    (30, 3, 13, 6)
    """
    form = re.fullmatch(r"(?:(\d*)n(?:/([1-9]\d*))?)?([+-]?\d+)?", str(matches).replace(" ", ""))
    if form is None or not str(matches).strip() or isinstance(matches, bool):
        raise ValueError(f"matches={matches!r}: must be a number or like 2n-2, n or n/2, with n the entrants")
    multiple, divisor, constant = form.groups()
    per_entrant = int(multiple or 1) * size // int(divisor or 1) if "n" in form[0] else 0
    return min(max(0, per_entrant + int(constant or 0)), size * (size - 1) // 2)


def anchor_scores(results: Results, size: int) -> list[float | None]:
    """Scores from the matches with the anchor, None where they all failed. Section 4.2, ArenaRL."""
    others = range(1, size)
    return [mean_score(results, 0, others)] + [mean_score(results, i, [0]) for i in others]


def mean_score(results: Results, i: int, opponents: Iterable[int]) -> float | None:
    """The mean of the scores of i against these opponents; None without a verdict."""
    scores = [results[i, j][0] for j in opponents if results.get((i, j))]
    return round(fmean(scores), DECIMALS) if scores else None


def check_parameters(name: str, known: Iterable[str], given: Iterable[str]) -> None:
    """Raises ValueError if a given parameter is not known."""
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(f"{name} has no parameter {', '.join(unknown)}; it has: {', '.join(known) or 'none'}")


def check_choice(what: str, value: str, choices: Iterable[str]) -> None:
    """Raises ValueError, with the nearest choice, if the value is none of them."""
    if value not in choices:
        nearest = get_close_matches(str(value), choices, n=1, cutoff=0)[0]
        raise ValueError(f"unknown {what} {value!r}; did you mean {nearest!r}? (one of: {', '.join(choices)})")
