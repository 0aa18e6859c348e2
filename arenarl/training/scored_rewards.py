"""Rewards that the judge's scores give, of a trajectory by itself or of all in one call: the paper's baselines (6.1),
those of Tournament-GRPO's Appendix F, checklists and RULER."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from statistics import fmean

from arenarl.domains.rubrics import weighted_mean
from arenarl.system.seeds import stable_seed
from arenarl.tournament.ranking import midranks
from arenarl.training.judging import IncomingGroup
from arenarl.training.outcome import GroupOutcome, Referee, rounded, scored_outcome, valid_of
from arenarl.training.rewards import add_format_reward, checklist_reward, pointwise_reward, zero_invalid
from arenarl.trajectory import Trajectory


async def by_score(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """A score of the answer alone (3.2), as in the paper's GRPO and GSPO rows, or of the whole trajectory;
    the mean of several calls."""
    reward = referee.reward

    async def score(trajectory: Trajectory, repeat: int) -> float | None:
        verdict = await referee.judge.score(incoming.query, trajectory, reward.name == "pointwise_answer", repeat)
        return None if verdict is None else verdict.totals[0]

    valid_G, replies_G = await ask(
        incoming, lambda trajectory: [score(trajectory, repeat) for repeat in range(reward.repeats)]
    )
    known_G = [[reply for reply in replies if reply is not None] for replies in replies_G]
    scores_G = [fmean(known) if known else None for known in known_G]
    return scored_outcome(pointwise_reward(scores_G, valid_G), replies_G, scores_G)


async def by_overall_score(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """One number for the whole rubric. Eqs. 11 and 12, Tournament-GRPO."""
    valid_G, replies_G = await ask(
        incoming, lambda trajectory: [referee.judge.score_overall(incoming.query, trajectory)]
    )
    scores_G = [replies[0] if replies else None for replies in replies_G]
    return scored_outcome(
        add_format_reward(pointwise_reward(zero_invalid(scores_G, valid_G)), valid_G), replies_G, scores_G
    )


async def by_dimension(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """A call for every dimension; a trajectory that misses one has no score. Eqs. 13 and 14, Tournament-GRPO."""
    query, weights = incoming.query, referee.judge.weights(incoming.query)
    valid_G, replies_G = await ask(
        incoming, lambda trajectory: [referee.judge.score_dimension(query, trajectory, name) for name in weights]
    )
    scores_G = [
        weighted_mean(dict(zip(weights, replies, strict=True)), weights) if replies else None for replies in replies_G
    ]
    return scored_outcome(
        add_format_reward(pointwise_reward(zero_invalid(scores_G, valid_G)), valid_G, scale=0.5), replies_G, scores_G
    )


async def by_checklist(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """One call a trajectory about all items of the query's checklist. Rubrics as Rewards, its explicit aggregation."""
    query, weights = incoming.query, referee.judge.checklist(incoming.query)
    valid_G, replies_G = await ask(incoming, lambda trajectory: [referee.judge.check_items(query, trajectory)])
    shares_G = checklist_reward([replies[0] if replies else None for replies in replies_G], weights)
    return scored_outcome(zero_invalid(shares_G, valid_G), replies_G)


async def by_list(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """One listwise call about the group, its order drawn by lot;
    trajectories with the same messages are shown once (RULER)."""
    query, trajectories = incoming.query, (await incoming.complete()).trajectories
    rows = {repr(one.messages): row for row, one in reversed(list(enumerate(trajectories))) if one.valid}
    shown = random.Random(stable_seed(referee.seed, query.query_id)).sample(sorted(rows.values()), len(rows))
    scores: list[float] | None = None
    if shown:
        with incoming.calling():
            scores = await referee.judge.score_together(query, [trajectories[row] for row in shown])
    by_row = dict(zip(shown, scores or [None] * len(shown), strict=True))
    valid_G = valid_of(trajectories)
    scores_G = [by_row[rows[repr(one.messages)]] if one.valid else None for one in trajectories]
    rewards_G = pointwise_reward(zero_invalid(scores_G, valid_G))
    return GroupOutcome(
        rewards_G,
        midranks(rounded(rewards_G)),
        int(bool(shown)),
        int(bool(shown) and scores is None),
        scores_G=scores_G,
    )


async def ask(
    incoming: IncomingGroup, calls: Callable[[Trajectory], list[Awaitable[float | None]]]
) -> tuple[list[bool | None], list[list[float | None]]]:
    """(valid_G, the judge's replies to each trajectory's `calls`), asked as soon as it is there;
    of an invalid one, nothing is."""

    async def reply(call: Awaitable[float | None]) -> float | None:
        with incoming.calling():
            return await call

    async def replies(row: int) -> list[float | None]:
        trajectory = await incoming.trajectory(row)
        return await asyncio.gather(*map(reply, calls(trajectory))) if trajectory.valid else []

    replies_G = await asyncio.gather(*map(replies, range(len(incoming))))
    return valid_of((await incoming.complete()).trajectories), replies_G
