"""Private parts of TRL and the libraries below it that RL uses; `sft_internals` has the parts that SFT uses.

An upgrade of TRL changes only these two files. tests/training/test_trl_internals.py holds the results equal to TRL's,
and names each overridden part that an upgrade has changed. Gains in CPU seconds of loss and backward pass, measured
with the quickstart's policy and trajectories:

- `OwnTokensTrainer`: log-probabilities without padding to the longest prompt and the longest completion: GRPO on 32
  rows takes 0.28 s instead of 0.83. It also accepts the advantages of methods that TRL's formula does not cover, and
  balances micro-batches over the processes.
- `OwnTokensDPOTrainer`: no attention mask, as in `RightPaddedTrainer`, and the loss only on the policy's own tokens,
  for which TRL has no option.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import Trainer
from trl import DPOTrainer, GRPOTrainer
from trl.trainer.dpo_trainer import DataCollatorForPreference

from arenarl.rollout.engine import RolloutEngine
from arenarl.training.sft_internals import lent_model, prepare

# rows of similar length per forward pass on a CPU: more rows use it better, fewer rows need less padding. Our choice
ROWS_AT_ONCE = 8
TOKENS_AT_ONCE = 16_384  # tokens per forward pass on a GPU, padding included; a longer row is a pass of its own


@dataclass(frozen=True)
class Rows:
    """A step's trajectories in TRL's layout (B, L): prompts padded on the left, then completions of at most T tokens.

    `own_BT` is 1 on the completion tokens that the policy generated.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    own_BT: torch.Tensor

    @classmethod
    def of(cls, batch: dict[str, Any], own_BT: torch.Tensor) -> "Rows":
        parts = (torch.cat([batch[f"prompt_{what}"], batch[f"completion_{what}"]], dim=1) for what in ("ids", "mask"))
        return cls(*parts, own_BT)

    def __getitem__(self, rows: torch.Tensor) -> "Rows":
        return Rows(self.input_ids[rows], self.attention_mask[rows], self.own_BT[rows])

    def by_length(self, at_most: int) -> tuple[torch.Tensor, ...]:
        """Return batches of row indices; the rows of a batch have similar lengths."""
        return self.attention_mask.sum(dim=1).argsort(stable=True).split(min(at_most, ROWS_AT_ONCE))

    def by_tokens(self, at_most: int) -> list[torch.Tensor]:
        """Return batches of at most `at_most` row indices and `TOKENS_AT_ONCE` tokens. All processes call it together
        and get equally many batches, because ZeRO-3 gathers weights in every pass."""
        lengths_B = self.attention_mask.sum(dim=1)
        order = lengths_B.argsort(stable=True)
        sizes: list[int] = []
        for length in lengths_B[order].tolist():
            if sizes and sizes[-1] < at_most and (sizes[-1] + 1) * length <= TOKENS_AT_ONCE:
                sizes[-1] += 1
            else:
                sizes.append(1)
        for _ in range(max(gather_object([len(sizes)])) - len(sizes)):
            place = sizes.index(max(sizes))
            sizes[place : place + 1] = [sizes[place] // 2, sizes[place] - sizes[place] // 2]
        return list(order.split(sizes))

    def unpadded(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return token ids without left padding, a mask of the policy's tokens among them, and places (B, T).

        The places index the token before each of the T completion tokens. The ids need no attention mask: padding
        follows a row's end, where causal attention does not see it.
        """
        length, prompt = self.input_ids.shape[1], self.input_ids.shape[1] - self.own_BT.shape[1]
        starts_B1, longest = self.attention_mask.argmax(dim=1, keepdim=True), int(self.attention_mask.sum(dim=1).max())
        columns = (starts_B1 + torch.arange(longest, device=self.input_ids.device)).clamp(max=length - 1)
        is_own = torch.nn.functional.pad(self.own_BT, (prompt, 0)).gather(1, columns).bool()
        places = (torch.arange(prompt, length, device=self.input_ids.device) - starts_B1 - 1).clamp(max=longest - 2)
        return self.input_ids.gather(1, columns), is_own, places


class OwnTokensTrainer(GRPOTrainer):
    """`GRPOTrainer` that computes log-probabilities only for the policy's own tokens, where `env_mask` is 1.

    Losses and metrics use only these tokens, so they equal TRL's; other tokens get 0. Steps without an `env_mask`,
    image models and the auxiliary loss of mixtures of experts use TRL's own code.
    """

    # (batch, rewards (B,) with NaN for none) -> advantages (B,) or (B, T), in place of TRL's
    advantages: Callable[[dict[str, Any], torch.Tensor], torch.Tensor] | None = None
    balances_micro_batches = False
    cuts_by_tokens = torch.cuda.is_available()  # else by ROWS_AT_ONCE

    def __init__(self, **options: Any):
        prepare()
        self._own_BT: torch.Tensor | None = None  # for the next call of _get_per_token_logps_and_entropies
        super().__init__(**options)

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """Return TRL's micro-batch. After a rollout, balance each update's micro-batches if the config says so."""
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if not self.balances_micro_batches or self._buffered_inputs is before:
            return inputs
        batches, per_update = self._buffered_inputs, self.args.gradient_accumulation_steps
        updates = [batches[first : first + per_update] for first in range(0, len(batches), per_update)]
        self._buffered_inputs = [batch for update in updates for batch in balance(update, self.accelerator)]
        return self._buffered_inputs[self._step % len(batches)]

    def _generate(self, prompts: list[Any]) -> tuple:
        generated = super()._generate(prompts)
        env_mask = generated[2]
        self._own_BT = None
        if env_mask is not None:
            masks = [torch.tensor(mask) for mask in env_mask]
            self._own_BT = torch.nn.utils.rnn.pad_sequence(masks, batch_first=True).to(self.accelerator.device)
        return generated

    def _calculate_rewards(self, inputs: list[dict[str, Any]], *of_completions: Any) -> torch.Tensor:
        """Store this process's rewards, the first column, for methods that compute their own advantages."""
        rewards = super()._calculate_rewards(inputs, *of_completions)
        first = self.accelerator.process_index * len(inputs)
        self._rewards_B = rewards[first : first + len(inputs), 0]
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        if "importance_sampling_ratio" in batch:
            self._log_clipped_share(batch)
        if self.advantages:
            batch["advantages"] = self.advantages(batch, self._rewards_B)
        return batch

    def _log_clipped_share(self, batch: dict[str, Any]) -> None:
        """Log the share of the policy's own tokens whose importance ratio TRL clamps; TRL logs the ratio's mean."""
        ratio_BT = (batch["old_per_token_logps"] - batch["sampling_per_token_logps"]).exp()  # NaN without a logprob
        own_BT = batch["completion_mask"] * batch["tool_mask"]
        is_clipped = (ratio_BT > self.vllm_importance_sampling_clip_max) & own_BT.bool()
        clipped, tokens = self.accelerator.reduce(torch.stack([is_clipped.sum(), own_BT.sum()])).tolist()
        step_metrics(self)["sampling/importance_sampling_ratio/clipped"].append(clipped / max(tokens, 1))

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        self._own_BT = inputs["completion_mask"] * inputs["tool_mask"] if "tool_mask" in inputs else None
        return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int,
        batch_size: int | None = None, compute_entropy: bool = False, compute_aux_loss: bool = False, **of_images: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, None]:  # fmt: skip
        """Return log-probabilities and entropies (B, T) of the completions, 0 for tokens that are not the policy's own.
        Ids and mask are (B, L): prompts padded on the left, completions on the right."""
        if self._own_BT is None or compute_aux_loss or any(value is not None for value in of_images.values()):
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, compute_aux_loss,
                **of_images,
            )  # fmt: skip
        rows, parts = Rows(input_ids, attention_mask, self._own_BT), []
        at_most = batch_size or len(input_ids)  # both cut an equal number on all processes, as ZeRO-3 requires
        order = rows.by_tokens(at_most) if self.cuts_by_tokens else rows.by_length(at_most)
        for batch in order:
            with self.accelerator.autocast():
                parts.append(_score(model, rows[batch]))
        back = torch.cat(order).argsort()
        log_probs, entropies = zip(*parts, strict=True)
        return torch.cat(log_probs)[back], torch.cat(entropies)[back] if compute_entropy else None, None


