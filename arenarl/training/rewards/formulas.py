"""Array functions that several rewards share: ranks, scores or points in, one reward per trajectory out.

A trajectory without a verdict has the reward None, which TRL treats as 'no reward', and is left out of the group's
statistics. So is a void trajectory, which has None in `valid_G`. Departs from the papers: Tournament-GRPO's format
reward is validity, and invalid trajectories are not judged.
"""

from collections.abc import Sequence

import numpy as np


def pointwise_reward(scores_G: Sequence[float | None]) -> list[float | None]:
    """Return rewards (G,) in [0, 1] from judge scores in 0–10; None stays None. Raises ValueError for other scores.

    >>> pointwise_reward([7.5, None])
    [0.75, None]
    """
    scores = to_array(scores_G)
    if np.any((scores < 0) | (scores > 10 + 1e-9)):  # a weighted mean of tens can exceed 10 by a rounding error
        raise ValueError(f"scores must lie in 0–10: {list(scores_G)}")
    return to_list(np.minimum(scores / 10, 1.0))


def zero_invalid(scores_G: Sequence[float | None], valid_G: Sequence[bool | None]) -> list[float | None]:
    """Set the scores (G,) of invalid trajectories to 0; return all None if no valid trajectory has a verdict.

    >>> zero_invalid([3.0, None, None, 0.0], [True, False, True, None])
    [3.0, 0.0, None, None]
    >>> zero_invalid([None, None], [True, False])
    [None, None]
    """
    if any(valid_G) and all(score is None for score, valid in zip(scores_G, valid_G, strict=True) if valid):
        return [None] * len(scores_G)
    return [None if valid is None else score if valid else 0.0 for score, valid in zip(scores_G, valid_G, strict=True)]


def below_lowest(scores_G: Sequence[float | None], valid_G: Sequence[bool | None], gap: float) -> list[float | None]:
    """Set the scores (G,) of invalid trajectories `gap` below the lowest; 0 if all are invalid.

    All None if no valid trajectory has a score.

    >>> below_lowest([3.0, 1.0, None, None, None], [True, True, True, False, None], gap=0.5)
    [3.0, 1.0, None, 0.5, None]
    """
    rows = list(zip(scores_G, valid_G, strict=True))
    known = [score for score, valid in rows if valid and score is not None]
    if any(valid_G) and not known:
        return [None] * len(rows)
    lowest = min(known) - gap if known else 0.0
    return [None if valid is None else score if valid else lowest for score, valid in rows]


def min_max(points_G: Sequence[float | None], eps: float = 1e-6) -> list[float | None]:
    """Scale points (G,) to [0, 1] within the group; equal points all become 0, None stays None.

    Eq. 8, Tournament-GRPO. The paper gives no `eps`; with ours, the best is within 1e-6 of 1, as points are integers.

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
    """Add 1 for a valid trajectory to judged rewards (G,) in [0, 1], and multiply by `scale`; None stays None.

    Eqs. 9, 12 and 15, Tournament-GRPO; with `scale` 1/2, the mean of Eq. 14.

    >>> add_format_reward([0.5, 0.0, None], [True, False, True])
    [1.5, 0.0, None]
    """
    return to_list(scale * (to_array(judged_G) + to_array(valid_G)))


def to_array(values_G: Sequence[float | None]) -> np.ndarray:
    """Convert a list to an array, with NaN for None."""
    return np.array(values_G, dtype=float)


def to_list(values_G: np.ndarray) -> list[float | None]:
    """Convert an array to a list, with None for NaN."""
    return [None if np.isnan(value) else float(value) for value in values_G]
