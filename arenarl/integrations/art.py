"""ART (openpipe-art): the tournament as `after_each` of `gather_trajectory_groups`.

    rank = reward_groups(Ranker(judge="openai", rubric="…"))
    groups = await art.gather_trajectory_groups(groups, after_each=rank)

A trajectory without a verdict leaves the group, because ART's rewards are numbers. A group with fewer than two ranked
trajectories is dropped.
"""

from collections.abc import Awaitable, Callable

from art import TrajectoryGroup

from arenarl.integrations.groups import split_chats
from arenarl.rank import Ranker


def reward_groups(ranker: Ranker) -> Callable[[TrajectoryGroup], Awaitable[TrajectoryGroup | None]]:
    """Return a function that sets each trajectory's reward by its rank: 1 for the first, 0 for the last (Eq. 6)."""

    async def after_each(group: TrajectoryGroup) -> TrajectoryGroup | None:
        trajectories = group.trajectories
        if not trajectories:  # all rollouts failed, which `max_exceptions` may allow
            return None
        ranked = await ranker.rank(*split_chats([trajectory.messages() for trajectory in trajectories]))
        kept = []
        for trajectory, reward, rank in zip(trajectories, ranked.rewards, ranked.ranks, strict=True):
            if reward is not None:
                trajectory.reward = reward
                trajectory.metrics["rank"] = rank
                kept.append(trajectory)
        group.metrics |= {"judge_calls": ranked.calls, "failed_judge_calls": ranked.failed_calls}
        group.trajectories = kept
        return group if len(kept) > 1 else None

    return after_each
