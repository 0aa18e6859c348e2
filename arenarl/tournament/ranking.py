"""What a tournament leaves behind: calls, matches, and the ranking of one rollout group.

Between the topologies, which know entrants, and the callers, who know trajectories: identical trajectories are one
entrant and share its rank. `play.py` (pairs) and `group_stage.py` (groups judged whole) both end here. Needs only the
standard library.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from arenarl.tournament.schedules import DECIMALS, Place, Standing


@dataclass(frozen=True)
class Call:
    """One judge call: `scores` of the trajectories shown first and second, None where it failed,
    and then `error` says why."""

    first: int
    second: int
    scores: tuple[float, float] | None
    detail: Any = None
    error: str | None = None


@dataclass(frozen=True)
class Match:
    """A comparison of trajectories i and j; `round` counts the matches, one after the other, that it waited for."""

    i: int
    j: int
    round: int
    calls: tuple[Call, ...]

    @property
    def scores(self) -> tuple[float, float] | None:
        """(score_i, score_j) summed over the orders, None if any call failed. Eq. 3, ArenaRL."""
        if any(call.scores is None for call in self.calls):
            return None
        seen_from_i = [call.scores if call.first == self.i else call.scores[::-1] for call in self.calls]
        score_i, score_j = map(sum, zip(*seen_from_i, strict=True))
        return round(score_i, DECIMALS), round(score_j, DECIMALS)

    @property
    def error(self) -> str | None:
        """Why there is no verdict."""
        return next((call.error for call in self.calls if call.error), None)

    @property
    def is_tie(self) -> bool:
        """Whether both have the same score; a failed match is no tie."""
        return self.scores is not None and self.scores[0] == self.scores[1]

    @property
    def is_flip(self) -> bool:
        """Whether the two orders name different winners."""
        if len(self.calls) < 2 or self.scores is None:
            return False
        (a, b), (c, d) = (call.scores for call in self.calls)
        return (a - b) * (c - d) > 0


@dataclass(frozen=True)
class Ranking:
    """The outcome of one group: `ranks_G` and `scores_G` are (G,), indexed as the trajectories.

    Rank 0 is best, equal evidence shares a midrank, None marks a trajectory without a single verdict. Scores are the
    topology's own (win share, mean score), None also where nothing was judged. Matches are sorted by round. `bracket`
    holds the rounds of a single knockout, byes and pairs that had met before included; other topologies have none.
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
        """The longest chain of matches that waited for each other."""
        return max((match.round + 1 for match in self.matches), default=0)

    @property
    def failed_matches(self) -> list[Match]:
        """The matches without a verdict; `error` says why."""
        return [match for match in self.matches if match.scores is None]

    @property
    def failed_calls(self) -> int:
        return sum(call.scores is None for match in self.matches for call in match.calls)

    @property
    def tie_rate(self) -> float | None:
        """Share of drawn matches among those with a verdict, None without any."""
        return self._judged_share(lambda match: match.is_tie)

    @property
    def flip_rate(self) -> float | None:
        """Share of matches whose winner depends on the order shown, among those with a verdict; None without any."""
        return self._judged_share(lambda match: match.is_flip)

    def _judged_share(self, condition: Callable[[Match], bool]) -> float | None:
        judged = [match for match in self.matches if match.scores is not None]
        return sum(map(condition, judged)) / len(judged) if judged else None


def scored_calls(matches: Sequence[Match]) -> list[tuple[int, int, float, float]]:
    """(first, second, score_first, score_second) of all calls that count: what `mixed_model.py` estimates from."""
    judged = [match for match in matches if match.scores is not None]
    return [(call.first, call.second, *call.scores) for match in judged for call in match.calls]


def midranks(keys_G: Sequence[Any | None]) -> list[float | None]:
    """Ranks of the keys, 0 for the highest; equal keys share the mean of the ranks they take up, None stays None.

    >>> midranks([7, 9, 7, None])
    [1.5, 0.0, 1.5, None]
    """
    ranked = [key for key in keys_G if key is not None]
    return [
        None if key is None else sum(other > key for other in ranked) + (ranked.count(key) - 1) / 2 for key in keys_G
    ]


def group_entrants(group_size: int, keys: Sequence[Hashable] | None, valid_G: Sequence[bool] | None) -> list[list[int]]:
    """The valid trajectories, identical ones together, in the order of their first member."""
    if group_size < 1:
        raise ValueError(f"a tournament needs group_size >= 1, not {group_size}")
    for name, given in (("entrants", keys), ("valid_G", valid_G)):
        if given is not None and len(given) != group_size:
            raise ValueError(f"{name} has {len(given)} items for group_size {group_size}")
    members: dict[Hashable, list[int]] = {}
    for g in range(group_size):
        if valid_G is None or valid_G[g]:
            members.setdefault(g if keys is None else keys[g], []).append(g)
    return list(members.values())


def rank_trajectories(
    group_size: int, members: list[list[int]], standings: list[Standing | None]
) -> tuple[list[float | None], list[float | None]]:
    """(ranks_G, scores_G): the entrants' standings spread over the trajectories; the invalid ones stand below all."""
    is_unjudged = bool(standings) and not any(standings)
    keys_G: list[tuple | None] = [None if is_unjudged else (-inf,)] * group_size
    scores_G: list[float | None] = [None] * group_size
    for trajectories, standing in zip(members, standings, strict=True):
        for g in trajectories:
            keys_G[g], scores_G[g] = standing or (None, None)
    return midranks(keys_G), scores_G
