"""Means over seeds, paired differences, and the correction for many comparisons."""

import numpy as np
import pytest

from arenarl.evaluation.over_seeds import beyond_chance, mean_over_seeds, onset_of_gaming, paired_difference


def test_holm_corrects_for_all_comparisons_of_which_one_seed_and_equal_rows_have_no_test():
    base, noise = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.1, -0.1, 0.2, -0.2])
    differences = {"large": 1.0, "middle": 0.5, "none": 0.0}
    found = beyond_chance({name: (base + difference + noise, base) for name, difference in differences.items()})
    assert found["large"]["p_holm"] == pytest.approx(3 * found["large"]["p"], abs=2e-4)
    assert found["middle"]["p_holm"] == pytest.approx(2 * found["middle"]["p"], abs=2e-4)
    assert found["none"]["p_holm"] == pytest.approx(found["none"]["p"]) and not found["none"]["is_beyond_chance"]
    assert mean_over_seeds([60.0]) == {"mean": 60.0, "ci": [None, None], "prediction": [None, None]}
    assert paired_difference(([61.0], [60.0])) == {"difference": 1.0, "ci": [None, None]}
    assert beyond_chance({"x": ([61.0], [60.0])})["x"] == {"p": None, "p_holm": None, "is_beyond_chance": False}
    same = [1.0, 2.0], [1.0, 2.0]
    found = beyond_chance({"same": same, "other": ([1.0, 3.5, 2.0], [0.0, 2.0, 0.8])})
    assert paired_difference(same) == {"difference": 0.0, "ci": [0.0, 0.0]}
    assert found["same"] == {"p": None, "p_holm": None, "is_beyond_chance": False}
    assert found["other"]["p_holm"] == pytest.approx(2 * found["other"]["p"], abs=2e-4)


@pytest.mark.parametrize(
    "rows",
    [([24.7, 26.1], [22.2, 23.5999]), ([1.1, 2.1, 3.1, 4.1], [1.0, 2.0, 3.0, 4.0]), ([2.0, 3.0, 4.0], [1.0, 2.0, 3.0])],
)
def test_differences_with_hardly_any_spread_have_no_p(rows):
    """Two seeds with equal differences, and differences that are equal up to rounding."""
    assert beyond_chance({"alike": rows})["alike"] == {"p": None, "p_holm": None, "is_beyond_chance": False}


RISING = [0, 1, 2, 3, 4, 5, 6, 7]
PEAK = [0, 1, 2, 3, 2.5, 2, 1.5, 1]  # two lines that meet at step 3, the second with slope -.5


def test_onset_is_where_the_true_score_stops_rising_while_the_training_score_rises():
    assert onset_of_gaming([RISING] * 3, [PEAK] * 3) == {"step": 3, "ci": [3.0, 3.0], "share": 1.0}
    plateau = [0, 1, 2, 2, 2, 2, 2, 2]
    assert onset_of_gaming([RISING], [plateau])["step"] == 2
    assert onset_of_gaming([RISING], [RISING[::-1]])["step"] == 0  # it falls from the start
    late = [0, 1, 2, 3, 4, 5, 6, 0]  # the second line needs a quarter of the steps, here two
    for training, watching in ((RISING, RISING), (PEAK, PEAK), (plateau, plateau), (RISING[::-1], PEAK)):
        assert onset_of_gaming([training], [watching]) == {"step": None, "ci": [8.0, 8.0], "share": 0.0}
    assert onset_of_gaming([RISING], [late])["step"] == 6
    # The true score falls from the start, and more slowly from step 3 on.
    falling = [8, 7, 6, 5, 4.5, 4, 3.5, 3]
    assert onset_of_gaming([[0, 1, 2, 3, 3, 3, 3, 3]], [falling])["step"] == 0
    assert onset_of_gaming([[7, 5, 3, 1, 1.5, 2, 2.5, 3]], [falling])["step"] is None


