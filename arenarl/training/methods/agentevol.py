"""AgentEvol (arXiv 2406.04151; 3.2.2, AgentGym-RL), offline in rounds: SFT on the best trajectories of all rounds.

`rl.method: agentevol`, `rl.rounds`, `rl.batch_size`, `rl.keep_from`. Each round restarts from the policy that RL starts
from. Departs from AgentEvol: the best trajectory of a ranked group is always kept; the SFT split is not added again.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arenarl.config.schema import Config, RLConfig
from arenarl.training.methods.method import Example, OfflineMethod, Trainer, offline_arguments
from arenarl.training.rewards.group import GroupOutcome
from arenarl.trajectory import RolloutGroup

IGNORED = -100  # the label of a token without a loss


def best_trajectories(group: RolloutGroup, outcome: GroupOutcome, rl: RLConfig) -> Iterator[Example]:
    """Yield SFT examples of trajectories with a reward of at least `rl.keep_from`; equal token sequences only once.

    A ranked group with different rewards always yields its best trajectories, even if they tie and their reward is thus
    below 1.
    """
    seen, rewards, least = set(), {reward for reward in outcome.rewards_G if reward is not None}, rl.keep_from
    if outcome.ranking and len(rewards) > 1:
        least = min(least, max(rewards))
    for trajectory, reward in zip(group.trajectories, outcome.rewards_G, strict=True):
        ids = trajectory.prompt_ids + trajectory.completion_ids
        mask = [0] * len(trajectory.prompt_ids) + trajectory.policy_mask_T
        if reward is not None and reward >= least and any(mask) and tuple(ids) not in seen:
            seen.add(tuple(ids))
            labels = [token if is_own else IGNORED for token, is_own in zip(ids, mask, strict=True)]
            yield {"input_ids": ids, "labels": labels}


def make_trainer(config: Config, policy: str, examples: list[Example], folder: Path, tokenizer: Any) -> Trainer:
    from datasets import Dataset
    from trl import SFTConfig

    from arenarl.rollout.policy import lora_config
    from arenarl.run.trainer_arguments import on_one_gpu
    from arenarl.training.sft_internals import RightPaddedTrainer

    arguments = offline_arguments(config, folder)
    return RightPaddedTrainer(
        model=policy,
        args=on_one_gpu(SFTConfig(**arguments, dataset_kwargs={"skip_prepare_dataset": True})),
        train_dataset=Dataset.from_list(examples),
        processing_class=tokenizer,
        peft_config=lora_config(config.policy.lora_rank),
    )


METHOD = OfflineMethod(
    title="AgentEvol",
    keys={"rl.method": "agentevol"},
    requires={"rollout.backend": ("transformers",), "rl.deepspeed": (None,)},
    reads=("rl.rounds", "rl.batch_size", "rl.keep_from"),
    examples="trajectories",
    find_examples=best_trajectories,
    make_trainer=make_trainer,
    restarts=True,
)
