"""Policy back ends: token ids in, one assistant turn's token ids out.

The rollout engine runs each trajectory as a task and awaits `generate` for each turn; the back end batches the
requests. `TransformersGenerator` runs a batch once every other task waits for a turn or a tool. A trajectory with a
slow tool joins a later batch. The vLLM back ends (`vllm_generation`, `vllm_server`) implement the same protocol.
"""

import asyncio
import math
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from arenarl.rollout.kv_cache import TrajectoryCache, can_cut, plain_output, start_batch
from arenarl.system.errors import UserError, explain, one_line
from arenarl.system.event_loops import patient_loop

Result = TypeVar("Result")
TRIED = ((9, 12), (13, 16), (11, 21))  # first token and length of the rows that try a model's cache
# Largest error of a cached step, as a share of the logits' standard deviation. On a CPU, right models of the tests have
# 2e-6 and wrong ones 4e-4 or more; a GPU's convolutions have 10 bits. Our choice
TOLERANCE = {("cpu", torch.float32): 1e-4, ("cuda", torch.float32): 2e-2}
LOW_PRECISION = 0.15  # for weights of 16 bits; SmolLM2 has 0.03
OTHER_WAYS = "name another model, or let vLLM generate (rollout.backend=vllm)"
FULL_ENOUGH = 0.75  # finished rows leave a batch when the share of unfinished rows is at most this. Our choice


@dataclass(frozen=True)
class TurnRequest:
    """A request for one assistant turn. `temperature` 0 is greedy; `seed` fixes the samples in any batch.

    `cache` belongs to the trajectory: a back end stores a turn's keys and values in it for the next turn.
    """

    token_ids: list[int]
    max_tokens: int
    temperature: float
    seed: int
    cache: TrajectoryCache = field(default_factory=TrajectoryCache, repr=False, compare=False)


@dataclass(frozen=True)
class GeneratedTurn:
    """At most `max_tokens` token ids; the last token is the end-of-turn token if the policy ended the turn itself.

    `logprobs_T` has each token's logprob under the sampling distribution (at temperature 1 for a greedy turn). It is
    None from a back end that uses the trainer's own model.
    """

    token_ids: list[int]
    logprobs_T: list[float] | None = None


class Generator(Protocol):
    async def generate(self, request: TurnRequest) -> GeneratedTurn:
        """Generate the policy's next turn."""


def run_turns(generator: Generator, turns: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that awaits turns in a new event loop, inside the generator's `serve` if it has one."""
    serve = getattr(generator, "serve", None)
    with asyncio.Runner(loop_factory=patient_loop) as runner:
        return runner.run(serve(turns) if serve else turns)


class TransformersGenerator:
    """Batches concurrent requests, at most `batch_size` rows at once, and reuses each trajectory's cache.

    The model's generation_config is ignored: tokens are drawn from the distribution that the trainer computes. The
    first model is tried by `require_cache`; in training, later ones are the same policy.
    """

    def __init__(self, model: PreTrainedModel | None, tokenizer: PreTrainedTokenizerBase, batch_size: int):
        self._model: PreTrainedModel | None = None
        self.model = model
        self.eos_id = tokenizer.eos_token_id
        self.batch_size = batch_size
        self._waiting: list[tuple[TurnRequest, asyncio.Future]] = []
        self._flusher: asyncio.Task | None = None

    @property
    def model(self) -> PreTrainedModel:
        return self._model

    @model.setter
    def model(self, model: PreTrainedModel | None) -> None:
        if model is not None and self._model is None:
            require_cache(model)
        self._model = model

    async def generate(self, request: TurnRequest) -> GeneratedTurn:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush())
        return await future

    async def _flush(self) -> None:
        count = 0
        while count < len(self._waiting):  # wait until no task adds another request
            count = len(self._waiting)
            await asyncio.sleep(0)
        batch = [(request, future) for request, future in self._waiting if not future.done()]  # skip cancelled requests
        self._waiting = []
        try:
            turns = self._generate_all([request for request, _ in batch])
        except Exception as error:  # every waiting trajectory must get the error, or the rollout would hang
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), turn in zip(batch, turns, strict=True):
            future.set_result(GeneratedTurn(turn))

    def _generate_all(self, requests: list[TurnRequest]) -> list[list[int]]:
        """Return the requests' turns, generated longest prompts first so that a batch has rows of similar length."""
        order = sorted(range(len(requests)), key=lambda row: -len(requests[row].token_ids))
        turns: dict[int, list[int]] = {}
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            turns |= zip(rows, self._generate_batch([requests[row] for row in rows]), strict=True)
        return [turns[row] for row in range(len(requests))]

    @torch.no_grad()
    def _generate_batch(self, requests: list[TurnRequest]) -> list[list[int]]:
        """Generate a batch token by token. Finished rows leave it when at least a quarter of the rows are finished."""
        prompts, caches = [request.token_ids for request in requests], [request.cache for request in requests]
        keeps_caches, batch = can_cut(self.model), start_batch(self.model, prompts, caches)
        draw = PerRowSampling(requests, self.model.device)
        tokens_B = torch.tensor([prompt[-1] for prompt in prompts], device=self.model.device)
        turns: list[list[int]] = [[] for _ in requests]
        rows = list(range(len(requests)))  # indices of the requests that are in the batch
        while rows:
            tokens_B = draw(batch.step(self.model, tokens_B))
            for row, token in zip(rows, tokens_B.tolist(), strict=True):
                if not self._has_ended(turns[row], requests[row]):
                    turns[row].append(token)
            going = [place for place, row in enumerate(rows) if not self._has_ended(turns[row], requests[row])]
            if going and len(going) > FULL_ENOUGH * len(rows):
                continue
            if keeps_caches:
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


