"""Policy back ends: token ids in, one assistant turn's token ids out.

The rollout engine runs every trajectory as a task of its own and awaits `generate` turn by turn; a back end decides how requests
are batched. `TransformersGenerator` batches whatever is waiting once no trajectory can go on without it, so a trajectory
whose tool is slow joins a later batch and holds nobody up. vLLM's (`vllm_generation`, `vllm_server`) take the same protocol.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from peft import PeftModel
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class TurnRequest:
    """One assistant turn to generate. `temperature` 0 is greedy; `seed` fixes the samples whatever else is in the batch."""

    token_ids: list[int]
    max_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True)
class GeneratedTurn:
    """At most `max_tokens` token ids, ending with the end-of-turn token if the policy ended the turn itself.

    `logprobs_T` are theirs under the distribution that they were drawn from (a greedy turn's at temperature 1), one a token; None
    from a back end that computes with the trainer's own model.
    """

    token_ids: list[int]
    logprobs_T: list[float] | None = None


class Generator(Protocol):
    async def generate(self, request: TurnRequest) -> GeneratedTurn:
        """The turn that the policy goes on with."""


class TransformersGenerator:
    """Batches concurrent requests into `model.generate` calls of at most `batch_size` rows."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch_size: int):
        self.model = model
        self.pad_id = tokenizer.pad_token_id
        self.eos_id = tokenizer.eos_token_id
        self.batch_size = batch_size
        self._waiting: list[tuple[TurnRequest, asyncio.Future]] = []
        self._flusher: asyncio.Task | None = None

    async def generate(self, request: TurnRequest) -> GeneratedTurn:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush())
        return await future

    async def _flush(self) -> None:
        seen = 0
        while seen < len(self._waiting):  # until nobody who could still ask does
            seen = len(self._waiting)
            await asyncio.sleep(0)
        batch = [(request, future) for request, future in self._waiting if not future.done()]  # who was cancelled no longer waits
        self._waiting = []
        try:
            turns = self._generate_all([request for request, _ in batch])
        except Exception as error:  # every waiting trajectory must learn of it, or the rollout would hang
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), turn in zip(batch, turns, strict=True):
            future.set_result(GeneratedTurn(turn))

    def _generate_all(self, requests: list[TurnRequest]) -> list[list[int]]:
        """Longest prompts first, so that a batch holds rows of like length."""
        order = sorted(range(len(requests)), key=lambda row: -len(requests[row].token_ids))
        turns: list[list[int]] = [[] for _ in requests]
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            for row, turn in zip(rows, self._generate_batch([requests[row] for row in rows]), strict=True):
                turns[row] = turn
        return turns

    @torch.no_grad()
    def _generate_batch(self, requests: list[TurnRequest]) -> list[list[int]]:
        longest = max(len(request.token_ids) for request in requests)
        device = self.model.device
        input_ids = torch.tensor([[self.pad_id] * (longest - len(r.token_ids)) + r.token_ids for r in requests], device=device)
        attention_mask = torch.tensor([[0] * (longest - len(r.token_ids)) + [1] * len(r.token_ids) for r in requests], device=device)
        max_tokens = max(request.max_tokens for request in requests)
        with _without_own_generation_config(self.model):
            output = self.model.generate(
                input_ids=input_ids,
                attention_mask=attention_mask,
                generation_config=GenerationConfig(
                    max_new_tokens=max_tokens, do_sample=False, eos_token_id=self.eos_id, pad_token_id=self.pad_id, use_cache=True
                ),
                logits_processor=LogitsProcessorList([PerRowSampling(requests, max_tokens, longest, device)]),
                synced_gpus=False,  # the default under ZeRO-3 keeps processes in step token by token: one with fewer turns would hold all up
            )
        return [self._cut(row, request) for row, request in zip(output[:, longest:].tolist(), requests, strict=True)]

    def _cut(self, token_ids: list[int], request: TurnRequest) -> list[int]:
        token_ids = token_ids[: request.max_tokens]
        return token_ids[: token_ids.index(self.eos_id) + 1] if self.eos_id in token_ids else token_ids


@contextmanager
def _without_own_generation_config(model: PreTrainedModel | PeftModel) -> Iterator[None]:
    """`generate` takes what it is not told (repetition_penalty, suppress_tokens, …) from the model's own, which goes on to be saved with it."""
    model = model.get_base_model() if isinstance(model, PeftModel) else model
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


class PerRowSampling(LogitsProcessor):
    """Greedy and sampled rows in one batch, each row with its own random numbers.

    For a sampled row the inverse of the cumulative distribution at temperature T picks the token from one uniform number a
    position, drawn from the row's seed; all other logits become -inf, so greedy search then takes it. What a row samples does
    not depend on who shares its batch.
    """

    def __init__(self, requests: list[TurnRequest], max_tokens: int, prompt_length: int, device: torch.device):
        self.prompt_length = prompt_length
        self.rows = torch.tensor([row for row, request in enumerate(requests) if request.temperature > 0], dtype=torch.long, device=device)
        sampled = [request for request in requests if request.temperature > 0]
        self.temperatures = torch.tensor([request.temperature for request in sampled], device=device)[:, None]
        draws = [np.random.Generator(np.random.Philox(request.seed)).random(max_tokens, dtype=np.float32) for request in sampled]
        self.uniforms = torch.from_numpy(np.stack(draws)).to(device) if draws else None

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        if self.uniforms is None:
            return scores
        position = input_ids.shape[1] - self.prompt_length
        cumulative = torch.softmax(scores[self.rows].float() / self.temperatures, dim=-1).cumsum(dim=-1)
        targets = self.uniforms[:, position, None] * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, targets, right=True).clamp(max=scores.shape[-1] - 1)
        chosen = torch.full_like(scores[self.rows], -torch.inf).scatter_(1, tokens, 0.0)
        scores = scores.clone()
        scores[self.rows] = chosen
        return scores