def balance(batches: Sequence[dict[str, Any]], accelerator: Accelerator) -> list[dict[str, Any]]:
    """Distribute the rows of an update's micro-batches over all processes again. All must call it together.

    A process waits for the others after each micro-batch. So the rows are sorted by length, longest first, and dealt to
    the processes in turn, alternately forwards and backwards. The update stays equal: it is a sum over all rows, and
    TRL's advantages are already computed.
    """
    count, processes = len(batches), accelerator.num_processes

    def of_all_processes(name: str) -> Any:
        values = [batch[name] for batch in batches]
        if values[0] is None or values[0].ndim == 0:  # equal in all micro-batches
            return values[0]
        rows = torch.cat(values)
        return accelerator.gather(accelerator.pad_across_processes(rows, 1, pad_first=name.startswith("prompt")))

    rows = {name: of_all_processes(name) for name in batches[0]}
    order = (rows["prompt_mask"].sum(1) + rows["completion_mask"].sum(1)).argsort(descending=True, stable=True)
    dealt = order.view(count, -1, processes)
    dealt[:, 1::2] = dealt[:, 1::2].flip(-1)
    return [
        {name: value if value is None or value.ndim == 0 else value[own] for name, value in rows.items()}
        for own in dealt[:, :, accelerator.process_index]
    ]


