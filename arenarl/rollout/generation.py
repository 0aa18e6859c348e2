"""Policy back ends: token ids in, one assistant turn's token ids out.

The rollout engine runs each trajectory as a task and awaits `generate` for each turn; the back end batches the
requests. `TransformersGenerator` runs a batch once every other task waits for a turn or a tool. A trajectory with a
slow tool joins a later batch. The vLLM back ends (`vllm_generation`, `vllm_server`) implement the same protocol.
"""

import asyncio
import math
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from arenarl.rollout.kv_cache import TrajectoryCache, can_cut, plain_output, start_batch
from arenarl.system.errors import UserError, explain, one_line
from arenarl.system.event_loops import patient_loop

Result = TypeVar("Result")
TRIAL_ROWS = ((9, 12), (13, 16), (11, 21))  # first token and length of the rows that try a model's cache
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


Waiting = tuple[TurnRequest, asyncio.Future]


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

    A batch begins once all tasks wait, and ends with its longest turn. If `is_continuous`, requests enter a batch that
    is under way (continuous batching), so that no trajectory waits for another's turn. A row's tokens are the same up
    to rounding. Only models with plain attention can do that; others use whole batches.
    The model's generation_config is ignored: tokens are drawn from the distribution that the trainer computes. The
    first model is tried by `require_cache`; in training, later ones are the same policy.
    """

    has_logprobs = False  # True for turns with logprobs; the trainer's own model needs none

    def __init__(
        self, model: PreTrainedModel | None, tokenizer: PreTrainedTokenizerBase, batch_size: int,
        is_continuous: bool = False,
    ):  # fmt: skip
        self._model: PreTrainedModel | None = None
        self.model = model
        self.eos_id = tokenizer.eos_token_id
        self.batch_size = batch_size
        self.is_continuous = is_continuous
        self._waiting: list[Waiting] = []
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

    async def _all_tasks_wait(self) -> None:
        """Wait until no task adds another request."""
        count = -1
        while count < len(self._waiting):
            count = len(self._waiting)
            await asyncio.sleep(0)

    async def _flush(self) -> None:
        if self.is_continuous and can_cut(self.model):
            await self._decode_while_waiting()
            return
        await self._all_tasks_wait()
        batch = self._take_waiting(len(self._waiting))
        try:
            turns = self._generate_all([request for request, _ in batch])
        except Exception as error:  # every waiting trajectory must get the error, or the rollout would hang
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), turn in zip(batch, turns, strict=True):
            future.set_result(turn)

    def _take_waiting(self, most: int) -> list[Waiting]:
        """Remove and return at most `most` requests; skip cancelled ones."""
        waiting = [(request, future) for request, future in self._waiting if not future.done()]
        taken, self._waiting = waiting[:most], waiting[most:]
        return taken

    async def _decode_while_waiting(self) -> None:
        """Decode one batch. Rows leave it after their turn's end, and new requests can enter before each step."""
        batch, futures = DecodingBatch(self.model, self.eos_id, self.has_logprobs), dict[int, asyncio.Future]()
        entering: list[Waiting] = []
        try:
            while self._waiting or batch.active:
                await self._all_tasks_wait()
                for row in batch.active:
                    row.is_over = futures[id(row)].done()  # cancelled
                if entering := self._take_waiting(self.batch_size - len(batch.active)):
                    requests, own_futures = zip(*entering, strict=True)
                    futures |= zip(map(id, batch.enter(requests)), own_futures, strict=True)
                for row in batch.step() if batch.active else ():
                    futures[id(row)].set_result(row.generated)
        except Exception as error:  # every waiting trajectory must get the error, or the rollout would hang
            for future in [*futures.values(), *(future for _, future in [*entering, *self._waiting])]:
                if not future.done():
                    future.set_exception(error)
            self._waiting = []

    def _generate_all(self, requests: list[TurnRequest]) -> list[GeneratedTurn]:
        """Return the requests' turns, generated longest prompts first so that a batch has rows of similar length."""
        order = sorted(range(len(requests)), key=lambda row: -len(requests[row].token_ids))
        turns: dict[int, GeneratedTurn] = {}
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            turns |= zip(rows, self._generate_batch([requests[row] for row in rows]), strict=True)
        return [turns[row] for row in range(len(requests))]

    def _generate_batch(self, requests: list[TurnRequest]) -> list[GeneratedTurn]:
        batch = DecodingBatch(self.model, self.eos_id, self.has_logprobs)
        rows = batch.enter(requests)
        while batch.active:
            batch.step()
        return [row.generated for row in rows]


@dataclass(eq=False)
class DecodingRow:
    request: TurnRequest
    logprobs_T: list[float] | None  # None unless the generator returns logprobs
    turn: list[int] = field(default_factory=list)
    is_over: bool = False

    @property
    def generated(self) -> GeneratedTurn:
        return GeneratedTurn(self.turn, self.logprobs_T)


