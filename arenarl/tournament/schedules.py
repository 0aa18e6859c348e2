"""The base class of all topologies, and the topologies with a fixed schedule: round robin, anchor, random reference,
balanced.

A topology is a pure schedule: no I/O, its output depends only on the results so far. `play.py` calls `ready` at the
start and after each result, and starts the returned matches at once. So a match never waits for a round to end. After
the last match it calls `standings`. Entrants are 0 … size-1; entrant 0 is the anchor. `brackets.py`, `swiss.py` and
`elo.py` hold the schedules that depend on results. `topologies.py` finds all of them by name. Not in the paper: the
treatment of draws and failed matches, and `balanced`.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cached_property
from itertools import chain, combinations
from math import gcd
from numbers import Integral
from random import Random
from statistics import fmean
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_type_hints

from arenarl.tournament.calls import as_number

# results[i, j] is (score_i, score_j), or None for a failed match. In order of arrival; [j, i] follows [i, j].
Results = dict[tuple[int, int], tuple[float, float] | None]

DECIMALS = 9  # round scores to this many decimals: float noise must not decide a match or a rank


class Pairing(NamedTuple):
    """A match to play. `round` is the length of the chain of matches that had to end before it."""

    i: int
    j: int
    round: int


class Place(NamedTuple):
    """A match in a bracket. `i` or `j` is None for a bye; `winner` plays in the next round."""

    i: int | None
    j: int | None
    winner: int | None


class Standing(NamedTuple):
    """An entrant's ranking key (higher is better, compared item by item) and its reported score."""

    key: tuple[float, ...]
    score: float | None

    @classmethod
    def of_score(cls, score: float) -> "Standing":
        return cls((score,), score)


@dataclass(frozen=True)
class Topology:
    """Base class of all schedules. `seed` fixes the random order of the entrants; further fields are parameters."""

    rankings: ClassVar[tuple[str, ...]] = ("bracket", "scores")  # valid values of `ranking`, the default first
    # the opponents that every entrant is certain to meet, whatever the other entrants and the results
    surely_meets: ClassVar[Literal["nobody", "anchor", "everyone"]] = "nobody"
    choices: ClassVar[dict[str, tuple[str, ...]]] = {}  # valid values by parameter

    size: int
    seed: int = 0

    def __post_init__(self):
        for name, choices in self.choices.items():
            check_choice(name, getattr(self, name), choices)
        check_fields(self, skip=2)

    @cached_property
    def lots(self) -> list[int]:
        """The entrants in random order."""
        return Random(self.seed).sample(range(self.size), self.size)

    def ready(self, results: Results) -> list[Pairing]:
        """Return the matches that can start now. Matches returned earlier may be left out or repeated."""
        raise NotImplementedError

    def standings(self, results: Results) -> list[Standing | None]:
        """Return one standing per entrant; None for an entrant without any verdict."""
        raise NotImplementedError

    def bracket(self, results: Results) -> list[list[Place]]:
        """Return the rounds of a single knockout, to draw it as a tree; an empty list for other schedules."""
        return []


class RoundRobin(Topology):
    """All pairs play: N(N-1)/2 matches, ranked by the share of matches won. Eq. 4, ArenaRL.
    A draw counts as a win for neither. Failed matches do not count. A perfect judge gives the true order."""

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
    """All entrants play the anchor: N-1 matches, ranked by score; the anchor's score is its mean. Section 4.2, ArenaRL.
    A perfect judge gives the true order."""

    surely_meets: ClassVar = "anchor"

    def ready(self, results: Results) -> list[Pairing]:
        return [] if results else [Pairing(0, i, 0) for i in range(1, self.size)]

    def standings(self, results: Results) -> list[Standing | None]:
        return [None if score is None else Standing.of_score(score) for score in anchor_means(results, self.size)]


