"""PPO's critic: predicts a trajectory's remaining reward before each of the policy's own tokens.

It is a copy of the policy with a value head in place of the output head, as in AgentGym-RL's PPO. It has its own
optimizer, so TRL's trainer of the policy stays unchanged. Each process has the whole critic.
"""

from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from transformers import TrainerCallback

from arenarl.config.schema import PolicyConfig, RLConfig
from arenarl.rollout.policy import freeze_unread_parts, load_model, lora_config
from arenarl.run.checkpoints import checkpoint_folder
from arenarl.training.trl_internals import Rows

FILE = "critic.pt"  # file in each checkpoint
SAME = 1e-6  # values that differ by this share at most are equal; float32 has 1.2e-7


class ValueHead(torch.nn.Linear):
    """A linear layer that stays in float32, because bfloat16 would round small updates to 0."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            return super().forward(hidden.float())


class Critic(TrainerCallback):
    """A value model with the weights of the policy at a path; the value head starts at 0.

    As a callback of the policy's trainer, it is saved in every checkpoint, and loaded when a run resumes.
    """

    def __init__(self, path: str, policy: PolicyConfig, rl: RLConfig, accelerator: Accelerator):
        self.rl, self.accelerator = rl, accelerator
        self.model = _with_value_head(path, policy).to(accelerator.device).train()
        self.base = self.model.get_base_model() if policy.lora_rank else self.model
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        for parameter in self.trained:  # LoRA starts at random, and TRL seeds each process differently
            parameter.data = broadcast(parameter.data)
        self.optimizer = torch.optim.AdamW(self.trained, lr=rl.critic_learning_rate, weight_decay=0.0)

    @torch.no_grad()
    def values(self, rows: Rows) -> torch.Tensor:
        """Return the value (B, T) of the state before each of the policy's own tokens; 0 elsewhere."""
        order = rows.by_length(self.rl.micro_batch_size)
        return torch.cat([self._values(rows[part]) for part in order])[torch.cat(order).argsort()]

    def fit(self, rows: Rows, returns_BT: torch.Tensor) -> float:
        """Take `rl.updates_per_rollout` optimizer steps towards the returns, each on an equal share of the rows.

        Returns the mean squared error of the steps, each measured before its update.
        """
        shares = torch.arange(len(returns_BT)).tensor_split(self.rl.updates_per_rollout)
        errors = [self._step(rows[share], returns_BT[share]) for share in shares]
        return sum(errors) / len(errors)

    def _step(self, rows: Rows, returns_BT: torch.Tensor) -> float:
        """Take a step on half the squared error, averaged over the policy's own tokens of all processes."""
        error = torch.zeros((), device=returns_BT.device)
        for part in rows.by_length(self.rl.micro_batch_size):
            squared = (self._values(rows[part]) - returns_BT[part] * rows.own_BT[part]).square().sum()
            (squared / 2).backward()
            error += squared.detach()
        tokens = self.accelerator.reduce(rows.own_BT.sum()).clamp(min=1)
        for parameter in self.trained:  # no gradient: an adapter of a layer that is never called, as Jamba's dt_proj
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = self.accelerator.reduce(gradient) / tokens
        torch.nn.utils.clip_grad_norm_(self.trained, self.rl.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return (self.accelerator.reduce(error) / tokens).item()

    def _values(self, rows: Rows) -> torch.Tensor:
        token_ids, _, places = rows.unpadded()
        with self.accelerator.autocast():
            hidden = self.base.base_model(input_ids=token_ids).last_hidden_state
            values = self.base.get_output_embeddings()(hidden)[..., 0]  # without the scale or cap of logits
        return values.float().gather(1, places) * rows.own_BT

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            states = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save(states, checkpoint_folder(args, state) / FILE)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step:
            path, device = checkpoint_folder(args, state) / FILE, self.accelerator.device
            states = torch.load(path, map_location=device, weights_only=True)
            self.model.load_state_dict(states["model"])
            self.optimizer.load_state_dict(states["optimizer"])


def _with_value_head(path: str, policy: PolicyConfig) -> torch.nn.Module:
    """Load the policy with a value head that starts at 0; with LoRA if the policy has it, except for the head."""
    model = load_model(path, policy.dtype)
    head = ValueHead(model.config.get_text_config().hidden_size, 1)
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    model.config.tie_word_embeddings = False
    model.set_output_embeddings(head)
    if policy.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    if policy.lora_rank:
        from peft import get_peft_model

        name = next(name for name, module in model.named_modules() if module is head)  # lm_head in most architectures
        model = get_peft_model(model, replace(lora_config(policy.lora_rank), modules_to_save=[name]))
    freeze_unread_parts(model)
    return model


def mean_of(values_BT: torch.Tensor, own_BT: torch.Tensor, accelerator: Accelerator) -> torch.Tensor:
    """Return the mean over the policy's own tokens of all processes."""
    total, count = accelerator.reduce(torch.stack([(values_BT * own_BT).sum(), own_BT.sum().to(values_BT.dtype)]))
    return total / count.clamp(min=1)


def whiten(values_BT: torch.Tensor, own_BT: torch.Tensor, accelerator: Accelerator) -> torch.Tensor:
    """Standardise values over the policy's own tokens of all processes; 0 elsewhere, and if all are equal.

    Values that float32 cannot tell apart are equal: their differences are rounding errors, which would become ±1.
    """
    is_own = own_BT.bool()
    bounds = torch.stack([-values_BT.where(is_own, torch.inf).min(), values_BT.where(is_own, -torch.inf).max()])
    low, high = (accelerator.gather(bounds).view(-1, 2).amax(0) * bounds.new_tensor([-1, 1])).tolist()
    if high - low <= SAME * max(abs(low), abs(high)):
        return torch.zeros_like(values_BT)
    centered = values_BT - mean_of(values_BT, own_BT, accelerator)
    return centered / (mean_of(centered.square(), own_BT, accelerator).sqrt() + 1e-8) * own_BT
