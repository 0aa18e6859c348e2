"""Plays a topology with a judge: from pairwise verdicts to a ranking of one rollout group.

Stands between the judge (`compare`) and the rewards, and knows neither: it runs matches as soon as their entrants are
known, both orders at once (Eq. 3, ArenaRL), never a pair twice, and turns the standings into ranks. Needs neither torch
nor TRL; Swiss takes networkx, `ranking="scores"` numpy. A match counts only if both orders got a verdict: a single
order carries the judge's position bias, so its score is kept with the match but decides nothing. A call that fails, for
whatever reason, fails its match and nothing else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from arenarl.tournament.calls import attempt, is_number
from arenarl.tournament.group_stage import Choose, play_group_stage
from arenarl.tournament.ranking import Call, Match, Ranking, group_entrants, rank_trajectories, scored_calls
from arenarl.tournament.schedules import Pairing, Place, Results, Standing, Topology
from arenarl.tournament.topologies import build_topology, resolve_ranking

if TYPE_CHECKING:
    from arenarl.tournament.mixed_model import JudgeVariances

__all__ = ["Call", "Choose", "Compare", "Match", "Ranking", "play_tournament", "run_tournament"]

Compare = Callable[[int, int], Awaitable[tuple | None]]


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
    compare: Compare | Choose,
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

    `compare(i, j)` is one judge call with i shown first: it returns `(score_i, score_j)` or
    `(score_i, score_j, detail)`. If it returns None or anything else, raises, or takes longer than `timeout_s`, its
    match has failed. `entrants` (G,): equal keys name identical trajectories, which enter once and share the rank.
    `valid_G` (G,): invalid ones are not judged and share the last midrank; if that is the anchor, the first valid
    trajectory takes its part. `limit` bounds the judge calls under way and can be shared by groups. `seed` draws the
    topology's lots, `params` are its parameters.

    `ranking`: by the topology's own rules (`bracket`), or by the qualities that a mixed-effects model estimates from
    all scores (`scores`; needs numpy); None takes the topology's default. `variances` is what the model learned from
    earlier groups; it is only read: hand it `scored_calls(ranking.matches)` to learn from this one.

    `group_stage` has judge calls that show many trajectories,
    and `choose` in place of `compare`: see `play_group_stage`.

    A group whose verdicts all failed has no ranks. One whose verdicts all tied has equal ranks, whatever the scores:
    they differ only from match to match, and nobody was preferred to anybody.

    Raises ValueError for an unknown topology, parameter or ranking, a group without trajectories, or a wrong length.
    """
    ranking = resolve_ranking(topology, ranking)
    members = group_entrants(group_size, entrants, valid_G)
    if topology == "group_stage":
        return await play_group_stage(group_size, members, compare, seed, limit or nullcontext(), timeout_s, **params)
    schedule = build_topology(topology, len(members), seed, **params)
    if len(members) < 2:
        return Ranking(*rank_trajectories(group_size, members, [Standing((0.0,), None)] * len(members)), [])
    results, matches = await _play(schedule, members, compare, bidirectional, limit or nullcontext(), timeout_s)
    if ranking == "scores":
        from arenarl.tournament.mixed_model import quality_from_calls  # only here: it needs numpy

        qualities_G = quality_from_calls(group_size, scored_calls(matches), variances)
        qualities = [qualities_G[trajectories[0]] for trajectories in members]
        standings = [None if quality is None else Standing.of_score(quality) for quality in qualities]
    else:
        standings = schedule.standings(results)
    if all(scores is None or scores[0] == scores[1] for scores in results.values()):
        standings = [entrant and Standing((0.0,), entrant.score) for entrant in standings]
    first = {entrant: trajectories[0] for entrant, trajectories in enumerate(members)}
    bracket = [[Place(*map(first.get, place)) for place in places] for places in schedule.bracket(results)]
    return Ranking(*rank_trajectories(group_size, members, standings), matches, bracket)


async def _play(
    schedule: Topology,
    members: list[list[int]],
    compare: Compare,
    bidirectional: bool,
    limit: AbstractAsyncContextManager,
    timeout_s: float | None,
) -> tuple[Results, list[Match]]:
    """Play all that the schedule names, each match as soon as it is named;
    results by entrant, matches by trajectory."""
    results: Results = {}
    calls: dict[frozenset[int], list[Call]] = {}  # by the two entrants, from the start of their match on
    matches: list[Match] = []

    async def judge(pairing: Pairing, first: int, second: int) -> None:
        async with limit:
            verdict, error = await attempt(lambda: compare(first, second), _read_scores, timeout_s)
        of_match = calls[frozenset(pairing[:2])]
        of_match.append(Call(first, second, *(verdict or (None, None)), error))
        if len(of_match) == 1 + bidirectional:
            a, b, depth = pairing
            i, j = members[a][0], members[b][0]
            match = Match(i, j, depth, tuple(sorted(of_match, key=lambda call: call.first != i)))
            matches.append(match)
            results[a, b], results[b, a] = match.scores, match.scores and match.scores[::-1]
            start_ready()

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


def _read_scores(reply: Any) -> tuple[tuple[float, float], Any]:
    """(scores, detail). Raises ValueError for anything but two numbers whose sums and squares are finite,
    with or without a detail."""
    if not isinstance(reply, (tuple, list)) or len(reply) not in (2, 3):
        raise ValueError(f"compare must return 2 scores, or 2 scores and a detail, not {reply!r}")
    for score in reply[:2]:
        if not is_number(score) or not abs(score) <= 1e100:
            raise ValueError(f"compare must return numbers within ±1e100, not {score!r}")
    return (float(reply[0]), float(reply[1])), reply[2] if len(reply) == 3 else None
