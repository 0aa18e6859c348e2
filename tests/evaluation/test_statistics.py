import itertools
import math
import warnings

import numpy as np
import pytest

from arenarl.evaluation.statistics import Resampling, agreement, mean, pass_at_k, win_rate

W, T, L, N = 1.0, 0.0, -1.0, np.nan


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize(("cases", "strata", "expected"), [
    ([[[W]], [[W]], [[L]], [[T]], [[N]]], "aaaaa", 200 / 3),  # ties and missing verdicts do not count
    # the mean over dimensions: the first 1 of 2 decided, the second 3 of 3; pooled it would be 4 of 5
    ([[[W, W]], [[L, W]], [[T, W]]], "aaa", 75),
    ([[[W], [W]], [[T], [L]], [[T], [L]]], "aaa", 200 / 3),  # over judges: the first 1 of 1, the second 1 of 3
    ([[[W]], [[W]], [[W]], [[L]], [[L]]], "aaaab", 37.5),  # over subtasks, whatever their sizes: 3 of 4, and 0 of 1
    # a judge of fewer dimensions counts as much: 1 of 1 in each of seven, and a loss in the only one of the other
    ([[[W] * 7, [L] + [N] * 6]], "a", 50),
    ([[[W]], [[L]], [[T]]], "aab", 50),  # a subtask without a decided case is left out
    # all of it. a: dimension one 1/2, two 1/1, 75 %. b: dimension one all tied, two 0/2, 0 %
    ([[[W, W]], [[L, T]], [[T, L]], [[T, L]]], "aabb", 37.5),
    # invalid trajectories lose in every dimension
    ([[[L] * 7]] * 4, "aaaa", 0), ([[[L] * 7], [[W] * 7]] * 4, "a" * 8, 50),
])  # fmt: skip
def test_win_rates_worked_by_hand(cases, strata, expected):
    cases = np.array(cases, dtype=float)  # cases x judges x dimensions
    assert win_rate(cases, Resampling(list(strata), 50, 0))["mean"] == pytest.approx(expected, abs=1e-4)