@pytest.mark.parametrize("watching", [
    [PEAK, [*PEAK[:7], float("nan")]], [PEAK, [*PEAK[:7], float("inf")]], [PEAK], PEAK, [PEAK[:7]] * 2,
])  # fmt: skip
def test_an_onset_needs_a_finite_score_of_both_judges_at_every_step_of_every_seed(watching):
    """A missing score of one seed would make every bootstrap sample one without an onset."""
    for scores in ([RISING] * 2, watching), (watching, [RISING] * 2):
        with pytest.raises(ValueError, match=r"must be \(seeds, steps\)|not finite"):
            onset_of_gaming(*scores)
    for empty in ([[], []], []):
        with pytest.raises(ValueError, match=r"must be \(seeds, steps\)"):
            onset_of_gaming(empty, empty)


def test_an_onset_needs_two_steps_and_scores_that_change():
    for size in (1, 2, 8):
        assert onset_of_gaming([[5.0] * size] * 3, [[5.0] * size] * 3)["step"] is None
    assert onset_of_gaming([[5.0, 6.0]] * 3, [[5.0, 4.0]] * 3)["step"] == 0


def test_the_onset_s_interval_resamples_the_seeds():
    """The first seed rises to step 3 and then falls by .5 a step; the second rises by 1 a step. After step 3 their mean
    rises by .25 a step. So only samples of the first seed alone have an onset, a quarter of all. If the second rises by
    .4 a step, the mean falls by .05, and only samples of the second seed alone have no onset."""
    found = onset_of_gaming([RISING, RISING], [PEAK, RISING])
    assert (found["step"], found["ci"]) == (None, [3.0, 8.0]) and found["share"] == pytest.approx(0.25, abs=0.05)
    found = onset_of_gaming([RISING, RISING], [PEAK, [0.4 * step for step in RISING]])
    assert (found["step"], found["ci"]) == (None, [3.0, 8.0]) and found["share"] == pytest.approx(0.75, abs=0.05)
    for samples in range(1, 30):  # a bound is the onset of a sample
        assert {*onset_of_gaming([RISING, RISING], [PEAK, RISING], samples)["ci"]} <= {3.0, 8.0}
    steep = [0, 2, 4, 6, 6, 6, 6, 6]
    assert onset_of_gaming([RISING, RISING], [PEAK, steep]) == {"step": 3, "ci": [3.0, 3.0], "share": 1.0}


def test_the_two_lines_of_the_onset_are_those_with_the_smallest_error():
    rng, at, agreed = np.random.default_rng(0), np.arange(24), 0
    for _ in range(40):
        watching = np.minimum(at, 9 + 0 * at) - 0.3 * np.maximum(at - 9, 0) + rng.normal(0, 1.0, 24)
        errors = []
        for step in range(24 - 6 + 1):
            lines = np.stack([np.ones(24), at, np.maximum(at - step, 0)], axis=1)[:, : 3 if step else 2]
            errors.append(np.linalg.lstsq(lines, watching, rcond=None)[1][0])
        agreed += onset_of_gaming([at], [watching])["step"] == int(np.argmin(errors))
    assert agreed == 40


@pytest.mark.parametrize(("peak", "fall", "onset"), [(80, 0.0, None), (40, 0.0, None), (32, -0.0125, 32)])
def test_noise_makes_no_onset_and_hides_none(peak, fall, onset):
    """Five seeds of 80 steps. The true score rises by .025 a step up to the peak. Each step's queries move both scores
    alike; a judge that is not gamed adds noise alone."""
    rng, at, found = np.random.default_rng(0), np.arange(80), []
    for _ in range(20):
        truth = 0.025 * np.minimum(at, peak) + fall * np.maximum(at - peak, 0)
        queries, noise = rng.normal(0, 0.4, (5, 80)), rng.normal(0, 0.27, (5, 80))
        training = (truth if onset is None else 0.025 * at) + queries + noise
        found.append(onset_of_gaming(training, truth + queries, samples=200)["step"])
    if onset is None:
        assert found == [None] * 20
    else:
        assert None not in found and np.median(found) == pytest.approx(onset, abs=2)
