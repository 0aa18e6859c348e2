"""TournO's mixture: each trajectory's score plus its win rate, whose weight falls as the group's mean score rises."""

import asyncio
from collections.abc import Sequence

import numpy as np

from arenarl.training.rewards.elo import elo_rewards
from arenarl.training.rewards.formulas import to_array, to_list
from arenarl.training.rewards.group import GroupOutcome, IncomingGroup, Referee, Reward, rewarded_outcome
from arenarl.training.rewards.pointwise import by_score
from arenarl.training.rewards.win_rate import win_rates


def mixture_reward(point_G: Sequence[float | None], pair_G: Sequence[float | None], alpha: float) -> list[float | None]:
    """Return rewards (G,): score + exp(-alpha * mean score of the group) * win rate; None if either is missing.

    >>> [round(reward, 4) for reward in mixture_reward([0.0, 1.0], [0.0, 1.0], alpha=2.0)]
    [0.0, 1.3679]
    """
    points = to_array(point_G)
    weight = np.exp(-alpha * np.nanmean(points)) if np.isfinite(points).any() else np.nan
    return to_list(points + weight * to_array(pair_G))


async def by_mixture(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    reward = referee.reward
    pairs = elo_rewards if reward.mixture_pairs == "elo" else win_rates
    points, (won_G, *_, ranking) = await asyncio.gather(by_score(referee, incoming), pairs(referee, incoming))
    calls, failed = points.judge_calls + ranking.judge_calls, points.failed_calls + ranking.failed_calls
    return rewarded_outcome(mixture_reward(points.rewards_G, won_G, reward.alpha), calls, failed, ranking=ranking)


REWARD = Reward(
    by_mixture,
    reads=("reward.alpha", "reward.mixture_pairs"),
    own_topology=lambda config: "elo" if config.reward.mixture_pairs == "elo" else None,
    compares=True,
)
