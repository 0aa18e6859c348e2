"""Qualities from single judge calls: what a match says beyond who won it.

Stands beside the topologies: `tournament.py` hands over a group's calls, of whatever schedule, and ranks by what comes back. A call
shows trajectories i and j and scores both:

    score_i = mean + position + q_i + shared + noise_i        q ~ N(0, quality), one `shared` a call, one `noise` a score
    score_j = mean            + q_j + shared + noise_j

The difference of the two scores is free of `shared`, and independent of their sum: a call is two observations, d and t, each with an
intercept of its own, so generalised least squares is ridge regression with two weights. Not in the paper; our choice.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from arenarl.topologies import DECIMALS

Calls = Sequence[tuple[int, int, float, float]]  # (first, second, score_first, score_second)

PRIOR_DF = 4.0  # what the prior weighs against the degrees of freedom seen
MIN_SHARE = 0.01  # of the scores' variance is quality at least: the ridge stays finite where the scores hold only noise


@dataclass
class JudgeVariances:
    """Running estimate of the judge's variances over the groups of a run; `memory` is how many calls back it reaches.

    Sums of squares with their degrees of freedom, each a `memory`-th forgotten a call, so the state is nine numbers. The prior,
    a third of the scores' variance each, fades as degrees of freedom come in.
    """

    memory: float = 2000.0
    score_ss: float = 0.0
    score_df: float = 0.0
    difference_ss: float = 0.0
    difference_df: float = 0.0
    sum_ss: float = 0.0
    sum_df: float = 0.0
    quality_ss: float = 0.0
    quality_df: float = 0.0
    quality_error: float = 0.0  # the part of `quality_ss` that noise explains, in units of the variance of d

    def observe(self, size: int, calls: Calls) -> None:
        """Add the calls of one group of `size` entrants.

        Least squares of d on e_i - e_j and of t on e_i + e_j: the residual sums of squares have expectation df · var(d | q) and
        df · var(t | q). The fitted qualities q^ = G⁺Z'd have E|q^|² = rank · quality + var(d | q) · tr G⁺, with G = Z'Z, centred.
        """
        if not len(calls):
            return
        first, second, scores = _read(calls)
        shown_first, shown_second = np.eye(size)[first], np.eye(size)[second]
        quality_ss, quality_df, error, difference_ss, difference_df = _least_squares(shown_first - shown_second, scores @ [1, -1])
        _, _, _, sum_ss, sum_df = _least_squares(shown_first + shown_second, scores @ [1, 1])
        new = {
            "score_ss": np.square(scores - scores.mean()).sum(),
            "score_df": scores.size - 1,
            "difference_ss": difference_ss,
            "difference_df": difference_df,
            "sum_ss": sum_ss,
            "sum_df": sum_df,
            "quality_ss": quality_ss,
            "quality_df": quality_df,
            "quality_error": error,
        }
        keep = np.exp(-len(calls) / self.memory)
        for name, value in new.items():
            setattr(self, name, float(keep * getattr(self, name) + value))

    @property
    def prior(self) -> float:
        """The variance of a score, in three equal parts."""
        return self.score_ss / self.score_df / 3 if self.score_df else 0.0

    @property
    def noise(self) -> float:
        """Variance of a score's own noise: var(d | q) = 2 noise."""
        return (PRIOR_DF * self.prior + self.difference_ss / 2) / (PRIOR_DF + self.difference_df)

    @property
    def shared(self) -> float:
        """Variance of what the two scores of a call share: var(t | q) = 4 shared + 2 noise."""
        total = (PRIOR_DF * 6 * self.prior + self.sum_ss) / (PRIOR_DF + self.sum_df)
        return max(0.0, total - 2 * self.noise) / 4

    @property
    def quality(self) -> float:
        """Variance of the qualities in a group: quality_ss less what noise explains of it."""
        explained = self.quality_ss - 2 * self.noise * self.quality_error
        return max(3 * MIN_SHARE * self.prior, (PRIOR_DF * self.prior + explained) / (PRIOR_DF + self.quality_df))

    def to_dict(self) -> dict[str, float]:
        return asdict(self)

    @classmethod
    def from_dict(cls, state: dict[str, float]) -> "JudgeVariances":
        return cls(**state)


def quality_from_calls(size: int, calls: Calls, variances: JudgeVariances | None = None) -> list[float | None]:
    """Best linear unbiased predictions of `size` qualities, as the score to expect averaged over both positions.

    None for an entrant without a call. The variances are those of `variances` (left as it is) and of these calls together; without it
    those of the calls, drawn to the prior. Equal evidence gives equal values: they are rounded to 9 decimals.
    """
    if not len(calls):
        return [None] * size
    variances = replace(variances or JudgeVariances())
    variances.observe(size, calls)
    first, second, scores = _read(calls)
    centre = scores.mean()
    quality = np.zeros(size)
    if variances.score_ss > 0:
        quality = _solve(size, first, second, scores - centre, variances)
    judged = {*first.tolist(), *second.tolist()}
    return [round(float(centre + quality[i]), DECIMALS) if i in judged else None for i in range(size)]


def _solve(size: int, first: np.ndarray, second: np.ndarray, scores: np.ndarray, variances: JudgeVariances) -> np.ndarray:
    """Henderson's mixed-model equations times var(d | q): (Zd'Zd + w Zt'Zt + r I) q = Zd'd + w Zt't, w = var(d|q) / var(t|q).

    The position is an unknown of d, with the prior of a quality so that a single order still tells something; the mean is a free
    one of t. Returns half the mean of t plus q, (size,).
    """
    weight = variances.noise / (variances.noise + 2 * variances.shared)
    calls = np.arange(len(first))
    d, t = np.zeros((2, len(first), size + 2))
    d[calls, first], d[calls, second], d[:, size] = 1, -1, 1
    t[calls, first], t[calls, second], t[:, size + 1] = 1, 1, 1
    ridge = np.full(size + 2, 2 * variances.noise / variances.quality)
    ridge[-1] = 0
    left = d.T @ d + weight * t.T @ t + np.diag(ridge)
    solution = np.linalg.solve(left, d.T @ (scores @ [1, -1]) + weight * t.T @ (scores @ [1, 1]))
    return solution[:size] + solution[-1] / 2


def _least_squares(design: np.ndarray, y: np.ndarray) -> tuple[float, float, float, float, float]:
    """Regression with an intercept: |coefficients|², their rank, tr G⁺, residual sum of squares and its degrees of freedom."""
    design, y = design - design.mean(0), y - y.mean()
    inverse = np.linalg.pinv(design.T @ design, rcond=1e-9, hermitian=True)
    coefficients = inverse @ (design.T @ y)
    residual = y - design @ coefficients
    rank = round(np.sum(inverse * (design.T @ design)))
    return coefficients @ coefficients, rank, np.trace(inverse), residual @ residual, len(y) - 1 - rank


def _read(calls: Calls) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.asarray(calls, dtype=float)
    return table[:, 0].astype(int), table[:, 1].astype(int), table[:, 2:]
