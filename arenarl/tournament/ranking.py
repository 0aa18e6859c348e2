"""Results of a tournament: judge calls, matches, and the ranking of one rollout group.

Topologies schedule entrants, callers hold trajectories, and this module maps between them: identical trajectories form
one entrant and share its rank. `play.py` (pairs) and `group_stage.py` (groups judged whole) build their results here.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from arenarl.tournament.schedules import DECIMALS, Place, Standing


@dataclass(frozen=True)
class Call:
    """A judge call: the scores of the trajectories shown `first` and `second`, or None and the `error`."""

    first: int
    second: int
    scores: tuple[float, float] | None
    detail: Any = None
    error: str | None = None

    @property
    def winner(self) -> int | None:
        """The trajectory with the higher score; None for a draw or a failed call."""
        if self.scores is None or self.scores[0] == self.scores[1]:
            return None
        return self.first if self.scores[0] > self.scores[1] else self.second


@dataclass(frozen=True)
class Match:
    """The judge calls that compare trajectories i and j.
    `round` is the length of the chain of matches that had to end before this one started."""

    i: int
    j: int
    round: int
    calls: tuple[Call, ...]

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Match":
        """Rebuild a match from a record that `dataclasses.asdict` made."""
        return cls(record["i"], record["j"], record["round"], tuple(Call(**call) for call in record["calls"]))

    @property
    def scores(self) -> tuple[float, float] | None:
        """(score_i, score_j) summed over both orders; None if any call failed. Eq. 3, ArenaRL."""
        scores_i, scores_j = [], []
        for call in self.calls:
            if call.scores is None:
                return None
            score_i, score_j = call.scores if call.first == self.i else call.scores[::-1]
            scores_i.append(score_i)
            scores_j.append(score_j)
        return round(sum(scores_i), DECIMALS), round(sum(scores_j), DECIMALS)

    @property
    def error(self) -> str | None:
        """The reason of the first failed call; None if no call failed."""
        return next((call.error for call in self.calls if call.error), None)

    @property
    def is_tie(self) -> bool:
        """True if both scores are equal. A failed match is not a tie."""
        scores = self.scores
        return scores is not None and scores[0] == scores[1]

    @property
    def is_flip(self) -> bool:
        """True if the two orders have different winners."""
        return {call.winner for call in self.calls} == {self.i, self.j}

    @property
    def agreed(self) -> tuple[int, int] | None:
        """(winner, loser) if all calls of the match have the same winner, otherwise None."""
        winners = {call.winner for call in self.calls}
        if winners == {self.i}:
            return self.i, self.j
        return (self.j, self.i) if winners == {self.j} else None


@dataclass(frozen=True)
class Ranking:
    """The ranking of one group. `ranks_G` and `scores_G` have shape (G,) and the order of the trajectories.

    Rank 0 is best. Equal evidence shares a midrank. A trajectory without any verdict has rank None. Scores depend on
    the topology (win share, mean score); they are None where nothing was judged. Matches are sorted by round. `bracket`
    holds the rounds of a single knockout, including byes and pairs that met before; it is empty for other topologies.
    """

    ranks_G: list[float | None]
    scores_G: list[float | None]
    matches: list[Match]
    bracket: list[list[Place]] = field(default_factory=list)

    @property
    def judge_calls(self) -> int:
        return sum(len(match.calls) for match in self.matches)

    @property
    def critical_path(self) -> int:
        """The length of the longest chain of matches that waited for each other."""
        return max((match.round + 1 for match in self.matches), default=0)

    @property
    def failed_matches(self) -> list[Match]:
        """The matches without a verdict; their `error` holds the reason."""
        return [match for match in self.matches if match.scores is None]

    @property
    def failed_calls(self) -> int:
        return sum(call.scores is None for match in self.matches for call in match.calls)

    @property
    def tie_rate(self) -> float | None:
        """Share of ties among the matches with a verdict; None if no match has one."""
        return _share_true(match.is_tie for match in self.matches if match.scores)

    @property
    def flip_rate(self) -> float | None:
        """Share of flips (see `is_flip`) among the matches with a verdict; None if no match has one."""
        return _share_true(match.is_flip for match in self.matches if match.scores)


def _share_true(flags: Iterable[bool]) -> float | None:
    flags = list(flags)
    return sum(flags) / len(flags) if flags else None


def scored_calls(matches: Sequence[Match]) -> list[tuple[int, int, float, float]]:
    """Return (first, second, score_first, score_second) for every call of the matches with a verdict."""
    calls = [call for match in matches if match.scores for call in match.calls]
    return [(call.first, call.second, *call.scores) for call in calls if call.scores]


def midranks(keys_G: Sequence[Any | None]) -> list[float | None]:
    """Rank the keys. The highest key has rank 0, equal keys share the mean of their ranks, None stays None.

    >>> midranks([7, 9, 7, None])
    [1.5, 0.0, 1.5, None]
    """
    ranked = [key for key in keys_G if key is not None]
    return [
        None if key is None else sum(other > key for other in ranked) + (ranked.count(key) - 1) / 2 for key in keys_G
    ]


def group_entrants(group_size: int, keys: Sequence[Hashable] | None, valid_G: Sequence[bool] | None) -> list[list[int]]:
    """Group the valid trajectories into entrants: identical trajectories together, ordered by their first index.
    Raises ValueError for an empty group, and for arguments of another length than the group."""
    if group_size < 1:
        raise ValueError(f"a tournament needs group_size >= 1, not {group_size}")
    for name, values in (("entrants", keys), ("valid_G", valid_G)):
        if values is not None and len(values) != group_size:
            raise ValueError(f"{name} has {len(values)} items for group_size {group_size}")
    members: dict[Hashable, list[int]] = {}
    for g in range(group_size):
        if valid_G is None or valid_G[g]:
            members.setdefault(g if keys is None else keys[g], []).append(g)
    return list(members.values())


def rank_trajectories(
    group_size: int, members: list[list[int]], standings: list[Standing | None]
) -> tuple[list[float | None], list[float | None]]:
    """Return (ranks_G, scores_G): the entrants' standings, spread over their trajectories.
    Invalid trajectories rank below all entrants. If no entrant has a standing, nothing has a rank."""
    is_unjudged = bool(standings) and not any(standings)
    keys_G: list[tuple | None] = [None if is_unjudged else (-inf,)] * group_size
    scores_G: list[float | None] = [None] * group_size
    for trajectories, standing in zip(members, standings, strict=True):
        for g in trajectories:
            keys_G[g], scores_G[g] = standing or (None, None)
    return midranks(keys_G), scores_G
