"""verl: the tournament as the reward manager, where the samples of a prompt meet.

    reward.num_workers=1 reward.reward_manager.source=importlib
    reward.reward_manager.module.path=pkg://arenarl.integrations.verl reward.reward_manager.name=TournamentRewardManager
    +reward.reward_kwargs.judge=openai '+reward.reward_kwargs.rubric="…"'

verl calls a reward worker with one sample at a time. The samples of a `uid` are ranked once all `rollout.n` have
arrived, or `deadline_s` after the first one. A later sample gets 0.5, the mean of a group, and so does a sample without
a rank.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from omegaconf import OmegaConf
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from arenarl.integrations.groups import neutral_rewards
from arenarl.rank import Ranker
from arenarl.system.errors import UserError
from arenarl.system.progress import say

_CALLS = 1000  # most calls of one worker that Ray runs at a time


@dataclass
class _Group:
    answers: list[str] = field(default_factory=list)
    is_full: asyncio.Event = field(default_factory=asyncio.Event)
    rewards: asyncio.Task | None = None


class TournamentRewardManager(RewardManagerBase):
    """Rewards by rank, from 1 to 0 (Eq. 6). `reward.reward_kwargs` are the arguments of `Ranker`, and `deadline_s`."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any, **_: Any):
        super().__init__(config, tokenizer, compute_score)
        self.size = config.actor_rollout_ref.rollout.n
        if config.reward.num_workers != 1:
            raise UserError(
                f"reward.num_workers={config.reward.num_workers}: set it to 1, so that all samples of a prompt meet"
            )
        if config.data.train_batch_size * self.size > _CALLS:
            problem = f"exceeds {_CALLS}, the number of samples that can wait at once"
            raise UserError(f"data.train_batch_size * rollout.n {problem}; lower one of them")
        if config.trainer.test_freq > 0 or config.trainer.val_before_train:
            problem = "verl would validate with ranks inside a group, whose mean is always the same"
            raise UserError(f"{problem}; set trainer.test_freq=-1 and trainer.val_before_train=False")
        keys = OmegaConf.to_container(config.reward.get("reward_kwargs") or OmegaConf.create())
        self.deadline_s = keys.pop("deadline_s", 1800.0)
        self.ranker = Ranker(**{"run": "verl", **keys})
        self._groups: dict[str, _Group] = {}
        self._overdue: set[str] = set()

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        item = data[len(data) - 1]  # the last of an attempt's sequences, as in verl's own managers
        ids, uid = item.batch["responses"], str(item.non_tensor_batch["uid"])
        answer = self.tokenizer.decode(ids[: item.batch["attention_mask"][-len(ids) :].sum()], skip_special_tokens=True)
        if uid in self._overdue:
            say(f"tournament: a sample of {uid} came after its group's deadline, reward 0.5")
            return {"reward_score": 0.5, "reward_extra_info": {}}
        group = self._groups.setdefault(uid, _Group())
        group.answers.append(answer)
        place = len(group.answers) - 1
        if place == 0:
            group.rewards = asyncio.create_task(self._rank(uid, list(item.non_tensor_batch["raw_prompt"])))
        if len(group.answers) == self.size:
            group.is_full.set()
        rewards = await asyncio.shield(group.rewards)
        return {"reward_score": rewards[place], "reward_extra_info": {}}

    async def _rank(self, uid: str, prompt: list[dict[str, Any]]) -> list[float]:
        group = self._groups[uid]
        try:
            await asyncio.wait_for(group.is_full.wait(), self.deadline_s)
        except TimeoutError:
            self._overdue.add(uid)
            say(f"tournament: {len(group.answers)} of {self.size} samples of {uid} came within {self.deadline_s:g} s")
        del self._groups[uid]
        return neutral_rewards(await self.ranker.rank(prompt, group.answers))