class RandomReference(Topology):
    """All entrants play one random entrant, the reference: N-1 matches. BRPO, Writing-Zero (arXiv 2506.00103).

    Ranked by the outcome: 1 for a win, -1 for a loss, 0 for a draw and for the reference. A perfect judge only
    separates the entrants above the reference from those below it.
    """

    def ready(self, results: Results) -> list[Pairing]:
        return [] if results else [Pairing(self.lots[0], i, 0) for i in self.lots[1:]]

    def standings(self, results: Results) -> list[Standing | None]:
        reference = self.lots[0]
        outcomes = {i: float(outcome(scores)) for i in self.lots[1:] if (scores := results.get((i, reference)))}
        if outcomes:
            outcomes[reference] = 0.0
        return [Standing.of_score(outcomes[i]) if i in outcomes else None for i in range(self.size)]


@dataclass(frozen=True)
class Balanced(Topology):
    """A fixed number of matches, spread evenly over the group and all ready at once. Not in the paper.

    Ranked by the qualities that a mixed-effects model estimates from the scores. `matches` is a number, or a formula in
    the number of entrants n, such as `2n-2` or `n/2` (rounded down); at least 1, and at most N(N-1)/2, because no pair
    meets twice.
    Entrants differ by at most one match. From N-1 matches on, a chain of matches connects any two entrants. A perfect
    judge need not give the exact order: the model shrinks entrants with less evidence towards the mean.
    """

    rankings: ClassVar[tuple[str, ...]] = ("scores",)

    matches: int | str = "2n-2"

    def __post_init__(self):
        if parse_budget(self.matches, 10**9) < 1:
            raise ValueError(f"matches={self.matches!r}: must be at least 1")
        super().__post_init__()

    def ready(self, results: Results) -> list[Pairing]:
        if results:
            return []
        matches = max(1, parse_budget(self.matches, self.size))  # n-2 is 0 for two entrants
        places = circulant_pairs(self.size, matches, Random(self.seed))
        return [Pairing(self.lots[p], self.lots[q], 0) for p, q in places]


class Circular(Topology):
    """Everybody plays its two neighbours on a random circle: N matches, ranked by mean score. NeMo Gym's genrm_compare.

    Two entrants play one match. With one order a match, each of three or more entrants is shown first once and second
    once. A perfect judge need not give the order.
    """

    def ready(self, results: Results) -> list[Pairing]:
        if results:
            return []
        neighbours = zip(self.lots, [*self.lots[1:], self.lots[0]], strict=True)
        return [Pairing(i, j, 0) for i, j in neighbours][: self.size if self.size > 2 else 1]

    def standings(self, results: Results) -> list[Standing | None]:
        means = [mean_score(results, i, range(self.size)) for i in range(self.size)]
        return [None if mean is None else Standing.of_score(mean) for mean in means]


