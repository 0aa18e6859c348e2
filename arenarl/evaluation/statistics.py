"""Statistics of evaluated cases: win rates and means with bootstrap intervals, stratified by subtask.

A case is one trajectory. Cases of the same test query are resampled together.

A figure is {"mean": …, "ci": [low, high]} with the 95 % percentile interval over resampled test queries. The spread
between training seeds is in `over_seeds.py`. A figure without cases is None. An interval is None if every
subtask has only one query.

Equal values give an interval of width 0. For a user's own data, which may be few, a figure with a `scale`
then gets Wilson's interval, any other figure none, and each figure has `n`, the number of its cases.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

COMMON = {  # figures that all domains have
    "win_rate", "win_rate_valid", "score", "valid_rate", "quality", "quality_valid", "tool_calls", "policy_tokens",
    "answer_characters", "restated",
}  # fmt: skip
KEPT_BY_TABLES = ("win_rate_valid", "invented_facts")  # not in the curve and a run's own table


@dataclass(frozen=True)
class Resampling:
    """How the cases of a figure are resampled for its interval. Lists have an entry for each case."""

    strata: Sequence[str]  # the subtask
    resamples: int
    seed: int
    queries: Sequence[str] | None = None  # the test query; None: all different
    is_own: bool = False  # a user's own data
    # True for a case of another policy on the same queries. A figure is then the paired difference: that of the
    # unmarked cases minus that of the marked cases, with the same weight for a query in both
    subtracted: Sequence[bool] | None = None

    @property
    def places(self) -> Sequence[Any]:
        """The test query of each case, or its number."""
        return range(len(self.strata)) if self.queries is None else self.queries


def win_rate(outcomes: np.ndarray, resampling: Resampling) -> dict[str, Any]:
    """Return the win rate in percent: won cases among won and lost cases, by judge and dimension; ties do not count.

    It is the mean over dimensions, then judges, then strata. `outcomes` (cases, judges, dimensions) are 1 for a win, 0
    for a tie, -1 for a loss, NaN for no verdict.
    """
    wins, losses = (outcomes == 1).astype(float), (outcomes == -1).astype(float)

    def statistic(members: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the win rate of `members` for each resample: (cases,), (resamples, cases) -> (resamples,)."""
        won = np.tensordot(weights, wins[members], axes=1)
        decided = won + np.tensordot(weights, losses[members], axes=1)
        with np.errstate(invalid="ignore"):
            share = np.where(decided > 0, won / decided, np.nan)
        by_judge = nanmean(share.reshape(-1, share.shape[-1])).reshape(share.shape[:-1])
        return 100 * nanmean(by_judge)

    return _figure(statistic, resampling, (wins + losses).any(axis=tuple(range(1, wins.ndim))), 100.0)


def mean(values: Sequence[float], resampling: Resampling, scale: float | None = None) -> dict[str, Any]:
    """Return the mean over the cases of a stratum, then over strata; NaN values are left out.
    With a `scale`, values are from 0 to `scale`."""
    numbers = np.asarray(values, dtype=float)
    known = np.isfinite(numbers)
    filled = np.where(known, numbers, 0.0)

    def statistic(members: np.ndarray, weights: np.ndarray) -> np.ndarray:
        count = weights @ known[members].astype(float)
        with np.errstate(invalid="ignore"):
            return np.where(count > 0, weights @ filled[members] / count, np.nan)

    return _figure(statistic, resampling, known, scale)


def weighted(statistic: Callable[[np.ndarray], np.ndarray], cases: int, resamples: int, seed: int) -> dict[str, Any]:
    """Return any statistic of cases of different queries, given their weights: (resamples, cases) -> (resamples,)."""
    return _stratified(lambda members, weights: statistic(weights), Resampling([""] * cases, resamples, seed))


def agreement(one: np.ndarray, other: np.ndarray) -> dict[str, Any]:
    """Return how far two judges, or a judge and labels, agree on outcomes of 1, 0 and -1 that both have (Fig. 4b).

    `agreement` is the share of equal outcomes. `kappa` is Cohen's kappa: 0 for chance, 1 for full agreement, None if
    chance alone would agree fully. `confusion` counts pairs: rows by `one`, columns by `other`, in the order win, tie,
    loss.

    >>> agreement(np.array([1, 1, -1, 0]), np.array([1, -1, -1, 0]))
    {'agreement': 0.75, 'kappa': 0.6364, 'confusion': [[1, 0, 1], [0, 1, 0], [0, 0, 1]], 'cases': 4}
    """
    known = np.isfinite(one) & np.isfinite(other)
    signs = np.array([1, 0, -1])
    confusion = (one[known] == signs[:, None]).astype(int) @ (other[known] == signs[:, None]).astype(int).T
    cases = int(confusion.sum())
    if not cases:
        return {"agreement": None, "kappa": None, "confusion": confusion.tolist(), "cases": 0}
    observed = np.trace(confusion) / cases
    chance = float(confusion.sum(axis=1) @ confusion.sum(axis=0)) / cases**2
    kappa = None if chance == 1 else rounded((observed - chance) / (1 - chance))
    return {"agreement": rounded(observed), "kappa": kappa, "confusion": confusion.tolist(), "cases": cases}


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Return the chance that at least one of k samples passes if `passed` of `samples` passed; NaN if samples < k.

    Unbiased: the share of all draws of k samples that contain a pass. Eq. 1, Chen et al. 2021 (arXiv 2107.03374).

    >>> [pass_at_k(4, 1, k) for k in (1, 2, 4)]
    [0.25, 0.5, 1.0]
    """
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k) if samples >= k else math.nan


def shown_figures(figures: dict[str, Any]) -> list[str]:
    """Return the names of the figures that the curve and the tables show, in order; the domain's own are included."""
    hidden = COMMON.union(KEPT_BY_TABLES)
    means = [name for name, value in figures.items() if isinstance(value, dict) and "mean" in value]
    own = [name for name in means if name not in hidden]
    return [name for name in ("win_rate", "score", "quality", "valid_rate", *own, "tool_calls") if name in figures]


