"""The reward of a stateful world (AgentGym-RL), as its score(), Step(reward=...) or TRL's get_reward() gives it."""

from arenarl.training.rewards.group import GroupOutcome, IncomingGroup, Referee, Reward, scored_outcome


async def by_environment(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """The world's reward; 0 if it gave none, None if its score is None, and for a void trajectory."""
    trajectories = (await incoming.complete()).trajectories
    return scored_outcome([None if one.is_void else one.meta.get("reward", 0.0) for one in trajectories], [])


REWARD = Reward(by_environment, reads=("reward.tournament_if_equal",), asks_judge=False)