def circulant_pairs(size: int, matches: int, random: Random) -> list[tuple[int, int]]:
    """Return `matches` different pairs of 0 … size-1. Places differ by at most one pair.

    From size-1 pairs on, the pairs connect all places. The places form a circle; offset d pairs every place p with p+d.
    Offset 1 comes first, because its pairs form one ring; the other offsets follow in random order. The order is drawn
    again if the last, incomplete offset uses some places twice and leaves out other places. A fitting order always
    exists: a last offset of size/2 fits up to half of the places, a last offset of 2 fits more.
    """
    while True:
        offsets = [1, *random.sample(range(2, size // 2 + 1), max(0, size // 2 - 1))]
        pairs = list(chain.from_iterable(_pairs_at(offset, size) for offset in offsets))[:matches]
        appearances = list(chain.from_iterable(pairs))
        counts = {appearances.count(place) for place in range(size)}
        if max(counts) - min(counts) <= 1:
            return pairs


def _pairs_at(offset: int, size: int) -> Iterable[tuple[int, int]]:
    """Yield all pairs at this distance in the circle, first every second pair of each cycle, then the rest."""
    cycles, length = gcd(offset, size), size // gcd(offset, size)
    for parity in (0, 1) if length > 2 else (0,):
        for start in range(cycles):
            for k in range(parity, length, 2):
                yield (start + k * offset) % size, (start + (k + 1) * offset) % size


def parse_budget(matches: int | str, size: int) -> int:
    """Return the number of matches for a group of `size`, at most one per pair. Raises ValueError for no such formula.

    >>> parse_budget("2n-2", 16), parse_budget("n/2", 7), parse_budget("3n/2 + 1", 8), parse_budget(20, 4)
    (30, 3, 13, 6)
    """
    form = re.fullmatch(r"(?:(\d*)n(?:/([1-9]\d*))?)?([+-]?\d+)?", str(matches).replace(" ", ""))
    if form is None or not str(matches).strip() or isinstance(matches, bool):
        raise ValueError(f"matches={matches!r}: must be a number, or a formula in the entrants n like 2n-2, n or n/2")
    multiple, divisor, constant = form.groups()
    per_entrant = int(multiple or 1) * size // int(divisor or 1) if "n" in form[0] else 0
    return min(max(0, per_entrant + int(constant or 0)), size * (size - 1) // 2)


def anchor_means(results: Results, size: int) -> list[float | None]:
    """Return each entrant's mean score in matches with the anchor; None if all failed. Section 4.2, ArenaRL."""
    others = range(1, size)
    return [mean_score(results, 0, others)] + [mean_score(results, i, [0]) for i in others]


def mean_score(results: Results, i: int, opponents: Iterable[int]) -> float | None:
    """Return the mean score of i against these opponents, or None if it has no score."""
    pairs = (results.get((i, j)) for j in opponents)
    scores = [pair[0] for pair in pairs if pair]
    return round(fmean(scores), DECIMALS) if scores else None


def outcome(scores: tuple[float, float]) -> int:
    """Return 1 if the first score is higher, -1 if it is lower, 0 for a draw."""
    return (scores[0] > scores[1]) - (scores[0] < scores[1])


def check_parameters(name: str, valid: Iterable[str], params: Iterable[str]) -> None:
    """Raise ValueError if a parameter is not valid."""
    if unknown := sorted(set(params) - set(valid)):
        raise ValueError(f"{name} has no parameter {', '.join(unknown)}; it has: {', '.join(valid) or 'none'}")


def check_fields(parameters: Any, skip: int = 0) -> None:
    """Raise ValueError if a field of a dataclass, after the first `skip` fields, does not have its annotated type."""
    hints: dict[str, Any] = {}
    with suppress(NameError, TypeError):  # a user's own class may have an annotation that cannot be evaluated
        hints = get_type_hints(type(parameters))
    for key in fields(parameters)[skip:]:
        check_type(key.name, getattr(parameters, key.name), hints.get(key.name, object))


_KINDS = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text", NoneType: "None"}


def check_type(name: str, value: Any, hint: Any) -> None:
    """Raise ValueError if the value is not of the type, or of one of a union's types. Generic types are not checked."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if all(kind in _KINDS for kind in kinds) and not any(_is_a(value, kind) for kind in kinds):
        raise ValueError(f"{name}={value!r:.200}: must be {' or '.join(_KINDS[kind] for kind in kinds)}")


def _is_a(value: Any, kind: type) -> bool:
    if kind in (int, float):
        return as_number(value) is not None and (kind is float or isinstance(value, Integral))
    return isinstance(value, kind)


def check_choice(what: str, value: str, choices: Iterable[str]) -> None:
    """Raise ValueError, with the nearest choice, if the value is not one of the choices."""
    if value not in choices:
        nearest = get_close_matches(str(value), choices, n=1, cutoff=0)[0]
        raise ValueError(f"unknown {what} {value!r}; did you mean {nearest!r}? (one of: {', '.join(choices)})")