def _figure(statistic, resampling: Resampling, counted: np.ndarray, scale: float | None) -> dict[str, Any]:
    """Return the figure. For a user's own data, add `n`, the number of `counted` cases. Also replace an interval of
    width 0: by Wilson's interval if the figure is a share of `scale`, else by none."""
    figure = _stratified(statistic, resampling)
    if not resampling.is_own:
        return figure
    (low, high), value, scale = figure["ci"], figure["mean"], None if resampling.subtracted else scale
    if low is not None and low == high:
        pairs = {(resampling.strata[case], resampling.places[case]) for case in np.flatnonzero(counted)}
        sizes = Counter(stratum for stratum, _ in pairs).values()
        # effective number: a mean over so many queries has the variance of this mean over strata
        size = len(sizes) ** 2 / sum(1 / size for size in sizes)
        low, high = wilson(value / scale, size) if scale and value <= scale else (math.nan, math.nan)
        low, high = (rounded(bound * (scale or 1.0)) for bound in (low, high))
    return figure | {"ci": [low, high], "n": int(counted.sum())}


def _stratified(statistic, resampling: Resampling) -> dict[str, Any]:
    """Return the mean over strata of `statistic` on the data (weights 1), and its interval over resamples of queries
    (multinomial weights)."""
    strata, queries = np.asarray(resampling.strata), resampling.places
    members = [np.flatnonzero(strata == name) for name in sorted(set(strata))]
    places = [
        {query: place for place, query in enumerate(dict.fromkeys(queries[case] for case in stratum))}
        for stratum in members
    ]
    draws = _draw_weights(tuple(map(len, places)), resampling.resamples, resampling.seed)

    def over_strata(members: Sequence[np.ndarray]) -> np.ndarray:
        estimates = [
            statistic(stratum, weights[:, [place[queries[case]] for case in stratum]])
            for stratum, place, weights in zip(members, places, draws, strict=True)
        ]
        return nanmean(np.stack(estimates, axis=1)) if estimates else np.array([np.nan])

    if resampling.subtracted is None:
        combined = over_strata(members)
    else:
        is_other = np.asarray(resampling.subtracted)
        own, other = ([stratum[is_other[stratum] == side] for stratum in members] for side in (False, True))
        combined = over_strata(own) - over_strata(other)
    if np.isnan(combined[0]):
        return {"mean": None, "ci": [None, None]}
    has_interval = resampling.resamples and max(map(len, places)) > 1
    low, high = np.nanpercentile(combined[1:], [2.5, 97.5]) if has_interval else (np.nan, np.nan)
    return {"mean": rounded(combined[0]), "ci": [rounded(low), rounded(high)]}


def wilson(share: float, size: float) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share among `size` cases.

    >>> [[round(bound, 3) for bound in wilson(share, 10)] for share in (0.0, 0.5, 1.0)]
    [[0.0, 0.278], [0.237, 0.763], [0.722, 1.0]]
    """
    square = 1.959963984540054**2
    center, spread = share + square / (2 * size), math.sqrt(square * (share * (1 - share) + square / (4 * size)) / size)
    return max(0.0, (center - spread) / (1 + square / size)), min(1.0, (center + spread) / (1 + square / size))


@lru_cache(maxsize=8)  # all figures of one set of cases share the weights
def _draw_weights(sizes: tuple[int, ...], resamples: int, seed: int) -> list[np.ndarray]:
    """Return how often each query is drawn, for each stratum: (1 + resamples, queries); the first row is all ones."""
    rng = np.random.default_rng(seed)
    return [
        np.vstack([np.ones(size), rng.multinomial(size, np.full(size, 1 / size), size=resamples)]) for size in sizes
    ]


def nanmean(values: np.ndarray) -> np.ndarray:
    """Return row means without NaN values; NaN for a row of NaN, without numpy's warning."""
    known = np.isfinite(values)
    count = known.sum(axis=1)
    return np.where(count > 0, np.where(known, values, 0).sum(axis=1) / np.maximum(count, 1), np.nan)


def rounded(value: float, digits: int = 4) -> float | None:
    """Round a figure for results; NaN, which JSON does not have, becomes None."""
    return None if math.isnan(value) else round(float(value), digits)
