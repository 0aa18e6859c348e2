"""Statistics over training seeds: a row's mean with its intervals, and whether two rows differ significantly.

A row is a run for every seed, and a seed's runs share their cold start, so that rows are compared seed by seed.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import sem, ttest_rel
from scipy.stats import t as student_t

from arenarl.evaluation.statistics import rounded

FIRST_SEEDS = tuple(range(5))  # of all tables; others were chosen when their results had been seen
ROUNDING = 1e-4  # figures have four places
Rows = tuple[Sequence[float], Sequence[float]]  # a figure of two rows, with the same seeds


def mean_over_seeds(values: Sequence[float]) -> dict[str, Any]:
    """Mean of a figure over training seeds, with the 95 % interval of the mean and that in which a new seed will lie
    (Student's t).

    >>> mean_over_seeds([60.0, 62.0, 61.0])
    {'mean': 61.0, 'ci': [58.5159, 63.4841], 'prediction': [56.0317, 65.9683]}
    """
    count, mean = len(values), float(np.mean(values))
    half_width = student_t.ppf(0.975, count - 1) * sem(values) if count > 1 else math.nan
    around = {"ci": half_width, "prediction": half_width * math.sqrt(count + 1)}
    return {"mean": rounded(mean)} | {
        name: [rounded(mean - width), rounded(mean + width)] for name, width in around.items()
    }


def paired_difference(rows: Rows) -> dict[str, Any]:
    """Mean difference of two rows with the same seeds, and its 95 % interval.

    >>> paired_difference(([61.0, 63.0, 62.0], [50.0, 51.0, 52.0]))
    {'difference': 11.0, 'ci': [8.5159, 13.4841]}
    """
    found = mean_over_seeds(np.subtract(*rows))
    return {"difference": found["mean"], "ci": found["ci"]}


def beyond_chance(family: Mapping[Any, Rows | None]) -> dict[Any, dict[str, Any]]:
    """For each comparison of a family, two rows with the same seeds: whether they differ significantly.

    A paired t test; `p_holm` is corrected by Holm's method for all comparisons of the family, and below .05 it is
    significant. No p, but a place among the comparisons, have None, for rows that are not all there yet, fewer than
    three seeds, and differences that are the same but for rounding: with hardly a spread to go by, any difference would
    be significant.

    >>> beyond_chance({"a - b": ([61.0, 63.0, 62.0], [50.0, 51.0, 52.0])})["a - b"]
    {'p': 0.0027, 'p_holm': 0.0027, 'is_beyond_chance': True}
    """
    if not family:
        return {}
    from statsmodels.stats.multitest import multipletests  # only here: it loads pandas

    p = np.array([ttest_rel(*rows).pvalue if rows and _has_spread(rows) else math.nan for rows in family.values()])
    corrected = multipletests(np.nan_to_num(p, nan=1.0), method="holm")[1]
    return {
        comparison: {"p": rounded(p_alone), "p_holm": rounded(p_holm), "is_beyond_chance": bool(p_holm < 0.05)}
        for comparison, p_alone, p_holm in zip(family, p, np.where(np.isnan(p), math.nan, corrected), strict=True)
    }


def _has_spread(rows: Rows) -> bool:
    """Whether a t test has anything to go by."""
    return len(rows[0]) > 2 and np.std(np.subtract(*rows), ddof=1) > ROUNDING
