"""Rewards that a group's matches give: ArenaRL's tournament, Tournament-GRPO's group stage, win rates, BRPO and Elo."""

import asyncio
from dataclasses import asdict, replace

from arenarl.judges.judge import scores_and_detail
from arenarl.system.seeds import stable_seed
from arenarl.tournament.play import play_tournament
from arenarl.tournament.ranking import Ranking, midranks
from arenarl.tournament.topologies import parameters_of, surely_meets
from arenarl.training.judging import EarlyCalls, IncomingGroup
from arenarl.training.outcome import GroupOutcome, Referee, ranked_outcome, valid_of
from arenarl.training.rewards import (
    add_format_reward,
    elo_reward,
    min_max,
    rank_to_reward,
    reference_reward,
    zero_invalid,
)
from arenarl.trajectory import Trajectory


async def by_tournament(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """Eqs. 3-6, ArenaRL."""
    tournament = referee.tournament
    options = {name: getattr(tournament, name) for name in ("ranking", *parameters_of(tournament.topology))}
    _, ranking = await _play(referee, incoming, tournament.topology, {**options, "variances": referee.variances})
    return ranked_outcome(rank_to_reward(ranking.ranks_G), ranking)


async def by_group_stage(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """Algorithm 1, Eqs. 8 and 9, Tournament-GRPO."""
    valid_G, ranking = await _play(referee, incoming, "group_stage", asdict(referee.group_stage))
    return ranked_outcome(add_format_reward(min_max(zero_invalid(ranking.scores_G, valid_G)), valid_G), ranking)


async def by_win_rate(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """Share of matches won against all others, and Eq. 15, Tournament-GRPO. Both orders are asked (Eq. 3, ArenaRL)."""
    valid_G, won_G, ranking = await won(referee, incoming, "win_rate")
    return ranked_outcome(add_format_reward(won_G, valid_G), ranking)


async def by_random_reference(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """Everybody against a random valid member of the group (BRPO, Writing-Zero)."""
    valid_G, ranking = await _play(referee, incoming, "random_reference", {})
    signs_G = ranking.scores_G if ranking.matches else [0.0] * len(valid_G)
    return ranked_outcome(reference_reward(signs_G, valid_G), ranking)


async def by_elo(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """Ratings from 0 for the lowest to 1 (TournO's batched Elo)."""
    _, rewards_G, ranking = await won(referee, incoming, "elo")
    return ranked_outcome(rewards_G, ranking)


async def won(
    referee: Referee, incoming: IncomingGroup, pairs: str
) -> tuple[list[bool | None], list[float | None], Ranking]:
    """(valid_G, what matches gave each in [0, 1], the matches):
    the share of all others beaten (`win_rate`), or Elo ratings (`elo`)."""
    if pairs == "win_rate":
        valid_G, ranking = await _play(referee, incoming, "round_robin", {})
        won_G = ranking.scores_G if ranking.matches else [0.0] * len(valid_G)  # nobody to beat is no missing verdict
        return valid_G, zero_invalid(won_G, valid_G), ranking
    valid_G, ranking = await _play(
        referee, incoming, "elo", {name: getattr(referee.tournament, name) for name in parameters_of("elo")}
    )
    ratings_G = ranking.scores_G if ranking.matches else [0.0 if valid else None for valid in valid_G]
    return valid_G, elo_reward(ratings_G, valid_G), ranking


async def _play(
    referee: Referee, incoming: IncomingGroup, topology: str, options: dict
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
        shown = dict(enumerate(indices))  # unlike a sequence it refuses a position of -1
        return None if positions is None else [shown[position] for position in positions]

    async def enter(row: int) -> Trajectory:
        trajectory = await incoming.trajectory(row)
        calls.enter(row, repr(trajectory.messages) if trajectory.valid else None)
        return trajectory

    calls = EarlyCalls(surely_meets(topology), ask, tournament.bidirectional, tournament.timeout_s)
    valid_G = valid_of(await asyncio.gather(*map(enter, range(len(incoming)))))
    entrants_G = [calls.entered[row] for row in range(len(incoming))]
    ranking = await play_tournament(
        topology,
        len(incoming),
        choose if topology == "group_stage" else calls.compare,
        seed=stable_seed(referee.seed, query.query_id),
        entrants=entrants_G,
        valid_G=valid_G,
        timeout_s=tournament.timeout_s,
        bidirectional=tournament.bidirectional,
        **options,
    )
    if None in valid_G:
        places = [
            None if valid is None or rank is None else -rank
            for valid, rank in zip(valid_G, ranking.ranks_G, strict=True)
        ]
        ranking = replace(ranking, ranks_G=midranks(places))
    return valid_G, ranking
