"""Does vLLM compute what the trainer computes? If not, RL learns from the tokens of another policy than the one it
updates.

On a few fixed prompts vLLM generates greedily; the trainer reads the same tokens. Both tell each token's logprob at
temperature 1, and whether it is the most likely one. Token ids go in and come out, so no tokenizer and no chat template
can come between the two.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from arenarl.rollout.generation import Generator, TurnRequest, run_turns
from arenarl.system.errors import GO_ON, UserError

PROMPTS, TOKENS = 4, 32  # queries, and tokens of each at most: enough for a mean, a second's work for 8B


@dataclass(frozen=True)
class Parity:
    """Absolute differences of logprobs in nats over all tokens;
    the share of vLLM's greedy tokens that the trainer would choose too."""

    max_difference: float
    mean_difference: float
    equal_greedy: float

    @property
    def metrics(self) -> dict[str, float]:
        return {
            "parity/max_difference": self.max_difference,
            "parity/mean_difference": self.mean_difference,
            "parity/equal_greedy": self.equal_greedy,
        }


def measure_parity(
    generator: Generator, model: PreTrainedModel, prompts: Sequence[list[int]], max_tokens: int = TOKENS
) -> Parity:
    """vLLM's greedy turns on the prompts against the model's own figures for them.
    Under ZeRO-3 all processes take part."""

    async def generate():
        return await asyncio.gather(
            *(generator.generate(TurnRequest(prompt, max_tokens, 0.0, 0)) for prompt in prompts)
        )

    differences, equal = [], []
    for prompt, turn in zip(prompts, run_turns(generator, generate()), strict=True):
        logprobs_TV = _logprobs(model, prompt, turn.token_ids)
        tokens_T = torch.tensor(turn.token_ids, device=logprobs_TV.device)
        theirs_T = torch.tensor(turn.logprobs_T, device=logprobs_TV.device)
        differences.append((logprobs_TV.gather(1, tokens_T[:, None])[:, 0] - theirs_T).abs())
        equal.append(logprobs_TV.argmax(dim=1) == tokens_T)
    difference_T = torch.cat(differences)
    return Parity(difference_T.max().item(), difference_T.mean().item(), torch.cat(equal).float().mean().item())


@torch.no_grad()
def _logprobs(model: PreTrainedModel, prompt: list[int], token_ids: list[int]) -> torch.Tensor:
    """(T, V): the model's logprobs, at temperature 1, of every token that could stand where `token_ids` (T,) do."""
    was_training = model.training
    model.eval()
    input_ids = torch.tensor([prompt + token_ids], device=model.device)
    logits = model(input_ids=input_ids, use_cache=False, logits_to_keep=len(token_ids) + 1).logits
    model.train(was_training)
    return torch.log_softmax(logits[0, :-1].float(), dim=-1)


def require_parity(parity: Parity, first: Parity | None, bound: float, step: int, is_tied: bool) -> None:
    """Raises UserError if the mean difference is above the bound.
    `first` is what the first check of this process found."""
    if parity.mean_difference <= bound:
        return
    raise UserError(
        f"vLLM and the trainer disagree at step {step}: logprobs differ by {parity.mean_difference:.3g} nats a token "
        f"(rollout.parity_bound={bound:g}), at most {parity.max_difference:.3g}, {parity.equal_greedy:.0%} of the "
        f"greedy tokens are equal. {_likely_cause(parity, first, is_tied)}; {GO_ON}"
    )


def _likely_cause(parity: Parity, first: Parity | None, is_tied: bool) -> str:
    """What the figures point to: a cause that was there from the start, or one that came with the updates."""
    if not math.isfinite(parity.mean_difference):
        return (
            "A logprob is not a number: most likely the weights overflowed; "
            "go back to an earlier checkpoint with a lower learning rate"
        )
    if first is None and parity.equal_greedy < 0.5:
        return (
            "From the start, with other tokens: most likely vLLM holds another model than the trainer, "
            "or its weights were never synced"
        )
    if first is None:
        return (
            "From the start, with the same tokens: most likely the same weights in another precision; "
            "keep policy.dtype and vLLM's dtype equal, or raise rollout.parity_bound if the difference stays as it is"
        )
    tied = ", or of the tied embeddings only one copy" if is_tied else ""
    return (
        f"It began with {first.mean_difference:.3g}: most likely updated weights did not reach vLLM{tied}; "
        "start the run (and a vLLM server) again, and use the versions of requirements.txt and docs/paper_scale.md"
    )
