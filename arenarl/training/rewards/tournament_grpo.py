"""Tournament-GRPO: points from repeated group-stage tournaments, normalised, plus 1 for a valid trajectory
(Algorithm 1, Eqs. 8 and 9, Tournament-GRPO)."""

from dataclasses import asdict, fields

from arenarl.config.schema import Config, GroupStageConfig
from arenarl.system.errors import UserError
from arenarl.training.rewards.formulas import add_format_reward, min_max, zero_invalid
from arenarl.training.rewards.group import GroupOutcome, IncomingGroup, Referee, Reward, play, ranked_outcome


async def by_group_stage(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """Reward points plus validity: two valid trajectories with 3 and 0 points (Table 8) get 2 and 1.

    >>> [round(reward, 5) for reward in add_format_reward(min_max([3.0, 0.0]), [True, True])]
    [2.0, 1.0]
    """
    valid_G, ranking = await play(referee, incoming, "group_stage", **asdict(referee.group_stage))
    return ranked_outcome(add_format_reward(min_max(zero_invalid(ranking.scores_G, valid_G)), valid_G), ranking)


def _check(config: Config) -> None:
    if config.group_stage.final >= config.rollout.group_size:
        raise UserError(
            f"group_stage.final={config.group_stage.final}: must be below rollout.group_size, "
            "or no match would be played"
        )


REWARD = Reward(
    by_group_stage,
    reads=tuple(f"group_stage.{key.name}" for key in fields(GroupStageConfig)),
    adds_format=True,
    check=_check,
)
