"""DPO (arXiv 2305.18290; 3.2.2, AgentGym-RL), offline in rounds: pairs from the groups' tournaments.

`rl.method: dpo`, `rl.rounds`, `rl.batch_size`, `rl.dpo_beta`. TRL's DPOTrainer computes Eq. 7,
-log sigmoid(beta (log-ratio of the winner - log-ratio of the loser)), over the policy's own tokens. Departs from the
paper: each round starts from the previous round's policy, which is also its reference policy.

With beta .1, a winner that became e^2 times as likely, and a loser that became e^-1 times as likely:

>>> import math
>>> round(-math.log(1 / (1 + math.exp(-0.1 * (2 - -1)))), 4)
0.5544
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arenarl.config.schema import Config, RLConfig
from arenarl.training.methods.method import Example, OfflineMethod, Trainer, offline_arguments
from arenarl.training.rewards.group import GroupOutcome
from arenarl.trajectory import RolloutGroup


def preference_pairs(group: RolloutGroup, outcome: GroupOutcome, rl: RLConfig | None = None) -> Iterator[Example]:
    """Yield winner and loser of each match whose verdicts in both orders agree; masks are 1 on the policy's own tokens.

    Trajectories with different prompts, from an environment whose first observations differ, make no pair.
    """
    for match in outcome.ranking.matches if outcome.ranking else []:
        if match.agreed is None:
            continue
        chosen, rejected = (group.trajectories[row] for row in match.agreed)
        if chosen.prompt_ids == rejected.prompt_ids:
            yield {
                "prompt_ids": chosen.prompt_ids,
                "chosen_ids": chosen.completion_ids,
                "chosen_mask": chosen.policy_mask_T,
                "rejected_ids": rejected.completion_ids,
                "rejected_mask": rejected.policy_mask_T,
            }


def make_trainer(config: Config, policy: str, pairs: list[Example], folder: Path, tokenizer: Any) -> Trainer:
    """Return TRL's DPOTrainer; its reference policy is the starting policy (with LoRA, the model without the
    adapter)."""
    from datasets import Dataset
    from trl import DPOConfig

    from arenarl.rollout.policy import lora_config
    from arenarl.run.trainer_arguments import on_one_gpu
    from arenarl.training.trl_internals import OwnTokensDPOTrainer, OwnTokensPairs

    arguments = offline_arguments(config, folder, trajectories=2)
    return OwnTokensDPOTrainer(
        model=policy,
        args=on_one_gpu(DPOConfig(**arguments, beta=config.rl.dpo_beta, remove_unused_columns=False)),
        train_dataset=Dataset.from_list(pairs),
        processing_class=tokenizer,
        data_collator=OwnTokensPairs(tokenizer.pad_token_id),
        peft_config=lora_config(config.policy.lora_rank),
    )


METHOD = OfflineMethod(
    title="DPO",
    keys={"rl.method": "dpo"},
    requires={"tournament.bidirectional": (True,), "rollout.backend": ("transformers",), "rl.deepspeed": (None,)},
    reads=("rl.rounds", "rl.batch_size", "rl.dpo_beta"),
    needs_matches=True,
    examples="pairs",
    find_examples=preference_pairs,
    make_trainer=make_trainer,
)
