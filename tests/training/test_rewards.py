import numpy as np
import pytest

from arenarl.training.methods.dr_grpo import center
from arenarl.training.methods.grpo import standardize
from arenarl.training.methods.rloo import leave_one_out
from arenarl.training.rewards import rank_to_reward
from arenarl.training.rewards.formulas import min_max, pointwise_reward


def test_midranks_keep_the_mean_reward_at_one_half_and_fewer_than_two_ranks_give_no_reward():
    rewards = rank_to_reward([0.5, 0.5, 2.5, 2.5])
    assert rewards[0] == rewards[1] == pytest.approx(5 / 6)
    assert np.mean(rewards) == pytest.approx(0.5)
    assert rank_to_reward([None, None]) == [None] * 2 and rank_to_reward([0, None, None]) == [None] * 3


def test_a_trajectory_without_reward_has_advantage_0_and_does_not_shift_the_others():
    assert standardize([1.0, None, 0.5, 0.0])[[0, 2, 3]] == pytest.approx(standardize([1.0, 0.5, 0.0]))
    assert standardize([1.0, None, 0.5, 0.0])[1] == 0


@pytest.mark.parametrize("rewards", [*([reward] * 7 + [None] for reward in (0.1, 0.7, 1 / 3)), [None] * 4, [None, 1.0]])
@pytest.mark.parametrize("ddof", [0, 1])
def test_equal_rewards_have_no_advantage_even_without_epsilon(rewards, ddof):
    """The mean of the equal rewards has a rounding error."""
    assert standardize(rewards, ddof=ddof, eps=0).tolist() == [0.0] * len(rewards)


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
