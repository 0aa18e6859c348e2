"""RLOO (arXiv 2402.14740): each reward against the mean of the others.

`rl.advantage: leave_one_out`, with `rl.loss_type: dr_grpo`. Departs from it: KL is a term of the loss, not of the
reward; the sum over tokens is divided by a constant.
"""

import numpy as np

from arenarl.training.methods.dr_grpo import center
from arenarl.training.methods.method import OnlineMethod, Rewards
from arenarl.training.rewards.formulas import to_array


def leave_one_out(rewards_G: Rewards) -> list[float | None]:
    """Each reward (G,) less the mean of the others; None stays None, and where there are no others it is 0.

    Of M rewards this is the distance from the mean of all, times M / (M - 1): here 1 - (0 + .5) / 2 for the first.

    >>> leave_one_out([1.0, 0.0, None, 0.5])
    [0.75, -0.75, None, 0.0]
    """
    known = np.isfinite(to_array(rewards_G)).sum()
    return [None if reward is None else float(reward * known / max(1, known - 1)) for reward in center(rewards_G)]


METHOD = OnlineMethod(title="RLOO", keys={"rl.advantage": "leave_one_out"}, for_trl=lambda rl: ("none", leave_one_out))
