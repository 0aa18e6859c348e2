"""Policy back ends: token ids in, one assistant turn's token ids out.

The rollout engine runs every trajectory as a task of its own and awaits `generate` turn by turn; a back end decides how
requests are batched. `TransformersGenerator` batches whatever is waiting once no trajectory can go on without it, so a
trajectory whose tool is slow joins a later batch and holds nobody up. vLLM's (`vllm_generation`, `vllm_server`) take
the same protocol.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from arenarl.rollout.kv_cache import TrajectoryCache, can_be_kept, encode, encode_and_keep

Result = TypeVar("Result")
FULL_ENOUGH = 0.75  # share of a batch's rows that still generate, below which the others leave it. Our choice


@dataclass(frozen=True)
class TurnRequest:
    """One assistant turn to generate. `temperature` 0 is greedy;
    `seed` fixes the samples whatever else is in the batch.

    `cache` is the trajectory's: what a back end computed for a turn is there for the next.
    """

    token_ids: list[int]
    max_tokens: int
    temperature: float
    seed: int
    cache: TrajectoryCache = field(default_factory=TrajectoryCache, repr=False, compare=False)


@dataclass(frozen=True)
class GeneratedTurn:
    """At most `max_tokens` token ids, ending with the end-of-turn token if the policy ended the turn itself.

    `logprobs_T` are theirs under the distribution that they were drawn from (a greedy turn's at temperature 1), one a
    token; None from a back end that computes with the trainer's own model.
    """

    token_ids: list[int]
    logprobs_T: list[float] | None = None


class Generator(Protocol):
    async def generate(self, request: TurnRequest) -> GeneratedTurn:
        """The turn that the policy goes on with."""


def run_turns(generator: Generator, turns: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that awaits turns in an event loop of its own, with a shared generator's work beside it."""
    serve = getattr(generator, "serve", None)
    return asyncio.run(serve(turns) if serve else turns)


class TransformersGenerator:
    """Batches concurrent requests, at most `batch_size` rows at once;
    each goes on from what its trajectory's cache holds.

    Nothing that a model's own generation_config says is heard:
    the tokens are drawn from the distribution that the trainer computes with.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch_size: int):
        self.model = model
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
        # who was cancelled no longer waits
        batch = [(request, future) for request, future in self._waiting if not future.done()]
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
        turns: dict[int, list[int]] = {}
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            turns |= zip(rows, self._generate_batch([requests[row] for row in rows]), strict=True)
        return [turns[row] for row in range(len(requests))]

    @torch.no_grad()
    def _generate_batch(self, requests: list[TurnRequest]) -> list[list[int]]:
        """Token by token. A row that has ended its turn stays until enough have to be worth taking out."""
        prompts, caches = [request.token_ids for request in requests], [request.cache for request in requests]
        is_kept = can_be_kept(self.model)
        batch = encode_and_keep(self.model, prompts, caches) if is_kept else encode(self.model, prompts)
        draw = PerRowSampling(requests, self.model.device)
        tokens_B = torch.tensor([prompt[-1] for prompt in prompts], device=self.model.device)
        turns: list[list[int]] = [[] for _ in requests]
        rows = list(range(len(requests)))  # the requests in the batch
        while rows:
            tokens_B = draw(batch.step(self.model, tokens_B))
            for row, token in zip(rows, tokens_B.tolist(), strict=True):
                if not self._has_ended(turns[row], requests[row]):
                    turns[row].append(token)
            going = [place for place, row in enumerate(rows) if not self._has_ended(turns[row], requests[row])]
            if going and len(going) > FULL_ENOUGH * len(rows):
                continue
            if is_kept:
                for place in set(range(len(rows))) - set(going):
                    known = prompts[rows[place]] + turns[rows[place]][:-1]
                    caches[rows[place]].keep(known, batch.row(place, len(known)))
            rows, chosen = [rows[place] for place in going], torch.tensor(going, device=tokens_B.device)
            if rows:
                batch.select(chosen)
                draw.select(chosen)
                tokens_B = tokens_B[chosen]
        return turns

    def _has_ended(self, turn: list[int], request: TurnRequest) -> bool:
        return turn[-1:] == [self.eos_id] or len(turn) == request.max_tokens


class PerRowSampling:
    """Logits → tokens for greedy and sampled rows in one batch, each row with its own random numbers.

    For a sampled row the inverse of the cumulative distribution at temperature T picks the token from one uniform
    number a position, drawn from the row's seed. What a row samples does not depend on who shares its batch.
    """

    def __init__(self, requests: list[TurnRequest], device: torch.device):
        longest = max(request.max_tokens for request in requests)
        generators = [np.random.Generator(np.random.Philox(request.seed)) for request in requests]
        draws = [generator.random(longest, dtype=np.float32) for generator in generators]
        self.uniforms_BT = torch.from_numpy(np.stack(draws)).to(device)
        self.temperatures_B = torch.tensor([request.temperature for request in requests], device=device)
        self.sampled = self._sampled_rows()
        self.position = 0

    def __call__(self, logits_BV: torch.Tensor) -> torch.Tensor:
        tokens_B, rows = logits_BV.argmax(dim=-1), self.sampled
        scaled = logits_BV[rows].float() / self.temperatures_B[rows, None]
        cumulative = torch.softmax(scaled, dim=-1).cumsum(dim=-1)
        targets = self.uniforms_BT[rows, self.position, None] * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, targets, right=True).clamp(max=logits_BV.shape[-1] - 1)
        self.position += 1
        tokens_B[rows] = drawn[:, 0]
        return tokens_B

    def select(self, rows: torch.Tensor) -> None:
        self.uniforms_BT, self.temperatures_B = self.uniforms_BT[rows], self.temperatures_B[rows]
        self.sampled = self._sampled_rows()

    def _sampled_rows(self) -> torch.Tensor:
        """Their numbers: a mask would be waited for on a GPU, token by token."""
        return (self.temperatures_B > 0).nonzero()[:, 0]
