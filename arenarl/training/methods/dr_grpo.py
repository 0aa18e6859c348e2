"""Dr.GRPO (arXiv 2503.20783): the reward less the group's mean, without a standard deviation.

`rl.advantage: center`, with `rl.loss_type: dr_grpo`: token losses are summed and divided by rollout.max_tokens.
"""

import numpy as np

from arenarl.training.methods.method import OnlineMethod, Rewards
from arenarl.training.rewards.formulas import to_array, to_list


def center(rewards_G: Rewards) -> list[float | None]:
    """Subtract the mean of the known rewards (G,); None stays None.

    >>> center([1.0, 0.0, None, 0.5])
    [0.5, -0.5, None, 0.0]
    """
    rewards = to_array(rewards_G)
    return to_list(rewards - np.nanmean(rewards)) if np.isfinite(rewards).any() else list(rewards_G)


METHOD = OnlineMethod(title="Dr.GRPO", keys={"rl.advantage": "center"})