def test_means_are_over_cases_then_subtasks_and_both_sides_win_rates_add_up_to_100():
    assert mean([1.0, 3.0, 10.0], Resampling(["a", "a", "b"], 100, 0))["mean"] == 6.0
    assert mean([1.0, np.nan, 10.0], Resampling(["a", "a", "b"], 100, 0))["mean"] == 5.5
    assert mean([1.0, 3.0, np.nan], Resampling(["a", "a", "b"], 100, 0))["mean"] == 2.0
    data = np.random.default_rng(0).choice([W, T, L, N], size=(60, 2, 7))
    strata = ["a", "b", "c"] * 20
    resampling = Resampling(strata, 0, 0)
    assert win_rate(data, resampling)["mean"] + win_rate(-data, resampling)["mean"] == pytest.approx(100, abs=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_intervals_contain_the_mean_and_are_the_same_for_the_same_seed(seed):
    rng = np.random.default_rng(seed)
    strata = list(rng.choice(["a", "b", "c"], size=80))
    values, data = rng.normal(5, 2, size=80), rng.choice([W, T, L], size=(80, 2, 3))
    one, other = Resampling(strata, 500, seed), Resampling(strata, 500, seed + 1)
    for figure, cases in ((mean, values), (win_rate, data)):
        result = figure(cases, one)
        assert result["ci"][0] < result["mean"] < result["ci"][1]
        assert result == figure(cases, one) != figure(cases, other)


def test_the_interval_equals_the_normal_approximation_within_subtasks():
    values = np.random.default_rng(0).normal(0, 3, size=900)
    low, high = mean(values, Resampling(["a"] * 900, 4000, 0))["ci"]
    assert (high - low) / 2 == pytest.approx(1.96 * values.std() / 30, rel=0.1)
    # Differences between subtasks are not noise: constant subtasks of different level have an interval of 0.
    assert mean([2.0] * 5 + [8.0] * 2, Resampling(["a"] * 5 + ["b"] * 2, 300, 0)) == {"mean": 5.0, "ci": [5.0, 5.0]}
    assert win_rate(np.ones((6, 1, 7)), Resampling(["a", "b"] * 3, 200, 0)) == {"mean": 100.0, "ci": [100.0, 100.0]}


def test_samples_of_one_query_are_resampled_together():
    """Four equal samples of a query count like one. If all differences lie within queries, the interval is 0."""
    values, queries = [0.0, 1.0, 1.0] * 20, [f"q{number}" for number in range(60)]
    one = mean(values, Resampling(["a"] * 60, 500, 0))
    tiled = Resampling(["a"] * 240, 500, 0, queries * 4)
    assert mean(values * 4, tiled) == one == mean(values, Resampling(["a"] * 60, 500, 0, queries))
    data = np.array(values).reshape(60, 1, 1) * 2 - 1
    assert win_rate(np.tile(data, (4, 1, 1)), tiled) == win_rate(data, Resampling(["a"] * 60, 500, 0))
    low, high = mean([0.0, 0.0, 1.0, 1.0] * 60, Resampling(["a"] * 240, 500, 0, np.repeat(queries, 4)))["ci"]
    assert low == high == 0.5


def test_no_values_give_none_and_single_queries_no_interval():
    nothing = {"mean": None, "ci": [None, None]}
    assert mean([], Resampling([], 100, 0)) == nothing
    assert mean([np.nan, np.nan], Resampling(["a", "b"], 100, 0)) == nothing
    assert win_rate(np.empty((0, 1, 7)), Resampling([], 100, 0)) == nothing
    assert win_rate(np.zeros((3, 1, 7)), Resampling(["a"] * 3, 100, 0)) == nothing
    assert win_rate(np.full((3, 2, 7), np.nan), Resampling(["a"] * 3, 100, 0)) == nothing
    for strata in (["a"], ["a", "b"]):
        values = [30.0, 80.0][: len(strata)]
        assert mean(values, Resampling(strata, 200, 0)) == {"mean": sum(values) / len(values), "ci": [None, None]}
        decided = np.array([[[W]], [[L]]][: len(strata)])
        assert win_rate(decided, Resampling(strata, 200, 0))["ci"] == [None, None]
    assert mean([30.0, 80.0, 50.0], Resampling(["a", "b", "b"], 200, 0))["ci"][0] is not None


def test_agreement_counts_only_cases_that_both_judged_and_kappa_takes_chance_out():
    one = np.array([1.0, 1.0, -1.0, 0.0, np.nan, 1.0])
    assert agreement(one, one)["kappa"] == 1 and agreement(one, one)["cases"] == 5
    half = agreement(np.array([1, 1, -1, -1]), np.array([1, -1, 1, -1]))
    assert half["agreement"] == 0.5 and half["kappa"] == 0 and half["confusion"] == [[1, 0, 1], [0, 0, 0], [1, 0, 1]]
    alike = {"agreement": 1.0, "kappa": None, "confusion": [[3, 0, 0], [0, 0, 0], [0, 0, 0]], "cases": 3}
    assert agreement(np.ones(3), np.ones(3)) == alike
    assert agreement(np.full(2, np.nan), np.ones(2))["agreement"] is None


@pytest.mark.parametrize("passed", range(6))
def test_pass_at_k_is_the_share_of_draws_that_hold_a_pass(passed):
    samples = [1] * passed + [0] * (5 - passed)
    for k in range(1, 6):
        draws = [max(drawn) for drawn in itertools.combinations(samples, k)]
        assert pass_at_k(5, passed, k) == pytest.approx(np.mean(draws))
    assert math.isnan(pass_at_k(5, passed, 6)) and pass_at_k(200, 1, 100) == 0.5
