"""ms-swift: the tournament as a reward function of GRPO.

    # plugin.py; then: swift rlhf --rlhf_type grpo --external_plugins plugin.py --reward_funcs tournament …
    orms["tournament"] = partial(TournamentORM, Ranker(judge="openai", rubric="…"))

A trajectory without a rank gets 0.5, the group's mean, because ms-swift counts None as 0, the last place.
"""

from typing import Any

from swift.rewards import AsyncORM

from arenarl.integrations.groups import Messages, neutral_rewards, split_chats
from arenarl.rank import Ranker
from arenarl.system.errors import UserError


class TournamentORM(AsyncORM):
    """Rewards by rank: 1 for the first of a group, 0 for the last (Eq. 6). `args` are the trainer's."""

    def __init__(self, ranker: Ranker, args: Any):
        super().__init__(args)
        self.ranker = ranker

    async def __call__(self, completions: list[str], messages: list[Messages], **_: Any) -> list[float]:
        size = self.args.num_generations
        try:
            if len(messages) % size:
                raise ValueError(f"a process has {len(messages)} rows")
            groups = [split_chats(messages[first : first + size]) for first in range(0, len(messages), size)]
        except ValueError as error:
            raise UserError(
                f"tournament: rows are not whole groups of num_generations={size}, {error}; make "
                "per_device_train_batch_size * steps_per_generation a multiple of it, and num_generations_eval equal"
            ) from error
        return [reward for ranked in await self.ranker.rank_all(groups) for reward in neutral_rewards(ranked)]
