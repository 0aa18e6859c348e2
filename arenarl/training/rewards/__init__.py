"""Rollout group → one reward per trajectory: a file for each value of `reward.name`.

`tournament` is ArenaRL's reward. `pointwise` is the reward of the paper's GRPO and GSPO rows. The others come from
other papers (docs/methods.md). A trajectory without a verdict, or void after a tool crash, gets no reward, and is left
out of the ranking. To add a reward: write its file, and add a row here and its name in config/value_types.py.
"""

from arenarl.training.rewards.group import Reward
from arenarl.training.rewards.own import own_reward
from arenarl.training.rewards.tournament import rank_to_reward

from arenarl.training.rewards import (  # isort: skip
    brpo, circular, correctness, dgr, elo, environment, evolving_rubrics, mixture, pointwise, rubric_checklist, ruler,
    tournament, tournament_grpo, win_rate,
)  # fmt: skip

__all__ = ["REWARDS", "Reward", "rank_to_reward", "reward_of"]

REWARDS: dict[str, Reward] = {
    "tournament": tournament.REWARD,
    "pointwise_answer": pointwise.REWARD,
    "pointwise_trajectory": pointwise.REWARD,
    "tournament_grpo": tournament_grpo.REWARD,
    "win_rate": win_rate.REWARD,
    "pointwise_implicit": pointwise.IMPLICIT,
    "pointwise_explicit": pointwise.EXPLICIT,
    "environment": environment.REWARD,
    "correctness": correctness.REWARD,
    "correctness_or_tournament": correctness.OR_TOURNAMENT,
    "ruler": ruler.REWARD,
    "brpo": brpo.REWARD,
    "mixture": mixture.REWARD,
    "elo": elo.REWARD,
    "rubric_checklist": rubric_checklist.REWARD,
    "evolving_rubrics": evolving_rubrics.REWARD,
    "circular": circular.REWARD,
    "dgr": dgr.REWARD,
}


def reward_of(name: str) -> Reward:
    """Return the reward that `reward.name` names. Raises UserError if a user's own function cannot be used."""
    return REWARDS.get(name) or own_reward(name)
