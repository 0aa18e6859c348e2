"""Steps that several rewards share, as functions of arrays: ranks, scores or points in, one reward a trajectory out.

A trajectory that could not be judged has the reward None, which TRL understands as 'no reward', and takes no part in
the group's statistics; nor does a void one, of which `valid_G` says None. Departs from the papers: Tournament-GRPO's
format reward is validity, and what is invalid is not judged.
"""

from collections.abc import Sequence

import numpy as np


def pointwise_reward(
    scores_G: Sequence[float | None], valid_G: Sequence[bool | None] | None = None
) -> list[float | None]:
    """Reward (G,) in [0, 1] from judge scores in 0–10: None stays None, an invalid trajectory has 0.

    >>> pointwise_reward([7.5, None, 9.0], valid_G=[True, True, False])
    [0.75, None, 0.0]
    """
    scores = to_array(scores_G)
    if valid_G is not None:
        scores = np.where(to_array(valid_G) == 0, 0.0, scores)
    # a weighted mean of full marks can be a rounding error above them
    if np.any((scores < 0) | (scores > 10 + 1e-9)):
        raise ValueError(f"scores must lie in 0–10: {list(scores_G)}")
    return to_list(np.minimum(scores / 10, 1.0))


def zero_invalid(scores_G: Sequence[float | None], valid_G: Sequence[bool | None]) -> list[float | None]:
    """Scores (G,) in which an invalid trajectory has 0: it is not judged, so it wins nothing.
    Without any verdict all are None.

    >>> zero_invalid([3.0, None, None, 0.0], [True, False, True, None])
    [3.0, 0.0, None, None]
    >>> zero_invalid([None, None], [True, False])
    [None, None]
    """
    if any(valid_G) and all(score is None for score, valid in zip(scores_G, valid_G, strict=True) if valid):
        return [None] * len(scores_G)
    return [None if valid is None else score if valid else 0.0 for score, valid in zip(scores_G, valid_G, strict=True)]


def min_max(points_G: Sequence[float | None], eps: float = 1e-6) -> list[float | None]:
    """Points (G,) normalised to [0, 1] in the group; all 0 where they are equal, None stays None.
    Eq. 8, Tournament-GRPO.

    The paper gives no `eps`; ours keeps the best within 1e-6 of 1, since points come in whole wins.

    >>> min_max([3.0, 0.0, None, 1.5], eps=0)
    [1.0, 0.0, None, 0.5]
    """
    points = to_array(points_G)
    known = points[np.isfinite(points)]
    if not len(known) or known.min() == known.max():
        return to_list(0 * points)
    return to_list((points - known.min()) / (known.max() - known.min() + eps))


def add_format_reward(
    judged_G: Sequence[float | None], valid_G: Sequence[bool | None], scale: float = 1.0
) -> list[float | None]:
    """Reward (G,): `scale` times the sum of what the judge gave, in [0, 1], and of 1 for a valid trajectory.
    None stays None.

    Eqs. 9, 12 and 15, Tournament-GRPO; Eq. 14, the mean of the two, with `scale` 1/2.

    >>> add_format_reward([0.5, 0.0, None], [True, False, True])
    [1.5, 0.0, None]
    """
    return to_list(scale * (to_array(judged_G) + to_array(valid_G)))


def to_array(values_G: Sequence[float | None]) -> np.ndarray:
    """None becomes NaN."""
    return np.array(values_G, dtype=float)


def to_list(values_G: np.ndarray) -> list[float | None]:
    """NaN becomes None."""
    return [None if np.isnan(value) else float(value) for value in values_G]
