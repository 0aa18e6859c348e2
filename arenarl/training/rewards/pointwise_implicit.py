"""One score for the whole rubric, in one call, plus 1 for a valid trajectory (Eqs. 11 and 12, Tournament-GRPO)."""

from arenarl.training.rewards.formulas import add_format_reward, pointwise_reward, zero_invalid
from arenarl.training.rewards.group import GroupOutcome, IncomingGroup, Referee, Reward, ask, scored_outcome


async def by_overall_score(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """A score of 6 is 0.6 + 1; an invalid trajectory has 0.

    >>> add_format_reward(pointwise_reward(zero_invalid([6.0, None], [True, False])), [True, False])
    [1.6, 0.0]
    """
    valid_G, replies_G = await ask(incoming, lambda one: [referee.judge.score_overall(incoming.query, one)])
    scores_G = [replies[0] if replies else None for replies in replies_G]
    judged_G = pointwise_reward(zero_invalid(scores_G, valid_G))
    return scored_outcome(add_format_reward(judged_G, valid_G), replies_G, scores_G)


REWARD = Reward(by_overall_score, adds_format=True)
