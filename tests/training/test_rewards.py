import numpy as np
import pytest

from arenarl.training.methods.dr_grpo import center
from arenarl.training.methods.grpo import standardize
from arenarl.training.methods.rloo import leave_one_out
from arenarl.training.rewards import rank_to_reward
from arenarl.training.rewards.formulas import min_max, pointwise_reward


def test_midranks_keep_the_mean_reward_at_one_half():
    rewards = rank_to_reward([0.5, 0.5, 2.5, 2.5])
    assert rewards[0] == rewards[1] == pytest.approx(5 / 6)
    assert np.mean(rewards) == pytest.approx(0.5)


@pytest.mark.parametrize("ranks", [[None, None], [0, None, None]])
def test_fewer_than_two_ranked_trajectories_get_no_reward(ranks):
    assert rank_to_reward(ranks) == [None] * len(ranks)


def test_a_trajectory_without_reward_has_advantage_0_and_does_not_shift_the_others():
    assert standardize([1.0, None, 0.5, 0.0])[[0, 2, 3]] == pytest.approx(standardize([1.0, 0.5, 0.0]))
    assert standardize([1.0, None, 0.5, 0.0])[1] == 0


@pytest.mark.parametrize("rewards", [[0.5] * 4, [None] * 4, [None, 1.0]])
def test_a_group_without_different_rewards_has_advantages_0(rewards):
    assert standardize(rewards).tolist() == [0.0] * len(rewards)


@pytest.mark.parametrize("reward", [0.1, 0.7, 1 / 3])
@pytest.mark.parametrize("ddof", [0, 1])
def test_equal_rewards_have_no_advantage_even_without_epsilon(reward, ddof):
    # the mean has a rounding error
    assert standardize([reward] * 7 + [None], ddof=ddof, eps=0).tolist() == [0.0] * 8


@pytest.mark.parametrize("function", [center, leave_one_out])
def test_a_single_reward_has_advantage_0(function):
    assert function([None, 0.7, None]) == [None, 0.0, None]
    assert function([None, None]) == [None, None]


@pytest.mark.parametrize("score", [-1, 10.5, float("inf")])
def test_scores_off_the_scale_are_an_error(score):
    with pytest.raises(ValueError, match="0–10"):
        pointwise_reward([5, score])


@pytest.mark.parametrize("points", [[3.0] * 4, [0.0, 0.0], [None, 2.0], [None, None]])
def test_equal_points_are_all_zero(points):
    assert min_max(points, eps=0) == [None if point is None else 0.0 for point in points]
