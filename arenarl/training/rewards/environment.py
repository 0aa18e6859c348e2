"""The reward of a stateful environment (AgentGym-RL), from its score(), Step(reward=...) or TRL's get_reward()."""

from arenarl.training.rewards.group import GroupOutcome, IncomingGroup, Referee, Reward, scored_outcome


async def by_environment(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """Take the environment's reward: 0 if it gave no reward, None if its score is None or the trajectory is void."""
    group = await incoming.complete()
    return scored_outcome([None if one.is_void else one.meta.get("reward", 0.0) for one in group.trajectories], [])


REWARD = Reward(by_environment, reads=("reward.tournament_if_equal",), asks_judge=False)
