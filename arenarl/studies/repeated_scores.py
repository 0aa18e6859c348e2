"""Repeated pointwise scores of groups: how much trajectories differ, and how much a trajectory's own scores vary.

`judge_reliability` and `signal_and_noise` measure judges by them; tournaments are compared with as many such calls.
"""

import asyncio
import math
from collections.abc import Iterable, Sequence

import numpy as np

from arenarl.judges.judge import Judge
from arenarl.trajectory import Query, RolloutGroup, Trajectory


async def pointwise_scores(
    judge: Judge, groups: Sequence[RolloutGroup], repeats: int, answer_only: bool = False
) -> list[np.ndarray]:
    """Return the totals (trajectories, repeats) of each group, NaN for a missing verdict. All calls run at once."""

    async def score(query: Query, trajectory: Trajectory, repeat: int) -> float:
        verdict = await judge.score(query, trajectory, answer_only, repeat)
        return math.nan if verdict is None else verdict.totals[0]

    async def scores(group: RolloutGroup) -> np.ndarray:
        calls = [(group.query, trajectory, repeat) for trajectory in group.trajectories for repeat in range(repeats)]
        return np.array(await asyncio.gather(*(score(*call) for call in calls))).reshape(-1, repeats)

    return await asyncio.gather(*map(scores, groups))


def mean_of_calls(scores: np.ndarray, calls: int) -> list[float]:
    """Return mean scores (size,) over `calls` of the calls in `scores` (size, calls), spread evenly over the group.

    >>> mean_of_calls(np.array([[1.0, 3.0, 9.0], [2.0, 6.0, 9.0]]), 3)
    [2.0, 2.0]
    """
    each, more = divmod(calls, len(scores))
    return [float(row[: each + (g < more)].mean()) for g, row in enumerate(scores)]


def sigmas(groups: Iterable[np.ndarray]) -> tuple[float, float]:
    """Return (sigma_group, sigma_noise) of the groups' pointwise scores, (trajectories, repeats) each.

    sigma_group is the standard deviation of one round's scores within a group, so it includes the noise. sigma_noise is
    the standard deviation of a trajectory's scores over repeats, NaN for a single repeat. Both are square roots of mean
    variances. Fig. 1a, ArenaRL.

    >>> sigmas([np.array([[1.0, 3.0], [5.0, 7.0]])])  # rounds (1, 5) and (3, 7); trajectories (1, 3) and (5, 7)
    (2.8284271247461903, 1.4142135623730951)
    """
    groups = list(groups)

    def sigma(axis: int) -> float:
        variances = [np.nanvar(points, axis=axis, ddof=1) for points in groups]
        return float(np.sqrt(np.nanmean(np.concatenate(variances))))

    return sigma(0), sigma(1) if groups[0].shape[1] > 1 else math.nan
