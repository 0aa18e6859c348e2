"""Judge calls about the trajectories of one group, begun while others still come in."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from arenarl.judges.judge import scores_and_detail
from arenarl.system.seeds import stable_seed
from arenarl.tournament.play import play_tournament
from arenarl.tournament.ranking import Ranking, midranks
from arenarl.tournament.topologies import surely_meets
from arenarl.training.judging import EarlyCalls, IncomingGroup
from arenarl.training.rewards.outcome import Referee, valid_of
from arenarl.trajectory import Trajectory


async def play(
    referee: Referee, incoming: IncomingGroup, topology: str, **options
) -> tuple[list[bool | None], Ranking]:
    """(valid_G, the group's tournament). Trajectories with the same messages enter once; void ones have no rank.

    Calls that are sure to be made start as soon as their trajectories are there, all others with the complete group.
    """
    query, tournament = incoming.query, referee.tournament

    async def ask(i: int, j: int) -> tuple | None:
        first, second = await incoming.trajectory(i), await incoming.trajectory(j)
        with incoming.calling():
            return scores_and_detail(await referee.judge.compare(query, first, second))

    async def choose(indices: tuple[int, ...], winners: int) -> list[int] | None:
        trajectories = [await incoming.trajectory(row) for row in indices]
        with incoming.calling():
            positions = await referee.judge.choose(query, trajectories, winners)
        row_at = dict(enumerate(indices))  # unlike a sequence it refuses a position of -1
        return None if positions is None else [row_at[position] for position in positions]

    async def enter(row: int) -> Trajectory:
        trajectory = await incoming.trajectory(row)
        calls.enter(row, repr(trajectory.messages) if trajectory.valid else None)
        return trajectory

    calls = EarlyCalls(surely_meets(topology), ask, tournament.bidirectional, tournament.timeout_s)
    valid_G = valid_of(await asyncio.gather(*map(enter, range(len(incoming)))))
    ranking = await play_tournament(
        topology,
        len(incoming),
        choose if topology == "group_stage" else calls.compare,
        seed=stable_seed(referee.seed, query.query_id),
        entrants=[calls.entered[row] for row in range(len(incoming))],
        valid_G=valid_G,
        timeout_s=tournament.timeout_s,
        bidirectional=tournament.bidirectional,
        **options,
    )
    if None in valid_G:
        known = [rank if valid is not None else None for valid, rank in zip(valid_G, ranking.ranks_G, strict=True)]
        ranking = replace(ranking, ranks_G=midranks([None if rank is None else -rank for rank in known]))
    return valid_G, ranking


async def ask(
    incoming: IncomingGroup, calls: Callable[[Trajectory], list[Awaitable[float | None]]]
) -> tuple[list[bool | None], list[list[float | None]]]:
    """(valid_G, the judge's replies to each trajectory's `calls`), made as soon as it is there;
    of an invalid one, none are made."""

    async def reply(call: Awaitable[float | None]) -> float | None:
        with incoming.calling():
            return await call

    async def replies(row: int) -> list[float | None]:
        trajectory = await incoming.trajectory(row)
        return await asyncio.gather(*map(reply, calls(trajectory))) if trajectory.valid else []

    replies_G = await asyncio.gather(*map(replies, range(len(incoming))))
    return valid_of((await incoming.complete()).trajectories), replies_G
