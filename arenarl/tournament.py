"""Plays a topology with a judge: from pairwise verdicts to a ranking of one rollout group.

Stands between the judge (`compare`) and the rewards, and knows neither: it runs matches as soon as their entrants are known,
both orders at once (Eq. 3, ArenaRL), never a pair twice, and turns the standings into ranks. Needs only the standard library.
A match counts only if both orders got a verdict: a single order carries the judge's position bias, so its score is kept with
the match but decides nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from arenarl.topologies import DECIMALS, Pairing, Results, Standing, build_topology

Compare = Callable[[int, int], Awaitable[tuple | None]]


@dataclass(frozen=True)
class Call:
    """One judge call: `scores` of the trajectories shown first and second, None where no verdict could be had."""

    first: int
    second: int
    scores: tuple[float, float] | None
    detail: Any = None


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
        score_i, score_j = map(sum, zip(*seen_from_i))
        return round(score_i, DECIMALS), round(score_j, DECIMALS)

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

    Rank 0 is best, equal evidence shares a midrank, None marks a trajectory without a single verdict. Scores are the topology's
    own (win share, mean score), None also where nothing was judged. Matches are sorted by round.
    """

    ranks_G: list[float | None]
    scores_G: list[float | None]
    matches: list[Match]

    @property
    def judge_calls(self) -> int:
        return sum(len(match.calls) for match in self.matches)

    @property
    def critical_path(self) -> int:
        """The longest chain of matches that waited for each other."""
        return max((match.round + 1 for match in self.matches), default=0)

    @property
    def failed_matches(self) -> list[Match]:
        return [match for match in self.matches if match.scores is None]

    @property
    def tie_rate(self) -> float | None:
        """Share of drawn matches among those with a verdict, None without any."""
        return self._share(lambda match: match.scores[0] == match.scores[1])

    @property
    def flip_rate(self) -> float | None:
        """Share of matches whose winner depends on the order shown, among those with a verdict; None without any."""
        return self._share(lambda match: match.is_flip)

    def _share(self, condition: Callable[[Match], bool]) -> float | None:
        judged = [match for match in self.matches if match.scores is not None]
        return sum(map(condition, judged)) / len(judged) if judged else None


