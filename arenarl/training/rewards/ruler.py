"""RULER (OpenPipe's ART): one listwise call scores the whole group.

Departs from RULER: the order is random, trajectories with equal messages are shown once, scores go up to 10.
"""

import random

from arenarl.system.seeds import stable_seed
from arenarl.training.rewards.formulas import pointwise_reward, zero_invalid
from arenarl.training.rewards.group import (
    GroupOutcome,
    IncomingGroup,
    Referee,
    Reward,
    first_rows,
    rewarded_outcome,
    valid_of,
)


async def by_list(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """Reward the scores divided by 10; an invalid trajectory gets 0.

    >>> pointwise_reward(zero_invalid([5.0, 10.0, None], [True, True, False]))
    [0.5, 1.0, 0.0]
    """
    query, trajectories = incoming.query, (await incoming.complete()).trajectories
    rows_G = first_rows(trajectories)
    rows = sorted(set(rows_G) - {None})
    order = random.Random(stable_seed(referee.seed, query.query_id)).sample(rows, len(rows))
    scores: list[float] | None = None
    if order:
        with incoming.calling():
            scores = await referee.judge.score_together(query, [trajectories[row] for row in order])
    by_row = dict(zip(order, scores or [None] * len(order), strict=True))
    scores_G = [None if row is None else by_row[row] for row in rows_G]
    rewards_G = pointwise_reward(zero_invalid(scores_G, valid_of(trajectories)))
    calls = int(bool(order))
    return rewarded_outcome(rewards_G, calls, calls if scores is None else 0, scores_G=scores_G)


REWARD = Reward(by_list)