def require_cache(model: PreTrainedModel) -> None:
    """Raise UserError if cached steps differ from a plain pass, as where a model ignores its cache or the padding.

    Seven passes over at most 21 tokens. Neither random state nor the model's mode changes.
    """
    name = (getattr(model.config, "architectures", None) or [type(model).__name__])[0]
    was_training, devices = model.training, [model.device] if model.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), torch.no_grad():
            error = _cache_error(model.eval())
    except Exception as failure:
        if explain(failure):  # not the architecture's fault, such as too little memory
            raise
        what = f"fails with the cache of rollouts: {type(failure).__name__}: {one_line(failure)}"
        raise UserError(f"the architecture {name} {what}; {OTHER_WAYS}") from failure
    finally:
        model.train(was_training)
    if math.isnan(error):
        what = "its weights are damaged, or too large for their data type (policy.dtype)"
        raise UserError(f"the logits of this {name} are NaN, so {what}; name another model")
    tolerance = TOLERANCE.get((model.device.type, model.dtype), LOW_PRECISION)
    if not error <= tolerance:
        what = f"gives other log-probabilities with a cache than without (error {error:.2g}, at most {tolerance:g})"
        raise UserError(f"the architecture {name} {what}, so its rollouts would be wrong; {OTHER_WAYS}")


def _cache_error(model: PreTrainedModel) -> float:
    """Return the largest error of cached steps in two turns, as a share of the logits' standard deviation.

    As in rollouts, rows are padded on the left, and one leaves after a turn's first step. The plain pass pads them on
    the right and has no mask, as in training.
    """
    vocabulary, device = model.config.get_text_config().vocab_size, model.device
    rows = [[(first + 3 * place) % vocabulary for place in range(length)] for first, length in TRIED]
    steps, caches, keeps_caches = [], [TrajectoryCache() for _ in rows], can_cut(model)
    for cut in (6, 1):  # number of tokens left for later
        ends = [len(row) - cut for row in rows]
        batch = start_batch(model, [row[:end] for row, end in zip(rows, ends, strict=True)], caches)
        for step, going in enumerate(([0, 1, 2], [0, 2])):
            logits_BV = batch.step(model, torch.tensor([rows[row][ends[row] - 1 + step] for row in going]).to(device))
            steps += [(row, ends[row] - 1 + step, logits_V) for row, logits_V in zip(going, logits_BV, strict=True)]
            for place, row in enumerate(going if keeps_caches else []):
                known = rows[row][: ends[row] + step]
                caches[row].keep(known, batch.row(place, len(known)))
            if step == 0:
                batch.select(torch.tensor([0, 2], device=device))
    longest = max(map(len, rows))
    ids_BT = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)
    plain_BTV = model(input_ids=ids_BT, use_cache=False, **plain_output(model)).logits
    errors = [_difference(logits_V, plain_BTV[row, place]) for row, place, logits_V in steps]
    return float(torch.stack(errors).max())  # NaN if one is


def _difference(logits_V: torch.Tensor, expected_V: torch.Tensor) -> torch.Tensor:
    """Return the root mean square difference of log-probabilities over their standard deviation, over likely tokens."""
    is_likely = expected_V > expected_V.max() - 50  # some models set the logits of other tokens to the lowest number
    expected, error = expected_V[is_likely].float(), (logits_V - expected_V)[is_likely].float()
    spread = expected.std(correction=0).clamp(min=torch.finfo(torch.float32).tiny)
    return error.std(correction=0) / spread


class PerRowSampling:
    """Logits → tokens, for greedy and sampled rows in one batch, each row with random numbers of its own.

    A sampled row draws one uniform number per position from its seed. The inverse of the cumulative distribution at
    the row's temperature maps it to a token. A row's samples do not depend on the other rows of its batch.
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
        """Return the indices of sampled rows. With a mask instead, a GPU would synchronise at every token."""
        return (self.temperatures_B > 0).nonzero()[:, 0]
