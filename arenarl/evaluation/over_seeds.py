"""Statistics over training seeds: a row's mean with its intervals, and significance tests between rows.

A row is a run for every seed. A seed's runs share their cold start, so rows are compared seed by seed.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import sem, ttest_rel
from scipy.stats import t as student_t

from arenarl.evaluation.statistics import rounded

FIRST_SEEDS = tuple(range(5))  # in all tables; later seeds were chosen after the results of these seeds were known
ROUNDING = 1e-4  # figures have four places
Rows = tuple[Sequence[float], Sequence[float]]  # one figure of two rows, with the same seeds


def mean_over_seeds(values: Sequence[float]) -> dict[str, Any]:
    """Return a figure's mean over training seeds, the 95 % interval of the mean, and the prediction interval for a new
    seed (Student's t).

    >>> mean_over_seeds([60.0, 62.0, 61.0])
    {'mean': 61.0, 'ci': [58.5159, 63.4841], 'prediction': [56.0317, 65.9683]}
    """
    count, mean = len(values), float(np.mean(values))
    half_width = student_t.ppf(0.975, count - 1) * sem(values) if count > 1 else math.nan
    widths = {"ci": half_width, "prediction": half_width * math.sqrt(count + 1)}
    intervals = {name: [rounded(mean - width), rounded(mean + width)] for name, width in widths.items()}
    return {"mean": rounded(mean)} | intervals


def paired_difference(rows: Rows) -> dict[str, Any]:
    """Return the mean difference of two rows over their seeds, and its 95 % interval.

    >>> paired_difference(([61.0, 63.0, 62.0], [50.0, 51.0, 52.0]))
    {'difference': 11.0, 'ci': [8.5159, 13.4841]}
    """
    figure = mean_over_seeds(np.subtract(*rows))
    return {"difference": figure["mean"], "ci": figure["ci"]}


def beyond_chance(family: Mapping[Any, Rows | None]) -> dict[Any, dict[str, Any]]:
    """Test for each comparison of a family whether its two rows differ significantly.

    A paired t test. `p_holm` is corrected by Holm's method for all comparisons of the family; below .05 a difference is
    significant. A comparison counts for the correction but has no p in three cases: rows are missing (it is None), it
    has fewer than three seeds, or its differences are equal up to rounding, so that any difference would be
    significant.

    >>> beyond_chance({"a - b": ([61.0, 63.0, 62.0], [50.0, 51.0, 52.0])})["a - b"]
    {'p': 0.0027, 'p_holm': 0.0027, 'is_beyond_chance': True}
    """
    if not family:
        return {}
    from statsmodels.stats.multitest import multipletests  # imported here because it loads pandas

    def p_value(rows: Rows | None) -> float:
        is_testable = rows and len(rows[0]) > 2 and np.std(np.subtract(*rows), ddof=1) > ROUNDING
        return ttest_rel(*rows).pvalue if is_testable else math.nan

    p = np.array(list(map(p_value, family.values())))
    corrected = multipletests(np.nan_to_num(p, nan=1.0), method="holm")[1]
    return {
        comparison: {"p": rounded(p_single), "p_holm": rounded(p_holm), "is_beyond_chance": bool(p_holm < 0.05)}
        for comparison, p_single, p_holm in zip(family, p, np.where(np.isnan(p), math.nan, corrected), strict=True)
    }
