"""Play a topology with a judge: from pairwise verdicts to the ranking of one rollout group.

Runs between the judge (`compare`) and the rewards. A match starts when its entrants are known, with both orders at once
(Eq. 3, ArenaRL); no pair plays twice. A match counts only if both orders have a verdict, because a single order carries
the judge's position bias. The single score is stored but decides nothing. A failed call fails only its match.
`ranking="scores"` needs numpy; nothing here needs torch or TRL.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

from arenarl.tournament.calls import Failures, as_number, attempt, check_function, task_group
from arenarl.tournament.group_stage import Choose, play_group_stage
from arenarl.tournament.ranking import Call, Match, Ranking, group_entrants, rank_trajectories, scored_calls
from arenarl.tournament.schedules import Pairing, Place, Results, Standing, Topology, check_type
from arenarl.tournament.topologies import build_topology, resolve_ranking

if TYPE_CHECKING:
    from arenarl.tournament.mixed_model import JudgeVariances

Compare = Callable[[int, int], Awaitable[tuple | None]]


def run_tournament(topology: str, group_size: int, compare: Compare, seed: int = 0, **params) -> Ranking:
    """Run `play_tournament` for a caller without an event loop. Raises RuntimeError inside one.

    >>> async def compare(i, j):
    ...     return 10 - i, 10 - j
    >>> run_tournament("seeded_single_elimination", 4, compare).ranks_G
    [0.0, 1.0, 2.0, 3.0]
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(play_tournament(topology, group_size, compare, seed, **params))
    raise RuntimeError("run_tournament cannot run inside an event loop; await play_tournament(...) instead")


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
    failures: Failures = Exception,
    **params,
) -> Ranking:
    """Rank a group of `group_size` trajectories. Trajectory 0 is the anchor.

    Args:
        compare: `compare(i, j)` is one judge call with i shown first. It returns `(score_i, score_j)` or `(score_i,
            score_j, detail)`. The match fails if it raises or returns anything else. The topology `group_stage` takes
            `choose` instead, see `play_group_stage`.
        seed: for the topology's random order.
        entrants: (G,) equal keys mark identical trajectories, which enter once and share the rank.
        valid_G: (G,) invalid trajectories are not judged and share the last midrank. If the anchor is invalid, the
            first valid trajectory replaces it.
        limit: bounds the concurrent judge calls; groups can share it.
        timeout_s: a call that takes longer fails.
        ranking: `bracket` ranks by the topology's rules, `scores` by the qualities that a mixed-effects model estimates
            from all scores. None takes the topology's default.
        variances: the model's estimate from earlier groups, read only. Add this group with
            `variances.observe(group_size, scored_calls(ranking.matches))`.
        failures: errors of `compare` that fail its match. Any other error ends the tournament.
        params: the topology's parameters.

    If all verdicts failed, the group has no ranks. If all verdicts are ties, all ranks are equal, whatever the scores.

    Raises ValueError for an unknown topology, parameter or ranking, a value that cannot work, an empty group, a wrong
    length, or a `compare` that is not async.
    """
    check_type("group_size", group_size, int)
    check_call_options(topology, bidirectional, timeout_s)
    ranking = resolve_ranking(topology, ranking)
    members = group_entrants(group_size, entrants, valid_G)
    slots = limit or nullcontext()
    if topology == "group_stage":
        check_function("choose", compare, (), 1)
        choose = cast(Choose, compare)
        return await play_group_stage(group_size, members, choose, seed, slots, timeout_s, failures, **params)
    check_function("compare", compare, 0, 1)
    schedule = build_topology(topology, len(members), seed, **params)
    if len(members) < 2:
        return Ranking(*rank_trajectories(group_size, members, [Standing((0.0,), None)] * len(members)), [])
    pairwise = cast(Compare, compare)
    results, matches = await _play(schedule, members, pairwise, bidirectional, slots, timeout_s, failures)
    if not results and len(members) == group_size:
        raise ValueError(
            f"{topology} with {params} plays no match between {group_size} entrants; change its parameters"
        )
    if ranking == "scores":
        from arenarl.tournament.mixed_model import quality_from_calls  # imported late: it needs numpy

        qualities_G = quality_from_calls(group_size, scored_calls(matches), variances)
        qualities = [qualities_G[trajectories[0]] for trajectories in members]
        standings = [None if quality is None else Standing.of_score(quality) for quality in qualities]
    else:
        standings = schedule.standings(results)
    if all(scores is None or scores[0] == scores[1] for scores in results.values()):
        standings = [entrant and Standing((0.0,), entrant.score) for entrant in standings]
    first: dict[int | None, int] = {entrant: trajectories[0] for entrant, trajectories in enumerate(members)}
    bracket = [[Place(*map(first.get, place)) for place in places] for places in schedule.bracket(results)]
    return Ranking(*rank_trajectories(group_size, members, standings), matches, bracket)


def check_call_options(topology: str, bidirectional: bool = True, timeout_s: float | None = None) -> None:
    """Raise ValueError for options of `play_tournament`'s judge calls that cannot work."""
    check_type("bidirectional", bidirectional, bool)
    if topology == "group_stage" and not bidirectional:
        raise ValueError("bidirectional=false: group_stage shows each group once, in one order; leave it out")
    check_type("timeout_s", timeout_s, float | None)
    if timeout_s is not None and timeout_s <= 0:
        raise ValueError(f"timeout_s={timeout_s}: must be above 0, or None")


async def _play(
    schedule: Topology,
    members: list[list[int]],
    compare: Compare,
    bidirectional: bool,
    limit: AbstractAsyncContextManager,
    timeout_s: float | None,
    failures: Failures,
) -> tuple[Results, list[Match]]:
    """Play each match as soon as the schedule returns it. Results hold entrants, matches hold trajectories."""
    results: Results = {}
    calls: dict[frozenset[int], list[Call]] = {}  # by pair of entrants; added when the match starts
    matches: list[Match] = []

    async def judge(pairing: Pairing, first: int, second: int) -> None:
        async with limit:
            verdict, error = await attempt(lambda: compare(first, second), _read_scores, timeout_s, failures)
        match_calls = calls[frozenset(pairing[:2])]
        scores, detail = verdict or (None, None)
        match_calls.append(Call(first, second, scores, detail, error))
        if len(match_calls) == 1 + bidirectional:
            a, b, depth = pairing
            i, j = members[a][0], members[b][0]
            match = Match(i, j, depth, tuple(sorted(match_calls, key=lambda call: call.first != i)))
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

    async with task_group() as tasks:
        start_ready()
    return results, sorted(matches, key=lambda match: (match.round, match.i, match.j))


def _read_scores(reply: Any) -> tuple[tuple[float, float], Any]:
    """Return (scores, detail). Raises ValueError unless the reply is two numbers within ±1e100, with or without detail.
    The bound keeps sums and squares of scores finite."""
    if not isinstance(reply, (tuple, list)) or len(reply) not in (2, 3):
        raise ValueError(f"compare must return 2 scores, or 2 scores and a detail, not {reply!r}")
    scores = []
    for score in reply[:2]:
        number = as_number(score)
        if number is None or abs(number) > 1e100:
            raise ValueError(f"compare must return numbers within ±1e100, not {score!r}")
        scores.append(number)
    return (scores[0], scores[1]), reply[2] if len(reply) == 3 else None