class DecodingBatch:
    """Rows that are generated together, token by token. Finished rows leave when new rows enter, or when at least a
    quarter of the rows are finished, because each change copies the caches."""

    def __init__(self, model: PreTrainedModel, eos_id: int, has_logprobs: bool):
        self.model, self.eos_id, self.has_logprobs, self.keeps_caches = model, eos_id, has_logprobs, can_cut(model)
        self.rows: list[DecodingRow] = []

    @property
    def active(self) -> list[DecodingRow]:
        return [row for row in self.rows if not row.is_over]

    @torch.no_grad()
    def enter(self, requests: Sequence[TurnRequest]) -> list[DecodingRow]:
        """Encode the prompts and return a row for each request."""
        prompts, caches = [request.token_ids for request in requests], [request.cache for request in requests]
        cache, draw = start_batch(self.model, prompts, caches), PerRowSampling(requests, self.model.device)
        tokens_B = torch.tensor([prompt[-1] for prompt in prompts], device=self.model.device)
        rows = [DecodingRow(request, [] if self.has_logprobs else None) for request in requests]
        self._leave()
        if self.rows:
            self.cache.join(cache)
            self.draw.join(draw)
            self.tokens_B = torch.cat([self.tokens_B, tokens_B])
        else:
            self.cache, self.draw, self.tokens_B = cache, draw, tokens_B
        self.rows += rows
        return rows

    @torch.no_grad()
    def step(self) -> list[DecodingRow]:
        """Append a token to each row; return the rows whose turn ended with it, with their keys and values kept."""
        logits_BV = self.cache.step(self.model, self.tokens_B)
        self.tokens_B, ended = self.draw(logits_BV), []
        if self.has_logprobs:
            for row, logprob in zip(self.rows, self.draw.logprobs(logits_BV, self.tokens_B).tolist(), strict=True):
                if not row.is_over:
                    row.logprobs_T.append(logprob)
        for place, (row, token) in enumerate(zip(self.rows, self.tokens_B.tolist(), strict=True)):
            if row.is_over:
                continue
            row.turn.append(token)
            row.is_over = token == self.eos_id or len(row.turn) == row.request.max_tokens
            if row.is_over:
                ended.append(row)
                if self.keeps_caches:
                    known = row.request.token_ids + row.turn[:-1]
                    row.request.cache.keep(known, self.cache.row(place, len(known)))
        if len(self.active) <= FULL_ENOUGH * len(self.rows):
            self._leave()
        return ended

    def _leave(self) -> None:
        """Remove the rows that are over."""
        going = [place for place, row in enumerate(self.rows) if not row.is_over]
        if 0 < len(going) < len(self.rows):
            chosen = torch.tensor(going, device=self.tokens_B.device)
            self.cache.select(chosen)
            self.draw.select(chosen)
            self.tokens_B = self.tokens_B[chosen]
        self.rows = [self.rows[place] for place in going]


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
    rows = [[(first + 3 * place) % vocabulary for place in range(length)] for first, length in TRIAL_ROWS]
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

    def __init__(self, requests: Sequence[TurnRequest], device: torch.device):
        longest = max(request.max_tokens for request in requests)
        generators = [np.random.Generator(np.random.Philox(request.seed)) for request in requests]
        draws = [generator.random(longest, dtype=np.float32) for generator in generators]
        self.uniforms_BT = torch.from_numpy(np.stack(draws)).to(device)
        self.temperatures_B = torch.tensor([request.temperature for request in requests], device=device)
        self.sampled = self._sampled_rows()
        self.positions_B = torch.zeros(len(requests), dtype=torch.long, device=device)

    def __call__(self, logits_BV: torch.Tensor) -> torch.Tensor:
        tokens_B, rows = logits_BV.argmax(dim=-1), self.sampled
        scaled = logits_BV[rows].float() / self.temperatures_B[rows, None]
        cumulative = torch.softmax(scaled, dim=-1).cumsum(dim=-1)
        targets = self.uniforms_BT[rows, self.positions_B[rows], None] * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, targets, right=True).clamp(max=logits_BV.shape[-1] - 1)
        self.positions_B = (self.positions_B + 1).clamp(max=self.uniforms_BT.shape[1] - 1)  # a row that is over goes on
        tokens_B[rows] = drawn[:, 0]
        return tokens_B

    def logprobs(self, logits_BV: torch.Tensor, tokens_B: torch.Tensor) -> torch.Tensor:
        """Return the tokens' logprobs (B,) at each row's temperature, at 1 for a greedy row."""
        temperatures_B = self.temperatures_B.where(self.temperatures_B > 0, 1.0)
        logprobs_BV = torch.log_softmax(logits_BV.float() / temperatures_B[:, None], dim=-1)
        return logprobs_BV.gather(1, tokens_B[:, None])[:, 0]

    def select(self, rows: torch.Tensor) -> None:
        self.uniforms_BT, self.temperatures_B = self.uniforms_BT[rows], self.temperatures_B[rows]
        self.sampled, self.positions_B = self._sampled_rows(), self.positions_B[rows]

    def join(self, other: "PerRowSampling") -> None:
        """Append the other's rows."""
        longest = max(self.uniforms_BT.shape[1], other.uniforms_BT.shape[1])
        both = (self, other)
        padded = [pad(each.uniforms_BT, (0, longest - each.uniforms_BT.shape[1])) for each in both]
        self.uniforms_BT = torch.cat(padded)
        self.temperatures_B = torch.cat([each.temperatures_B for each in both])
        self.positions_B = torch.cat([each.positions_B for each in both])
        self.sampled = self._sampled_rows()

    def _sampled_rows(self) -> torch.Tensor:
        """Return the indices of sampled rows. With a mask instead, a GPU would synchronise at every token."""
        return (self.temperatures_B > 0).nonzero()[:, 0]
