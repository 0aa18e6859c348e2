"""PPO (arXiv 1707.06347; 3.2.2, AgentGym-RL): one advantage per token, from a critic instead of the group.

`rl.advantage: gae`, with `rl.discount`, `rl.gae_lambda` and `rl.critic_learning_rate`. Uses the GRPO trainer with its
clipped loss and KL term, because TRL's PPOTrainer supports neither turns nor masks of the policy's tokens. A time step
is one of the policy's own tokens; observations lie between two steps. The reward comes with the last token.
"""

from typing import Any

from arenarl.config.schema import Config
from arenarl.training.methods.method import Advantages, GRPOTrainer, OnlineMethod, Tensor


def generalized_advantages(
    rewards_B: Tensor, values_BT: Tensor, own_BT: Tensor, discount: float, gae_lambda: float
) -> Tensor:
    """Return advantages (B, T): A_t = delta_t + discount lambda A_t' with delta_t = r_t + discount V_t' - V_t.

    t' is the policy's next own token; r_t is the trajectory's reward at its last own token, else 0. Other tokens have
    advantage 0. Eqs. 11 and 12, PPO.

    >>> import torch
    >>> generalized_advantages(torch.tensor([1.0]), torch.tensor([[0.5, 9.0, 0.25]]),
    ...                        torch.tensor([[1, 0, 1]]), 1.0, 0.5)
    tensor([[0.1250, 0.0000, 0.7500]])
    """
    advantages_BT = values_BT.new_zeros(values_BT.shape)
    reward, value, advantage = rewards_B, rewards_B.new_zeros(len(rewards_B)), rewards_B.new_zeros(len(rewards_B))
    for t in reversed(range(values_BT.shape[1])):  # value and advantage belong to the next own token
        is_own = own_BT[:, t].bool()
        at_t = reward + discount * value - values_BT[:, t] + discount * gae_lambda * advantage
        advantages_BT[:, t] = at_t.where(is_own, 0.0)
        reward, value, advantage = reward * ~is_own, values_BT[:, t].where(is_own, value), at_t.where(is_own, advantage)
    return advantages_BT


def make_advantages(trainer: GRPOTrainer, policy: str, config: Config, *_: Any) -> Advantages:
    """Return a function that computes whitened advantages (B, T) and then trains the critic on the batch.

    A trajectory without a reward has advantage 0, and the critic is not trained on it.
    """
    from arenarl.training.critic import Critic, mean_of, whiten
    from arenarl.training.trl_internals import Rows, step_metrics

    rl, critic = config.rl, Critic(policy, config.policy, config.rl, trainer.accelerator)
    trainer.critic = critic
    trainer.add_callback(critic)

    def advantages(batch: dict[str, Any], rewards_B: Tensor) -> Tensor:
        own_BT = batch["completion_mask"] * batch["tool_mask"] * rewards_B.isfinite()[:, None]
        rows = Rows.of(batch, own_BT)
        values_BT = critic.values(rows)
        advantages_BT = generalized_advantages(rewards_B.nan_to_num(), values_BT, own_BT, rl.discount, rl.gae_lambda)
        metrics = step_metrics(trainer)
        metrics["critic/value"].append(mean_of(values_BT, own_BT, trainer.accelerator).item())
        metrics["critic/error"].append(critic.fit(rows, advantages_BT + values_BT))
        return whiten(advantages_BT, own_BT, trainer.accelerator)

    return advantages


METHOD = OnlineMethod(
    title="PPO",
    keys={"rl.advantage": "gae"},
    requires={"rl.deepspeed": (None,), "rl.importance_sampling_level": ("token",)},
    excludes={"rl.loss_type": ("dr_grpo",)},
    reads=("rl.discount", "rl.gae_lambda", "rl.critic_learning_rate"),
    learns_from_equal=True,
    make_advantages=make_advantages,
)
