"""Rollout group → one reward a trajectory: a file for each value of `reward.name`.

`tournament` is ArenaRL's; the paper's GRPO and GSPO rows are `pointwise`; the others are rivals' (docs/methods.md). A
trajectory without a verdict gets no reward, nor does one that a tool's crash made void, and the others are ranked
without it. To add one: its file, its row here, its name in config/value_types.py.
"""

from arenarl.training.rewards import (
    brpo,
    correctness,
    elo,
    environment,
    mixture,
    pointwise,
    pointwise_explicit,
    pointwise_implicit,
    rubric_checklist,
    ruler,
    tournament,
    tournament_grpo,
    win_rate,
)
from arenarl.training.rewards.group import Reward
from arenarl.training.rewards.own import own_reward
from arenarl.training.rewards.tournament import rank_to_reward

__all__ = ["REWARDS", "Reward", "rank_to_reward", "reward_of"]

REWARDS: dict[str, Reward] = {
    "tournament": tournament.REWARD,
    "pointwise_answer": pointwise.REWARD,
    "pointwise_trajectory": pointwise.REWARD,
    "tournament_grpo": tournament_grpo.REWARD,
    "win_rate": win_rate.REWARD,
    "pointwise_implicit": pointwise_implicit.REWARD,
    "pointwise_explicit": pointwise_explicit.REWARD,
    "environment": environment.REWARD,
    "correctness": correctness.REWARD,
    "correctness_or_tournament": correctness.OR_TOURNAMENT,
    "ruler": ruler.REWARD,
    "brpo": brpo.REWARD,
    "mixture": mixture.REWARD,
    "elo": elo.REWARD,
    "rubric_checklist": rubric_checklist.REWARD,
}


def reward_of(name: str) -> Reward:
    """The reward that `reward.name` names. Raises UserError for a function of one's own that cannot be had."""
    return REWARDS.get(name) or own_reward(name)
