"""Means over seeds and paired differences: what one seed can say, and what many comparisons cost."""

import pytest

from arenarl.tables.over_seeds import mean_over_seeds, paired_differences


def test_one_seed_has_no_interval_and_no_test():
    assert mean_over_seeds([60.0]) == {"mean": 60.0, "ci": [None, None], "prediction": [None, None]}
    assert paired_differences({"x": ([61.0], [60.0])})["x"] == {
        "difference": 1.0, "ci": [None, None], "p": None, "p_holm": None, "is_beyond_chance": False
    }  # fmt: skip


def test_holm_corrects_for_all_comparisons():
    one = [1.0, 2.0, 3.0, 4.0]
    pairs = {name: ([value + difference + wobble for value, wobble in zip(one, (0.1, -0.1, 0.2, -0.2), strict=True)], one) for name, difference in
             (("large", 1.0), ("middle", 0.5), ("none", 0.0))}  # fmt: skip
    found = paired_differences(pairs)
    assert found["large"]["p_holm"] == pytest.approx(3 * found["large"]["p"], abs=2e-4)
    assert found["middle"]["p_holm"] == pytest.approx(2 * found["middle"]["p"], abs=2e-4)
    assert found["none"]["p_holm"] == pytest.approx(found["none"]["p"]) and not found["none"]["is_beyond_chance"]


def test_rows_that_are_the_same_for_every_seed_have_no_p_and_count_as_a_comparison():
    found = paired_differences({"same": ([1.0, 2.0], [1.0, 2.0]), "other": ([1.0, 3.5, 2.0], [0.0, 2.0, 0.8])})
    assert found["same"] == {"difference": 0.0, "ci": [0.0, 0.0], "p": None, "p_holm": None, "is_beyond_chance": False}
    assert found["other"]["p_holm"] == pytest.approx(2 * found["other"]["p"], abs=2e-4)


def test_nothing_compared_is_nothing_found():
    assert paired_differences({}) == {}
