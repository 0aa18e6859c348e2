"""Log-probabilities of the policy's own tokens, without the padding, the prompts and the observations around them.

TRL reads every row of a step padded to the longest prompt and the longest completion, and on a CPU computes the logits
of all positions. Losses and metrics look at the policy's own tokens alone: of these the figures here are TRL's, of all
others 0.
"""

from dataclasses import dataclass
from typing import Any

import torch
from trl import GRPOTrainer

from arenarl.rollout.attention import prepare_attention
from arenarl.training.fused_head import score_labels_only

ROWS_AT_ONCE = 8  # of like length: more fill the matrix products, fewer are padded less. Our choice


@dataclass(frozen=True)
class Rows:
    """A step's trajectories as TRL lays them out, (B, L):
    prompts padded on the left, then completions of at most T tokens.

    `own_BT` is 1 on a completion's tokens that are the policy's own.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    own_BT: torch.Tensor

    def __getitem__(self, rows: torch.Tensor) -> "Rows":
        return Rows(self.input_ids[rows], self.attention_mask[rows], self.own_BT[rows])

    def by_length(self, at_most: int) -> tuple[torch.Tensor, ...]:
        """Which rows are read together, of like length."""
        return self.attention_mask.sum(dim=1).argsort(stable=True).split(min(at_most, ROWS_AT_ONCE))

    def unpadded(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(token ids from each row's first on, which of them are own,
        where the token before each of the T stands in them: (B, T)).

        They need no mask: padding comes behind a row's end, where causal attention does not see it.
        """
        length, prompt = self.input_ids.shape[1], self.input_ids.shape[1] - self.own_BT.shape[1]
        starts_B1, longest = self.attention_mask.argmax(dim=1, keepdim=True), int(self.attention_mask.sum(dim=1).max())
        columns = (starts_B1 + torch.arange(longest, device=self.input_ids.device)).clamp(max=length - 1)
        is_own = torch.nn.functional.pad(self.own_BT, (prompt, 0)).gather(1, columns).bool()
        places = (torch.arange(prompt, length, device=self.input_ids.device) - starts_B1 - 1).clamp(max=longest - 2)
        return self.input_ids.gather(1, columns), is_own, places


class OwnTokensTrainer(GRPOTrainer):
    """`GRPOTrainer` that computes log-probabilities, its own and the reference's, where the rollout's `env_mask` is 1.

    Steps without an `env_mask`, models of images and losses that experts share are TRL's own affair.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        prepare_attention()
        score_labels_only()
        self._own_BT: torch.Tensor | None = None  # of the rows whose log-probabilities are asked for next
        super().__init__(*args, **kwargs)

    def _generate(self, prompts: list[Any]) -> tuple:
        generated = super()._generate(prompts)
        _, _, env_mask, *_ = generated
        self._own_BT = _padded(env_mask, self.accelerator.device) if env_mask is not None else None
        return generated

    def _calculate_rewards(self, inputs: list[dict[str, Any]], *of_completions: Any) -> torch.Tensor:
        """Keeps this process's own rewards, the first column, for methods whose advantages are not TRL's."""
        rewards = super()._calculate_rewards(inputs, *of_completions)
        first = self.accelerator.process_index * len(inputs)
        self._rewards_B = rewards[first : first + len(inputs), 0]
        return rewards

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        self._own_BT = inputs["completion_mask"] * inputs["tool_mask"] if "tool_mask" in inputs else None
        return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **of_images: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """(B, T) log-probabilities and entropies of completions of T tokens, 0 where the token is not the policy's own.

        Args:
            input_ids: (B, L), prompts padded on the left, completions on the right; `attention_mask` alike.
        """
        if self._own_BT is None or compute_aux_loss or any(value is not None for value in of_images.values()):
            return super()._get_per_token_logps_and_entropies(
                model,
                input_ids,
                attention_mask,
                logits_to_keep,
                batch_size,
                compute_entropy,
                compute_aux_loss,
                **of_images,
            )
        rows, parts = Rows(input_ids, attention_mask, self._own_BT), []
        order = rows.by_length(batch_size or len(input_ids))  # as many on each process: under ZeRO-3 they go in step
        for together in order:
            with self.accelerator.autocast():
                parts.append(_score(model, rows[together]))
        back = torch.cat(order).argsort()
        log_probs, entropies = zip(*parts, strict=True)
        return torch.cat(log_probs)[back], torch.cat(entropies)[back] if compute_entropy else None, None


class PlainRewardsTrainer(OwnTokensTrainer):
    """Its advantages are the rewards as they are, 0 without one (BRPO); TRL would take off the group's mean."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        batch["advantages"] = self._rewards_B.nan_to_num().to(batch["advantages"])
        return batch


def _score(model: Any, rows: Rows) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(B, T) log-probabilities, and entropies if the model's head computes them."""
    token_ids, is_own, places = rows.unpadded()
    outputs = model(input_ids=token_ids, labels=token_ids.masked_fill(~is_own, -100), fused_lm_head=True)

    def laid_out(values: torch.Tensor | None) -> torch.Tensor | None:
        return None if values is None else values.gather(1, places) * rows.own_BT

    return laid_out(outputs.log_probs), laid_out(outputs.entropy)


def _padded(masks: list[list[int]], device: torch.device) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(mask) for mask in masks], batch_first=True).to(device)
