"""Statistics of evaluated cases: win rates and means with bootstrap intervals, stratified by subtask.

A case is one trajectory; several may be of one test query (`queries`), and are then resampled together.

A run's figure is {"mean": …, "ci": [low, high]} with the 95 % percentile interval over resampled test queries; it says
nothing of the spread between training seeds, which `tables/over_seeds.py` is for. A figure without cases is None, and
so is the interval where every subtask has a single query, which resampling always draws.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

COMMON = {  # figures of all domains
    "win_rate", "win_rate_valid", "score", "valid_rate", "quality", "quality_valid", "tool_calls", "policy_tokens",
    "answer_characters"
}  # fmt: skip
# on a table's page; the curve and a run's own table leave them out
KEPT_BY_TABLES = ("win_rate_valid", "invented_facts")


def win_rate(
    outcomes: np.ndarray, strata: Sequence[str], resamples: int, seed: int, queries: Sequence[str] | None = None
) -> dict[str, Any]:
    """Win rate in percent over cases.

    The share of non-tied cases that are won, for each judge and dimension; mean over dimensions, judges, then strata.

    Args:
        outcomes: (cases, judges, dimensions) of 1 for a win, 0 for a tie, -1 for a loss, NaN for no verdict.
        strata: (cases,) the subtask of each case.
        queries: (cases,) the test query of each; None: each its own.
    """
    wins, losses = (outcomes == 1).astype(float), (outcomes == -1).astype(float)

    def statistic(members: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Of these cases, weighed so: (cases,), (resamples, cases) -> (resamples,)"""
        won = np.tensordot(weights, wins[members], axes=1)
        decided = won + np.tensordot(weights, losses[members], axes=1)
        with np.errstate(invalid="ignore"):
            share = np.where(decided > 0, won / decided, np.nan)
        by_judge = nanmean(share.reshape(-1, share.shape[-1])).reshape(share.shape[:-1])
        return 100 * nanmean(by_judge)

    return _stratified(statistic, strata, queries, resamples, seed)


def mean(
    values: Sequence[float], strata: Sequence[str], resamples: int, seed: int, queries: Sequence[str] | None = None
) -> dict[str, Any]:
    """Mean over cases within a stratum, then over strata; NaN values are left out."""
    numbers = np.asarray(values, dtype=float)
    known = np.isfinite(numbers)
    filled = np.where(known, numbers, 0.0)

    def statistic(members: np.ndarray, weights: np.ndarray) -> np.ndarray:
        count = weights @ known[members].astype(float)
        with np.errstate(invalid="ignore"):
            return np.where(count > 0, weights @ filled[members] / count, np.nan)

    return _stratified(statistic, strata, queries, resamples, seed)


def weighted(statistic: Callable[[np.ndarray], np.ndarray], cases: int, resamples: int, seed: int) -> dict[str, Any]:
    """Any statistic of so many cases, each a query of its own, by how often each counts:
    (resamples, cases) -> (resamples,)."""
    return _stratified(lambda members, weights: statistic(weights), [""] * cases, None, resamples, seed)


def agreement(one: np.ndarray, other: np.ndarray) -> dict[str, Any]:
    """How far two judges, or a judge and labels, agree on outcomes of 1, 0 and -1, where both have one (Fig. 4b).

    `agreement` is the share of equal outcomes, `kappa` Cohen's: 0 is what chance gives, 1 full agreement; None where
    chance alone would agree fully. `confusion` counts, rows by `one`, columns by `other`, each from win over tie to
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
    """Chance that at least one of k samples passes, given that `passed` of `samples` did; NaN of fewer than k samples.

    Without bias: the share of all ways to draw k of the samples that hold one that passed. Eq. 1, Chen et al.
    2021 (arXiv 2107.03374).

    >>> [pass_at_k(4, 1, k) for k in (1, 2, 4)]
    [0.25, 0.5, 1.0]
    """
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k) if samples >= k else math.nan


def shown_figures(figures: dict[str, Any]) -> list[str]:
    """The names of those that the curve and the tables show, in their order;
    the domain's own stand before the tool calls."""
    hidden = COMMON.union(KEPT_BY_TABLES)
    means = [name for name, value in figures.items() if isinstance(value, dict) and "mean" in value]
    own = [name for name in means if name not in hidden]
    return [name for name in ("win_rate", "score", "quality", "valid_rate", *own, "tool_calls") if name in figures]


def _stratified(
    statistic, strata: Sequence[str], queries: Sequence[str] | None, resamples: int, seed: int
) -> dict[str, Any]:
    """Evaluate `statistic` per stratum on the data (weights 1)
    and on resamples of queries (multinomial weights), mean over strata."""
    strata = np.asarray(strata)
    queries = range(len(strata)) if queries is None else queries
    members = [np.flatnonzero(strata == stratum) for stratum in sorted(set(strata))]
    places = [
        {query: place for place, query in enumerate(dict.fromkeys(queries[one] for one in of_stratum))}
        for of_stratum in members
    ]
    drawn = _drawn(tuple(map(len, places)), resamples, seed)
    estimates = [
        statistic(of_stratum, weights[:, [place[queries[one]] for one in of_stratum]])
        for of_stratum, place, weights in zip(members, places, drawn, strict=True)
    ]
    combined = nanmean(np.stack(estimates, axis=1)) if estimates else np.array([np.nan])
    if np.isnan(combined[0]):
        return {"mean": None, "ci": [None, None]}
    has_interval = resamples and max(map(len, places)) > 1
    low, high = np.nanpercentile(combined[1:], [2.5, 97.5]) if has_interval else (np.nan, np.nan)
    return {"mean": rounded(combined[0]), "ci": [rounded(low), rounded(high)]}


@lru_cache(maxsize=8)  # all figures of one set of cases share them
def _drawn(sizes: tuple[int, ...], resamples: int, seed: int) -> list[np.ndarray]:
    """For strata of so many queries each: how often a query is drawn, (1 + resamples, queries).
    In the first row, once."""
    rng = np.random.default_rng(seed)
    return [
        np.vstack([np.ones(size), rng.multinomial(size, np.full(size, 1 / size), size=resamples)]) for size in sizes
    ]


def nanmean(values: np.ndarray) -> np.ndarray:
    """Row means without NaN; NaN for a row of nothing else, without numpy's warning."""
    known = np.isfinite(values)
    count = known.sum(axis=1)
    return np.where(count > 0, np.where(known, values, 0).sum(axis=1) / np.maximum(count, 1), np.nan)


def rounded(value: float, digits: int = 4) -> float | None:
    """A figure as results keep it: NaN, which JSON cannot hold, is None."""
    return None if math.isnan(value) else round(float(value), digits)
