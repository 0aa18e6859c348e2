"""Means over seeds, paired differences, and the correction for many comparisons."""

import numpy as np
import pytest

from arenarl.evaluation.over_seeds import beyond_chance, mean_over_seeds, paired_difference


def test_one_seed_has_no_interval_and_no_test():
    assert mean_over_seeds([60.0]) == {"mean": 60.0, "ci": [None, None], "prediction": [None, None]}
    assert paired_difference(([61.0], [60.0])) == {"difference": 1.0, "ci": [None, None]}
    assert beyond_chance({"x": ([61.0], [60.0])})["x"] == {"p": None, "p_holm": None, "is_beyond_chance": False}


def test_holm_corrects_for_all_comparisons_of_the_family():
    base, noise = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.1, -0.1, 0.2, -0.2])
    differences = {"large": 1.0, "middle": 0.5, "none": 0.0}
    found = beyond_chance({name: (base + difference + noise, base) for name, difference in differences.items()})
    assert found["large"]["p_holm"] == pytest.approx(3 * found["large"]["p"], abs=2e-4)
    assert found["middle"]["p_holm"] == pytest.approx(2 * found["middle"]["p"], abs=2e-4)
    assert found["none"]["p_holm"] == pytest.approx(found["none"]["p"]) and not found["none"]["is_beyond_chance"]


def test_equal_rows_have_no_p_and_count_as_a_comparison():
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
