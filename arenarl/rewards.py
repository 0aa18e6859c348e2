"""Rewards and advantages of one rollout group, as functions of arrays.

Last stop before the trainer: ranks (from `tournament.py`) or pointwise scores in, one reward a trajectory out. A trajectory that
could not be ranked has the reward None, which TRL understands as 'no reward', and takes no part in the group's statistics.
Departs from the paper: Eq. 6 runs over the M ranked trajectories, not over all N, since verdicts can be missing.
"""

from collections.abc import Sequence

import numpy as np


def rank_to_reward(ranks_G: Sequence[float | None]) -> list[float | None]:
    """Reward (G,) in [0, 1] by quantile: 1 for rank 0, 0 for the last of the M ranked; None with M < 2. Eq. 6, ArenaRL.

    >>> rank_to_reward([0, 2, None, 1])
    [1.0, 0.0, None, 0.5]
    """
    ranks = _to_array(ranks_G)
    ranked = np.isfinite(ranks).sum()
    return _to_list(1 - ranks / (ranked - 1) if ranked >= 2 else np.full_like(ranks, np.nan))


def standardize(rewards_G: Sequence[float | None], ddof: int = 1, eps: float = 1e-4) -> np.ndarray:
    """Advantage (G,): rewards minus their mean, by their standard deviation plus `eps`; 0 where there is no reward.

    The defaults are TRL's; the paper names neither. Eq. 7, ArenaRL.

    >>> standardize([1.0, 0.0, None, 0.5], eps=0).tolist()
    [1.0, -1.0, 0.0, 0.0]
    """
    rewards = _to_array(rewards_G)
    known = rewards[np.isfinite(rewards)]
    if len(known) < 2:
        return np.zeros_like(rewards)
    return np.nan_to_num((rewards - known.mean()) / (known.std(ddof=ddof) + eps))


def pointwise_reward(
    scores_G: Sequence[float | None], valid_G: Sequence[bool] | None = None, scale: float = 10.0
) -> list[float | None]:
    """Reward (G,) in [0, 1] from judge scores in 0–`scale`: None stays None, an invalid trajectory has 0.

    >>> pointwise_reward([7.5, None, 9.0], valid_G=[True, True, False])
    [0.75, None, 0.0]
    """
    scores = _to_array(scores_G)
    if valid_G is not None:
        scores = np.where(np.asarray(valid_G, dtype=bool), scores, 0.0)
    if np.any((scores < 0) | (scores > scale)):
        raise ValueError(f"scores must lie in 0–{scale:g}: {list(scores_G)}")
    return _to_list(scores / scale)


def _to_array(values_G: Sequence[float | None]) -> np.ndarray:
    """None becomes NaN."""
    return np.array(values_G, dtype=float)


def _to_list(values_G: np.ndarray) -> list[float | None]:
    """NaN becomes None."""
    return [None if np.isnan(value) else float(value) for value in values_G]
