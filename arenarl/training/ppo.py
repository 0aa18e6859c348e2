"""PPO (arXiv 1707.06347; 3.2.2, AgentGym-RL): advantages token by token, from a critic, in place of those in the group.

TRL's own PPOTrainer makes one completion a prompt and scores it with a reward model: it knows neither turns nor what in
a trajectory is not the policy's. So this is the trainer of all other methods, with its clipped loss and its KL term,
whose advantages are (B, T). Time runs over the policy's own tokens; what its tools returned lies between two of them.
The reward comes with the last.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from arenarl.config.schema import Config
from arenarl.training.critic import Critic
from arenarl.training.own_tokens import OwnTokensTrainer, Rows


class PPOTrainer(OwnTokensTrainer):
    """`config.rl` says how far ahead the critic counts, and how it learns; it is in the checkpoints."""

    def __init__(self, *, model: str, config: Config, **options: Any):
        super().__init__(model=model, **options)
        self.rl, self.critic = config.rl, Critic(model, config.policy, config.rl, self.accelerator)
        self.add_callback(CriticKept(self.critic))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's batch; a trajectory without a reward has no advantage, and the critic does not learn of it."""
        batch = super()._generate_and_score_completions(inputs)
        token_ids, mask = (
            torch.cat([batch[f"prompt_{what}"], batch[f"completion_{what}"]], dim=1) for what in ("ids", "mask")
        )
        own_BT = batch["completion_mask"] * batch["tool_mask"] * self._rewards_B.isfinite()[:, None]
        rows, rewards_B = Rows(token_ids, mask, own_BT), self._rewards_B.nan_to_num()
        values_BT = self.critic.values(rows)
        advantages_BT = generalized_advantages(rewards_B, values_BT, own_BT, self.rl.discount, self.rl.gae_lambda)
        batch["advantages"] = self._whitened(advantages_BT, own_BT)
        metrics = self._metrics["train"]
        metrics["critic/value"].append(self._mean(values_BT, own_BT).item())
        metrics["critic/error"].append(self.critic.fit(rows, advantages_BT + values_BT))
        return batch

    def _whitened(self, values_BT: torch.Tensor, own_BT: torch.Tensor) -> torch.Tensor:
        """Less their mean, by their standard deviation, over the own tokens of all processes; 0 elsewhere."""
        centered = values_BT - self._mean(values_BT, own_BT)
        return centered / (self._mean(centered.square(), own_BT).sqrt() + 1e-8) * own_BT

    def _mean(self, values_BT: torch.Tensor, own_BT: torch.Tensor) -> torch.Tensor:
        total, count = self.accelerator.reduce(
            torch.stack([(values_BT * own_BT).sum(), own_BT.sum().to(values_BT.dtype)])
        )
        return total / count.clamp(min=1)


def generalized_advantages(
    rewards_B: torch.Tensor, values_BT: torch.Tensor, own_BT: torch.Tensor, discount: float, gae_lambda: float
) -> torch.Tensor:
    """(B, T), 0 where a token is not the policy's own: A_t = delta_t + discount lambda A_t', delta_t = r_t + discount
    V_t' - V_t, where t' is the next own token, and r_t the reward of the trajectory (B,) at its last. Eqs. 11 and 12,
    PPO.

    >>> generalized_advantages(torch.tensor([1.0]), torch.tensor([[0.5, 9.0, 0.25]]),
    ...                        torch.tensor([[1, 0, 1]]), 1.0, 0.5)
    tensor([[0.1250, 0.0000, 0.7500]])
    """
    advantages_BT = torch.zeros_like(values_BT)
    reward, value, advantage = rewards_B, torch.zeros_like(rewards_B), torch.zeros_like(rewards_B)  # of what comes next
    for t in reversed(range(values_BT.shape[1])):
        is_own = own_BT[:, t].bool()
        found = reward + discount * value - values_BT[:, t] + discount * gae_lambda * advantage
        advantages_BT[:, t] = torch.where(is_own, found, 0.0)
        reward, value, advantage = (
            reward * ~is_own,
            torch.where(is_own, values_BT[:, t], value),
            torch.where(is_own, found, advantage),
        )
    return advantages_BT


class CriticKept(TrainerCallback):
    """Saves the critic in every checkpoint, and goes on from there."""

    def __init__(self, critic: Critic):
        self.critic = critic

    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            self.critic.save(_checkpoint(args, state))

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step:
            self.critic.load(_checkpoint(args, state))


def _checkpoint(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
