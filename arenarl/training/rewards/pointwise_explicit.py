"""A call for each dimension of the rubric, weighted by importance; the mean of that and validity
(Eqs. 13 and 14, Tournament-GRPO)."""

from arenarl.domains.rubrics import weighted_mean
from arenarl.training.rewards.formulas import add_format_reward, pointwise_reward, zero_invalid
from arenarl.training.rewards.group import GroupOutcome, IncomingGroup, Referee, Reward, ask, scored_outcome


async def by_dimension(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """A trajectory that misses a dimension has no score. Dimensions of 9, 6 and 3 with weights 3, 2 and 1 are 7:

    >>> add_format_reward(pointwise_reward([weighted_mean({"a": 9, "b": 6, "c": 3}, {"a": 3, "b": 2, "c": 1})]),
    ...                   [True], scale=0.5)
    [0.85]
    """
    query, weights = incoming.query, referee.judge.weights(incoming.query)
    valid_G, replies_G = await ask(
        incoming, lambda one: [referee.judge.score_dimension(query, one, name) for name in weights]
    )
    scores_G = [
        weighted_mean(dict(zip(weights, replies, strict=True)), weights) if replies else None for replies in replies_G
    ]
    judged_G = pointwise_reward(zero_invalid(scores_G, valid_G))
    return scored_outcome(add_format_reward(judged_G, valid_G, scale=0.5), replies_G, scores_G)


REWARD = Reward(by_dimension, adds_format=True)
