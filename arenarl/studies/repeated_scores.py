"""Pointwise scores of groups, each trajectory asked about several times over:
how far trajectories differ, and how far a trajectory's scores.

What judges are measured on (`judge_reliability`, `signal_and_noise`), and what tournaments are measured against:
as many calls.
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
    """Of each group (trajectories, repeats) totals of pointwise calls, all made at once;
    NaN where there was no verdict."""

    async def score(query: Query, trajectory: Trajectory, repeat: int) -> float:
        verdict = await judge.score(query, trajectory, answer_only, repeat)
        return math.nan if verdict is None else verdict.totals[0]

    async def scores(group: RolloutGroup) -> np.ndarray:
        asked = [
            score(group.query, trajectory, repeat) for trajectory in group.trajectories for repeat in range(repeats)
        ]
        return np.array(await asyncio.gather(*asked)).reshape(-1, repeats)

    return await asyncio.gather(*map(scores, groups))


def mean_of_calls(scores: np.ndarray, calls: int) -> list[float]:
    """Mean scores (size,) of `calls` of the calls in `scores` (size, calls of each), spread evenly over the group.

    >>> mean_of_calls(np.array([[1.0, 3.0, 9.0], [2.0, 6.0, 9.0]]), 3)
    [2.0, 2.0]
    """
    each, more = divmod(calls, len(scores))
    return [float(row[: each + (g < more)].mean()) for g, row in enumerate(scores)]


def sigmas(groups: Iterable[np.ndarray]) -> tuple[float, float]:
    """(sigma_group, sigma_noise) of pointwise scores, (trajectories, repeats) of each group;
    both are roots of mean variances.

    sigma_group is the standard deviation of a single round's scores within a group, so it holds the noise as well;
    sigma_noise that of a trajectory's scores over repeats, NaN of a single one. Fig. 1a, ArenaRL.

    >>> sigmas([np.array([[1.0, 3.0], [5.0, 7.0]])])  # rounds (1, 5) and (3, 7); trajectories (1, 3) and (5, 7)
    (2.8284271247461903, 1.4142135623730951)
    """
    groups = list(groups)
    sigma_group = _root_mean([np.nanvar(points, axis=0, ddof=1) for points in groups])
    sigma_noise = (
        _root_mean([np.nanvar(points, axis=1, ddof=1) for points in groups]) if groups[0].shape[1] > 1 else math.nan
    )
    return sigma_group, sigma_noise


def _root_mean(variances: Sequence[np.ndarray]) -> float:
    return float(np.sqrt(np.nanmean(np.concatenate(variances))))
