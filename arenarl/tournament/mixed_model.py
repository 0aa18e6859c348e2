"""Estimate the quality of trajectories from single judge calls with a mixed-effects model (`ranking: scores`).

`play.py` passes the calls of a group, from any topology, and ranks by the estimates. A call shows trajectories i and j,
in this order, and scores both. Quality q, position, shared and noise are normal:

    score_i = mean + position/2 + q_i + shared + noise_i
    score_j = mean - position/2 + q_j + shared + noise_j

Given q, the difference d and the sum t of the two scores are independent. Only t contains `shared`, only d contains the
position. So generalised least squares becomes a ridge regression with one weight. Not in the paper; our choice. An
effect of the pair on both of its calls is not modelled. Where matches close cycles, it appears in the residuals and
counts as noise, which is nearly as accurate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from arenarl.tournament.schedules import DECIMALS

Calls = Sequence[tuple[int, int, float, float]]  # (first, second, score_first, score_second)

PRIOR_DF = 4.0  # the prior's weight, in degrees of freedom
MIN_QUALITY_SHARE = 0.01  # of the variance of a score; keeps the ridge finite if the scores hold only noise


@dataclass
class JudgeVariances:
    """A running estimate of a judge's variances over the groups of a run. All fields are numbers, so it fits in JSON.

    Each call reduces the weight of earlier calls by exp(-1 / memory). The prior assigns one third of the scores'
    variance to each of quality, shared and noise. Its influence falls as degrees of freedom (`_df`) grow.
    """

    memory: float = 2000.0  # calls
    score_ss: float = 0.0
    score_df: float = 0.0
    difference_ss: float = 0.0
    difference_df: float = 0.0
    sum_ss: float = 0.0
    sum_df: float = 0.0
    quality_ss: float = 0.0
    quality_df: float = 0.0
    quality_error: float = 0.0  # var(d | q) times this is the noise in quality_ss

    def observe(self, size: int, calls: Calls) -> None:
        """Add the calls of one group of `size` entrants.

        The residuals of regressing d and t on q have E[ss] = df · var(d | q) and df · var(t | q). Let Z be the centred
        design and G = Z'Z. The estimate q^ = G⁺Z'd has E|q^|² = rank(G) · quality + tr(G⁺) · var(d | q).
        """
        if not calls:
            return
        _, d, t = _observations(size, calls)
        scores = np.array(calls)[:, 2:]
        from_d, from_t = _least_squares(*d), _least_squares(*t)
        group_sums = {
            "score_ss": np.square(scores - scores.mean()).sum(), "score_df": scores.size - 1,
            "difference_ss": from_d.residual_ss, "difference_df": from_d.residual_df,
            "sum_ss": from_t.residual_ss, "sum_df": from_t.residual_df,
            "quality_ss": from_d.solution_ss, "quality_df": from_d.rank, "quality_error": from_d.solution_error,
        }  # fmt: skip
        keep = np.exp(-len(calls) / self.memory)
        for name, value in group_sums.items():
            setattr(self, name, float(keep * getattr(self, name) + value))

    @property
    def noise(self) -> float:
        """Variance of the noise in one score: var(d | q) = 2 noise."""
        return (PRIOR_DF * self._prior + self.difference_ss / 2) / (PRIOR_DF + self.difference_df)

    @property
    def shared(self) -> float:
        """Variance of the effect that a call adds to both scores: var(t | q) = 4 shared + 2 noise."""
        var_t = (PRIOR_DF * 6 * self._prior + self.sum_ss) / (PRIOR_DF + self.sum_df)
        return max(0.0, var_t - 2 * self.noise) / 4

    @property
    def quality(self) -> float:
        """Variance of the qualities in a group: the squares of q^ minus their noise."""
        noiseless_ss = self.quality_ss - 2 * self.noise * self.quality_error
        estimate = (PRIOR_DF * self._prior + noiseless_ss) / (PRIOR_DF + self.quality_df)
        return max(MIN_QUALITY_SHARE * 3 * self._prior, estimate)

    @property
    def _prior(self) -> float:
        return self.score_ss / self.score_df / 3 if self.score_df else 0.0


def quality_from_calls(size: int, calls: Calls, variances: JudgeVariances | None = None) -> list[float | None]:
    """Return the best linear unbiased predictions of `size` qualities, as expected scores of one call.

    An entrant without a call gets None. The variances are estimated from these calls and `variances`, which is not
    changed. Values are rounded to 9 decimals, so that equal evidence gives equal values.

    >>> quality_from_calls(3, [(0, 1, 7, 4), (1, 0, 5, 7)])
    [6.692622951, 4.807377049, None]
    """
    if not calls:
        return [None] * size
    variances = replace(variances or JudgeVariances())
    variances.observe(size, calls)
    judged, (design_d, d), (design_t, t) = _observations(size, calls)
    mean_score, mean_design = t.mean() / 2, design_t.mean(0) / 2
    quality = np.zeros(size)
    if variances.score_ss:
        quality = _solve(design_d, d, design_t - 2 * mean_design, t - 2 * mean_score, variances)
    expected = mean_score - mean_design @ quality + quality
    return [round(float(expected[i]), DECIMALS) if judged[i] else None for i in range(size)]


def _solve(
    design_d: np.ndarray, d: np.ndarray, design_t: np.ndarray, t: np.ndarray, variances: JudgeVariances
) -> np.ndarray:
    """Solve (D'D + w T'T + r I) q = D'd + w T't for the qualities q (size,).

    Here w = var(d | q) / var(t | q) and r = var(d | q) / quality. These are Henderson's mixed-model equations times
    var(d | q). Centring t removes the mean. The position is one more unknown in d, with the variance of a quality: a
    free position would explain all of a single order.
    """
    weight = variances.noise / (variances.noise + 2 * variances.shared)
    ridge = 2 * variances.noise / variances.quality
    design_d = np.column_stack([design_d, np.ones(len(d))])
    design_t = np.column_stack([design_t, np.zeros(len(t))])
    left = design_d.T @ design_d + weight * design_t.T @ design_t + ridge * np.eye(design_d.shape[1])
    return np.linalg.solve(left, design_d.T @ d + weight * design_t.T @ t)[:-1]


def _observations(size: int, calls: Calls) -> tuple[np.ndarray, tuple, tuple]:
    """Return the mask of judged entrants (size,), then (design, d) and (design, t).
    The designs are e_i - e_j and e_i + e_j, with shape (calls, size); d and t have shape (calls,)."""
    table = np.array(calls, dtype=float)
    first, second = np.eye(size)[table[:, :2].astype(int).T]
    score_first, score_second = table[:, 2:].T
    judged, both = (first + second).any(0), (first + second, score_first + score_second)
    return judged, (first - second, score_first - score_second), both


class Fit(NamedTuple):
    """A regression: |q^|², the rank of the design, tr(G⁺), the residual sum of squares and its degrees of freedom."""

    solution_ss: float
    rank: int
    solution_error: float
    residual_ss: float
    residual_df: int


def _least_squares(design: np.ndarray, y: np.ndarray) -> Fit:
    """Regress y (calls,) on the design (calls, size) and an intercept; take the minimum-norm solution."""
    design, y = design - design.mean(0), y - y.mean()
    gram = design.T @ design
    inverse = np.linalg.pinv(gram, rcond=1e-9, hermitian=True)
    rank = round(np.sum(inverse * gram))
    solution = inverse @ design.T @ y
    residual = y - design @ solution
    return Fit(solution @ solution, rank, np.trace(inverse), residual @ residual, len(y) - 1 - rank)
