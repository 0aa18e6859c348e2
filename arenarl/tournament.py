"""Plays a topology with a judge: from pairwise verdicts to a ranking of one rollout group.

Stands between the judge (`compare`) and the rewards, and knows neither: it runs matches as soon as their entrants are known,
both orders at once (Eq. 3, ArenaRL), never a pair twice, and turns the standings into ranks. Needs only the standard library.
A match counts only if both orders got a verdict: a single order carries the judge's position bias, so its score is kept with
the match but decides nothing. A call that fails, for whatever reason, fails its match and nothing else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from arenarl.schedules import DECIMALS, Pairing, Results, Standing, Topology
from arenarl.topologies import build_topology, resolve_ranking

if TYPE_CHECKING:
    from arenarl.mixed_model import JudgeVariances

Compare = Callable[[int, int], Awaitable[tuple | None]]


@dataclass(frozen=True)
class Call:
    """One judge call: `scores` of the trajectories shown first and second, None where it failed, and then `error` says why."""

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
    timeout_s: float | None = None,
    ranking: str | None = None,
    variances: "JudgeVariances | None" = None,
    **params,
) -> Ranking:
    """Rank a group of `group_size` trajectories, of which trajectory 0 is the anchor.

    `compare(i, j)` is one judge call with i shown first: it returns `(score_i, score_j)` or `(score_i, score_j, detail)`. If it
    returns None or anything else, raises, or takes longer than `timeout_s`, its match has failed. `entrants` (G,): equal keys
    name identical trajectories, which enter once and share the rank. `valid_G` (G,): invalid ones are not judged and share the
    last midrank; if that is the anchor, the first valid trajectory takes its part. `limit` bounds the judge calls under way and
    can be shared by groups. `seed` draws the topology's lots, `params` are its parameters.

    `ranking`: by the topology's own rules (`bracket`), or by the qualities that a mixed-effects model estimates from all scores
    (`scores`; needs numpy); None takes the topology's default. `variances` is what the model learned from earlier groups, and
    learns from this one once it is ranked.

    A group whose verdicts all failed has no ranks. One whose verdicts all tied has equal ranks, whatever the scores: they differ
    only from match to match, and nobody was preferred to anybody.

    Raises ValueError for an unknown topology, parameter or ranking, a group below 2, or a wrong length.
    """
    if topology == "group_stage":
        from arenarl.group_stage import play_group_stage

        return await play_group_stage(group_size, compare, seed, entrants=entrants, valid_G=valid_G, limit=limit, **params)
    members = _entrants(group_size, entrants, valid_G)
    schedule = build_topology(topology, len(members), seed, **params)
    ranking = resolve_ranking(topology, ranking)
    if len(members) < 2:
        return _rank(group_size, members, [Standing((0.0,), None)] * len(members), [])
    results, matches = await _play(schedule, members, compare, bidirectional, limit or nullcontext(), timeout_s)
    if ranking == "scores":
        standings = _standings_by_scores(members, matches, variances)
    else:
        standings = schedule.standings(results)
    if all(scores is None or scores[0] == scores[1] for scores in results.values()):
        standings = [entrant and Standing((0.0,), entrant.score) for entrant in standings]
    return _rank(group_size, members, standings, matches)


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


async def _play(
    schedule: Topology,
    members: list[list[int]],
    compare: Compare,
    bidirectional: bool,
    limit: AbstractAsyncContextManager,
    timeout_s: float | None,
) -> tuple[Results, list[Match]]:
    """Play all that the schedule names, each match as soon as it is named; results by entrant, matches by trajectory."""
    results: Results = {}
    calls: dict[frozenset[int], list[Call]] = {}  # by the two entrants, from the start of their match on
    matches: list[Match] = []

    async def judge(pairing: Pairing, first: int, second: int) -> None:
        async with limit:
            call = await _call(compare, first, second, timeout_s)
        calls_so_far = calls[frozenset(pairing[:2])]
        calls_so_far.append(call)
        if len(calls_so_far) == 1 + bidirectional:
            finish(pairing, calls_so_far)
            start_ready()

    def finish(pairing: Pairing, calls: list[Call]) -> None:
        a, b, depth = pairing
        i, j = members[a][0], members[b][0]
        match = Match(i, j, depth, tuple(sorted(calls, key=lambda call: call.first != i)))
        matches.append(match)
        results[a, b] = match.scores
        results[b, a] = match.scores and match.scores[::-1]

    def start_ready() -> None:
        for pairing in schedule.ready(results):
            pair = frozenset(pairing[:2])
            if pair not in calls:
                calls[pair] = []
                i, j = members[pairing.i][0], members[pairing.j][0]
                tasks.create_task(judge(pairing, i, j))
                if bidirectional:
                    tasks.create_task(judge(pairing, j, i))

    async with asyncio.TaskGroup() as tasks:
        start_ready()
    return results, sorted(matches, key=lambda match: (match.round, match.i, match.j))


async def _call(compare: Compare, first: int, second: int, timeout_s: float | None) -> Call:
    clock = asyncio.timeout(timeout_s)
    try:
        async with clock:
            reply = await compare(first, second)
        return Call(first, second, *_read_reply(reply))
    except asyncio.CancelledError as error:
        if asyncio.current_task().cancelling():  # it is the tournament that is cancelled, and not something inside compare
            raise
        return Call(first, second, None, error=repr(error))
    except Exception as error:
        return Call(first, second, None, error=f"no verdict within {timeout_s} s" if clock.expired() else repr(error))


def _read_reply(reply: Any) -> tuple[tuple[float, float], Any]:
    """(scores, detail). Raises ValueError for anything but two finite scores, with or without a detail."""
    if reply is None:
        raise ValueError("compare returned None: no verdict could be had")
    if not isinstance(reply, (tuple, list)) or len(reply) not in (2, 3):
        raise ValueError(f"compare must return 2 scores, or 2 scores and a detail, not {reply!r}")
    scores = float(reply[0]), float(reply[1])
    if not all(map(isfinite, scores)):
        raise ValueError(f"compare returned scores that are not finite: {scores}")
    return scores, reply[2] if len(reply) == 3 else None


def _standings_by_scores(
    members: list[list[int]], matches: list[Match], variances: "JudgeVariances | None"
) -> list[Standing | None]:
    """Entrants by their estimated quality."""
    from arenarl.mixed_model import quality_from_calls  # only here: it needs numpy

    entrant_of = {trajectories[0]: k for k, trajectories in enumerate(members)}
    calls = [
        (entrant_of[call.first], entrant_of[call.second], *call.scores)
        for match in matches
        if match.scores is not None
        for call in match.calls
    ]
    qualities = quality_from_calls(len(members), calls, variances)
    if variances is not None:
        variances.observe(len(members), calls)
    return [None if quality is None else Standing.of_score(round(quality, DECIMALS)) for quality in qualities]


def _rank(
    group_size: int, members: list[list[int]], standings: list[Standing | None], matches: list[Match]
) -> Ranking:
    """Spread the entrants' standings over the trajectories; the invalid ones stand below all."""
    is_unjudged = bool(standings) and not any(standings)
    keys_G: list[tuple | None] = [None if is_unjudged else (-inf,)] * group_size
    scores_G: list[float | None] = [None] * group_size
    for trajectories, standing in zip(members, standings, strict=True):
        for g in trajectories:
            keys_G[g], scores_G[g] = standing or (None, None)
    return Ranking(midranks(keys_G), scores_G, matches)
