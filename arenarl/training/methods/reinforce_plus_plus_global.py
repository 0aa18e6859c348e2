"""REINFORCE++ (arXiv 2501.03262; 5.2, AgentGym-RL) without a group baseline: the reward, standardised over the step.

`rl.advantage: global_std`. Mean and standard deviation are over the policy's own tokens of all trajectories of the
step, so a long trajectory weighs more. Departs from REINFORCE++: KL is a term of the loss, not of the reward.
"""

from typing import Any

from arenarl.training.methods.method import Advantages, GRPOTrainer, OnlineMethod, Tensor


def make_advantages(trainer: GRPOTrainer, *_: Any) -> Advantages:
    """Return a function that computes advantages (B, T); a trajectory without a reward has 0 and does not count."""
    from arenarl.training.critic import whiten

    def advantages(batch: dict[str, Any], rewards_B: Tensor) -> Tensor:
        own_BT = batch["completion_mask"] * batch["tool_mask"] * rewards_B.isfinite()[:, None]
        return whiten(rewards_B.nan_to_num()[:, None] * own_BT, own_BT, trainer.accelerator)

    return advantages


METHOD = OnlineMethod(
    title="REINFORCE++",
    keys={"rl.advantage": "global_std"},
    requires={"rl.importance_sampling_level": ("token",)},
    excludes={"rl.loss_type": ("dr_grpo",)},
    learns_from_equal=True,
    make_advantages=make_advantages,
)