def _score(model: Any, rows: Rows) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return log-probabilities (B, T), and entropies if the model's head computes them."""
    token_ids, is_own, places = rows.unpadded()
    outputs = model(input_ids=token_ids, labels=token_ids.masked_fill(~is_own, -100), fused_lm_head=True)
    values = (outputs.log_probs, outputs.entropy)
    return tuple(None if value is None else value.gather(1, places) * rows.own_BT for value in values)


class OwnTokensPairs(DataCollatorForPreference):
    """Collates pairs with a completion mask that is 1 on the policy's own tokens and 0 on observations."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super().torch_call(examples)
        masks = [example[f"{which}_mask"] for which in ("chosen", "rejected") for example in examples]
        prompts = [len(example["prompt_ids"]) for example in examples] * 2
        for row, (prompt, mask) in enumerate(zip(prompts, masks, strict=True)):
            batch["completion_mask"][row, prompt : prompt + len(mask)] = torch.tensor(mask)
        return batch


class OwnTokensDPOTrainer(DPOTrainer):
    """`DPOTrainer` for tokenized pairs, without an attention mask unless the auxiliary loss of experts needs it."""

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        unmasked = inputs | {"attention_mask": torch.ones_like(inputs["attention_mask"])}
        return super().compute_loss(model, inputs if self.aux_loss_enabled else unmasked, *args, **kwargs)


def save_checkpoint(trainer: Trainer) -> None:
    """Save a checkpoint between steps, which TRL does only at the end of a step."""
    trainer._save_checkpoint(trainer.model, trial=None)
    trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)


def step_metrics(trainer: GRPOTrainer) -> dict[str, list[float]]:
    """Return the current step's metrics as lists of values; TRL logs their means."""
    return trainer._metrics["train"]


@contextmanager
def generating(engine: RolloutEngine, trainer: GRPOTrainer) -> Iterator[None]:
    """Give the engine the trainer's weights: vLLM or a second process receives a copy, the transformers back end in
    this process uses the model itself."""
    with trainer.generator_weights.in_use() if trainer.use_vllm else lent_model(engine, trainer):
        yield