def run_tournament(topology: str, group_size: int, compare: Compare, seed: int = 0, **params) -> Ranking:
    """`play_tournament` for callers without an event loop.

    >>> async def compare(i, j):
    ...     return 10 - i, 10 - j
    >>> run_tournament("seeded_single_elimination", 4, compare).ranks_G
    [0.0, 1.0, 2.0, 3.0]
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(play_tournament(topology, group_size, compare, seed, **params))
    raise RuntimeError("run_tournament cannot run inside an event loop: await play_tournament(...) instead")


async def play_tournament(
    topology: str,
    group_size: int,
    compare: Compare,
    seed: int = 0,
    *,
    entrants: Sequence[Hashable] | None = None,
    valid_G: Sequence[bool] | None = None,
    bidirectional: bool = True,
    limit: asyncio.Semaphore | None = None,
    **params,
) -> Ranking:
    """Rank a group of `group_size` trajectories, of which trajectory 0 is the anchor.

    `compare(i, j)` is one judge call with i shown first: it returns `(score_i, score_j)`, `(score_i, score_j, detail)`, or None
    when no verdict could be had; what it raises stops the tournament and reaches the caller. `entrants` (G,): equal keys name
    identical trajectories, which enter once and share the rank. `valid_G` (G,): invalid ones are not judged and share the last
    midrank; if that is the anchor, the first valid trajectory takes its part. `limit` bounds the judge calls under way and can
    be shared by groups. `seed` draws the topology's lots, `params` are its parameters. A group whose verdicts all failed has
    no ranks.

    Raises ValueError for an unknown topology or parameter, a group below 2, a wrong length, or scores that are not finite.
    """
    if topology == "group_stage":
        from arenarl.group_stage import play_group_stage

        return await play_group_stage(group_size, compare, seed, entrants=entrants, valid_G=valid_G, limit=limit, **params)
    members = _entrants(group_size, entrants, valid_G)
    schedule = build_topology(topology, len(members), seed, **params)
    if len(members) < 2:
        return _rank(group_size, members, [Standing((0.0,), None)] * len(members), [])
    results: Results = {}
    matches: dict[frozenset, Match | None] = {}  # None while the match is being played

    async def call(first: int, second: int) -> Call:
        async with limit or nullcontext():
            return _read_reply(first, second, await compare(first, second))

    async def play(pairing: Pairing) -> None:
        a, b = pairing.i, pairing.j
        i, j = members[a][0], members[b][0]
        orders = [(i, j), (j, i)] if bidirectional else [(i, j)]
        calls = [tasks.create_task(call(*order)) for order in orders]
        match = Match(i, j, pairing.round, tuple([await task for task in calls]))
        matches[frozenset((a, b))] = match
        results[a, b] = match.scores
        results[b, a] = match.scores and match.scores[::-1]
        start_ready()

    def start_ready() -> None:
        for pairing in schedule.ready(results):
            pair = frozenset(pairing[:2])
            if pair not in matches:
                matches[pair] = None
                tasks.create_task(play(pairing))

    try:
        async with asyncio.TaskGroup() as tasks:
            start_ready()
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    played = sorted(matches.values(), key=lambda match: (match.round, match.i, match.j))
    return _rank(group_size, members, schedule.standings(results), played)


def midranks(keys_G: Sequence[Any | None]) -> list[float | None]:
    """Ranks of the keys, 0 for the highest; equal keys share the mean of the ranks they take up, None stays None.

    >>> midranks([7, 9, 7, None])
    [1.5, 0.0, 1.5, None]
    """
    ranked = [key for key in keys_G if key is not None]
    return [
        None if key is None else sum(other > key for other in ranked) + (ranked.count(key) - 1) / 2 for key in keys_G
    ]


def _entrants(group_size: int, keys: Sequence[Hashable] | None, valid_G: Sequence[bool] | None) -> list[list[int]]:
    """The valid trajectories, identical ones together, in the order of their first member."""
    if group_size < 2:
        raise ValueError(f"a tournament needs group_size >= 2, not {group_size}")
    for name, given in (("entrants", keys), ("valid_G", valid_G)):
        if given is not None and len(given) != group_size:
            raise ValueError(f"{name} has {len(given)} items for group_size {group_size}")
    members: dict[Hashable, list[int]] = {}
    for g in range(group_size):
        if valid_G is None or valid_G[g]:
            members.setdefault(g if keys is None else keys[g], []).append(g)
    return list(members.values())


def _read_reply(first: int, second: int, reply: tuple | None) -> Call:
    if reply is None:
        return Call(first, second, None)
    if not isinstance(reply, (tuple, list)) or len(reply) not in (2, 3):
        raise ValueError(f"compare({first}, {second}) must return 2 scores, 2 scores and a detail, or None, not {reply!r}")
    scores = float(reply[0]), float(reply[1])
    if not all(map(isfinite, scores)):
        raise ValueError(f"compare({first}, {second}) returned scores that are not finite: {scores}")
    return Call(first, second, scores, *reply[2:])


def _rank(
    group_size: int, members: list[list[int]], standings: list[Standing | None], matches: list[Match]
) -> Ranking:
    """Spread the entrants' standings over the trajectories; the invalid ones stand below all."""
    is_unjudged = bool(standings) and not any(standings)
    keys_G: list[tuple | None] = [None if is_unjudged else (-inf,)] * group_size
    scores_G: list[float | None] = [None] * group_size
    for trajectories, standing in zip(members, standings):
        for g in trajectories:
            keys_G[g], scores_G[g] = standing or (None, None)
    return Ranking(midranks(keys_G), scores_G, matches)
