"""GRPO (Eq. 7, ArenaRL): the reward minus the group's mean, divided by the group's standard deviation.

`rl.advantage: group_std`. TRL computes it in float32 with its own ddof and epsilon. With other values, TRL receives the
advantages computed here, whose mean is 0.
"""

from functools import partial

import numpy as np

from arenarl.config.schema import RLConfig
from arenarl.tournament.schedules import DECIMALS
from arenarl.training.methods.method import OnlineMethod, Rewards
from arenarl.training.rewards.formulas import to_array


def standardize(rewards_G: Rewards, ddof: int = 1, eps: float = 1e-4) -> np.ndarray:
    """Return advantages (G,): (reward - mean) / (standard deviation + `eps`); 0 without a reward.

    Rewards that differ by float noise alone count as equal and have 0: a small `eps` would make them ±1.

    The defaults are TRL's; the paper names neither.

    >>> standardize([1.0, 0.0, None, 0.5], eps=0).tolist(), standardize([0.1 + 0.2, 0.3], eps=0).tolist()
    ([1.0, -1.0, 0.0, 0.0], [0.0, 0.0])
    """
    rewards = to_array(rewards_G)
    known = rewards[np.isfinite(rewards)]
    if not len(known) or round(np.ptp(known), DECIMALS) == 0:
        return np.zeros_like(rewards)
    return np.nan_to_num((rewards - known.mean()) / (known.std(ddof=ddof) + eps))


def _for_trl(rl: RLConfig) -> tuple:
    if (rl.advantage_ddof, rl.advantage_epsilon) == (1, 1e-4):
        return "group", list
    return "none", partial(standardize, ddof=rl.advantage_ddof, eps=rl.advantage_epsilon)


METHOD = OnlineMethod(
    title="GRPO",
    keys={"rl.advantage": "group_std"},
    excludes={"rl.loss_type": ("dr_grpo",)},
    reads=("rl.advantage_ddof", "rl.advantage_epsilon"),
    for_trl=_for_trl,
)
