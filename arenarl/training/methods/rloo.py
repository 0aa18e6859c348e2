"""RLOO (arXiv 2402.14740): each reward minus the mean of the group's other rewards.

`rl.advantage: leave_one_out`, with `rl.loss_type: dr_grpo`. Departs from RLOO: KL is a term of the loss, not of the
reward; the sum over tokens is divided by a constant.
"""

import numpy as np

from arenarl.training.methods.dr_grpo import center
from arenarl.training.methods.method import OnlineMethod, Rewards
from arenarl.training.rewards.formulas import to_array


def leave_one_out(rewards_G: Rewards) -> list[float | None]:
    """Subtract from each reward (G,) the mean of the other rewards; None stays None, a single reward becomes 0.

    With M rewards, this equals (reward - mean of all) * M / (M - 1); the first one here is 1 - (0 + .5) / 2.

    >>> leave_one_out([1.0, 0.0, None, 0.5])
    [0.75, -0.75, None, 0.0]
    """
    known = np.isfinite(to_array(rewards_G)).sum()
    return [None if reward is None else float(reward * known / max(1, known - 1)) for reward in center(rewards_G)]


METHOD = OnlineMethod(title="RLOO", keys={"rl.advantage": "leave_one_out"}, for_trl=lambda rl: ("none", leave_one_out))
