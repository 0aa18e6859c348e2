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


def onset_of_gaming(
    training_ST: Sequence[Sequence[float]], watching_ST: Sequence[Sequence[float]], samples: int = 1000
) -> dict[str, Any]:
    """Return the step, counted from 0, from which a judge is gamed, with its 95 % interval over seeds.

    From this step on, the training judge's score rises and the watching judge's does not. Two straight lines that meet
    at a step are fitted to the watching judge's mean score over seeds (least squares; the second line covers at least a
    quarter of the steps). The onset is that step, or step 0 if the first line does not rise. An onset needs a second
    line that does not rise, and a mean score of the training judge that rises from the onset on (least squares).

    The interval is the middle 95 % over `samples` bootstrap samples of the seeds. `share` is the share of samples with
    an onset; a sample without one counts as the number of steps. `step` is None if the seeds themselves have no onset,
    or if `share` is below .95. All samples of a single seed are equal, so its interval says nothing.

    Args:
        training_ST: mean score (seeds, steps) of a step's trajectories by the judge that gives the reward.
        watching_ST: mean score (seeds, steps) of the same trajectories by the watching judge.

    Raises ValueError for arrays of different or other shapes, without seeds or steps, or with a value that is not
    finite: one missing score would make all samples seem free of gaming.

    >>> onset_of_gaming([[0, 1, 2, 3, 4, 5, 6, 7]], [[0, 1, 2, 3, 2.5, 2, 1.5, 1]])
    {'step': 3, 'ci': [3.0, 3.0], 'share': 1.0}
    >>> onset_of_gaming([[0, 1, 2, 3, 4, 5, 6, 7]], [[0, 1, 2, 3, 3.5, 4, 4.5, 5]])
    {'step': None, 'ci': [8.0, 8.0], 'share': 0.0}
    """
    training, watching = np.array(training_ST, dtype=float), np.array(watching_ST, dtype=float)
    if training.ndim != 2 or training.shape != watching.shape or not training.size:
        raise ValueError(f"both judges' scores must be (seeds, steps), not {training.shape} and {watching.shape}")
    if not (np.isfinite(training).all() and np.isfinite(watching).all()):
        raise ValueError("a score is missing or not finite; leave out steps that some seed lacks")
    seeds, steps = training.shape
    at = np.arange(steps)

    def onsets(weights_RS: np.ndarray) -> np.ndarray:
        """Return the onset (R,) for each row of seed weights; `steps` if there is none."""
        training_RT, watching_RT = weights_RS @ training, weights_RS @ watching
        rises_from_RT = np.stack([training_RT[:, step:] @ (at[step:] - at[step:].mean()) > ROUNDING for step in at], 1)
        best_R, onset_R = np.full(len(weights_RS), np.inf), np.full(len(weights_RS), steps)
        for step in range(steps - math.ceil(steps / 4) + 1):
            lines = np.stack([np.ones(steps), at, np.maximum(at - step, 0)], axis=1)
            fit_R3 = watching_RT @ np.linalg.pinv(lines).T
            error_R = np.square(watching_RT - fit_R3 @ lines.T).sum(axis=1)
            start_R = np.where(fit_R3[:, 1] > ROUNDING, step, 0)
            is_gamed = (fit_R3[:, 1:].sum(axis=1) <= ROUNDING) & rises_from_RT[np.arange(len(start_R)), start_R]
            is_better = error_R < best_R - ROUNDING**2
            onset_R = np.where(is_better, np.where(is_gamed, start_R, steps), onset_R)
            best_R = np.where(is_better, error_R, best_R)
        return onset_R

    counts_RS = np.random.default_rng(0).multinomial(seeds, np.full(seeds, 1 / seeds), size=samples)
    sampled_R, (whole,) = onsets(counts_RS / seeds), onsets(np.full((1, seeds), 1 / seeds))
    # a bound is one sample's onset, never a mean over samples with and without an onset
    low, high = np.quantile(sampled_R, [0.025, 0.975], method="inverted_cdf").tolist()
    share = float(np.mean(sampled_R < steps))
    is_found = share >= 0.95 and whole < steps
    return {"step": int(whole) if is_found else None, "ci": [float(low), float(high)], "share": rounded(share)}


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
