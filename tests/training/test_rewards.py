import numpy as np
import pytest

from arenarl.domains.rubrics import weighted_mean
from arenarl.judges.query_rubrics import IMPORTANCE_WEIGHTS
from arenarl.training.methods.dr_grpo import center
from arenarl.training.methods.grpo import standardize
from arenarl.training.methods.rloo import leave_one_out
from arenarl.training.rewards import rank_to_reward
from arenarl.training.rewards.formulas import add_format_reward, min_max, pointwise_reward, zero_invalid


def test_ranks_become_quantile_rewards():
    assert rank_to_reward([0, 1, 2, 3, 4]) == [1.0, 0.75, 0.5, 0.25, 0.0]  # Eq. 6, N = 5


def test_quantiles_run_over_the_ranked_trajectories_only():
    assert rank_to_reward([None, 0, 2, float("nan"), 1]) == [None, 1.0, 0.0, None, 0.5]


def test_midranks_keep_the_mean_reward_at_one_half():
    rewards = rank_to_reward([0.5, 0.5, 2.5, 2.5])
    assert rewards[0] == rewards[1] == pytest.approx(5 / 6)
    assert np.mean(rewards) == pytest.approx(0.5)


@pytest.mark.parametrize("ranks", [[None, None], [0, None, None]])
def test_fewer_than_two_ranked_trajectories_get_no_reward(ranks):
    assert rank_to_reward(ranks) == [None] * len(ranks)


def test_advantages_are_standardized_as_trl_does():
    # Eq. 7 by hand: mean .5, sum of squares .5 over N - 1 = 2, so the deviation is .5.
    assert standardize([1.0, 0.5, 0.0]) == pytest.approx([0.5 / 0.5001, 0.0, -0.5 / 0.5001])
    assert standardize([1.0, 0.0], ddof=0, eps=0.5) == pytest.approx([0.5, -0.5])


def test_a_trajectory_without_reward_has_no_advantage_and_shifts_nobody():
    assert standardize([1.0, None, 0.5, 0.0])[[0, 2, 3]] == pytest.approx(standardize([1.0, 0.5, 0.0]))
    assert standardize([1.0, None, 0.5, 0.0])[1] == 0


@pytest.mark.parametrize("rewards", [[0.5] * 4, [None] * 4, [None, 1.0]])
def test_a_group_without_an_order_yields_no_gradient(rewards):
    assert standardize(rewards).tolist() == [0.0] * len(rewards)


@pytest.mark.parametrize("reward", [0.1, 0.7, 1 / 3])
@pytest.mark.parametrize("ddof", [0, 1])
def test_equal_rewards_have_no_advantage_even_without_epsilon(reward, ddof):
    # though their mean is not quite their value
    assert standardize([reward] * 7 + [None], ddof=ddof, eps=0).tolist() == [0.0] * 8


def test_a_reward_against_the_others_is_a_larger_distance_from_the_mean():
    # RLOO by hand: 1 - (0 + .5) / 2, 0 - (1 + .5) / 2, .5 - (1 + 0) / 2.
    assert leave_one_out([1.0, 0.0, None, 0.5]) == [pytest.approx(0.75), pytest.approx(-0.75), None, pytest.approx(0.0)]
    assert center([1.0, 0.0, None, 0.5]) == [0.5, -0.5, None, 0.0]


@pytest.mark.parametrize("function", [center, leave_one_out])
def test_a_reward_alone_has_nothing_to_be_compared_with(function):
    assert function([None, 0.7, None]) == [None, 0.0, None]
    assert function([None, None]) == [None, None]


def test_pointwise_scores_become_rewards_between_zero_and_one():
    assert pointwise_reward([0, 10, None, 4]) == [0.0, 1.0, None, 0.4]


def test_invalid_trajectories_get_zero_even_without_a_score():
    assert pointwise_reward([8, None, 6], valid_G=[True, False, False]) == [0.8, 0.0, 0.0]


@pytest.mark.parametrize("score", [-1, 10.5, float("inf")])
def test_scores_off_the_scale_are_an_error(score):
    with pytest.raises(ValueError, match="0–10"):
        pointwise_reward([5, score])


def test_points_are_normalized_within_the_group():
    # Eq. 8 of Tournament-GRPO by hand: points 1 to 5, so (s - 1) / (4 + eps).
    assert min_max([5, 1, 2, None], eps=1.0) == pytest.approx([4 / 5, 0, 1 / 5, None])
    assert min_max([5, 1, 2]) == pytest.approx([1, 0, 0.25], abs=1e-6)


@pytest.mark.parametrize("points", [[3.0] * 4, [0.0, 0.0], [None, 2.0], [None, None]])
def test_equal_points_are_all_zero(points):
    assert min_max(points, eps=0) == [None if point is None else 0.0 for point in points]


def test_the_papers_case_study():
    # Table 8, Tournament-GRPO: raw points 3 and 0, both valid, final rewards 2 and 1.
    assert add_format_reward(min_max([3.0, 0.0]), [True, True]) == pytest.approx([2.0, 1.0], abs=1e-6)


def test_importance_weights_are_three_two_one():
    # Eq. 13: (3 * .9 + 2 * .6 + 1 * .3) / 6.
    weights = dict(zip("abc", map(IMPORTANCE_WEIGHTS.get, ("critical", "important", "nice_to_have")), strict=True))
    assert weighted_mean({"a": 0.9, "b": 0.6, "c": 0.3}, weights) == pytest.approx(0.7)
    assert weighted_mean({"a": 0.9, "b": None, "c": 0.3}, weights) is None


def test_the_explicit_reward_is_the_mean_of_rubric_and_format():
    # Eq. 14
    assert add_format_reward([0.7, 0.0, None], [True, False, True], scale=0.5) == [pytest.approx(0.85), 0.0, None]


def test_invalid_ones_have_zero_where_anyone_has_a_verdict():
    assert zero_invalid([2.0, None, None], [True, True, False]) == [2.0, None, 0.0]
    assert zero_invalid([None, None, None], [True, True, False]) == [None] * 3
    assert zero_invalid([None, None], [False, False]) == [0.0, 0.0]
