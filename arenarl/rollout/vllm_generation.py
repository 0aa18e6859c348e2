"""vLLM in this process: an engine that gets every turn as a request.

`VLLMGenerator` steps the engine while requests wait, and yields to the event loop after every step. A finished turn
continues its trajectory at once, and the next turn joins the running batch; a slow tool delays no other trajectory.
Greedy and sampled requests share the batch. Earlier turns of a prompt come from the engine's prefix cache.
`SharedVLLMGenerator` does the same with one engine over the GPUs of several processes.

In training, `weight_sync` writes the trainer's weights into the engine; in evaluation, it loads a checkpoint.
"""

import asyncio
import itertools
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar
from zlib import crc32

import torch
from pydantic import ValidationError
from transformers import AutoConfig, PreTrainedConfig

from arenarl.config.schema import LORA_RANKS, VLLM_ALONE, Config, RolloutConfig
from arenarl.rollout.generation import GeneratedTurn, TurnRequest
from arenarl.rollout.policy import NoRoom
from arenarl.rollout.vllm_internals import (
    cached_tokens,
    disable_onednn_packing,
    hidden_module,
    refused_request,
    require_vllm,
)
from arenarl.system.errors import GO_ON, GPU_OUT_OF_MEMORY, UserError
from arenarl.system.progress import process_count

Result = TypeVar("Result")
IDLE_S = 0.001  # interval of checks for new requests while the engine is idle
_OPEN: list[Any] = []  # evaluation's engine in this process, kept because its memory cannot be freed reliably
_SHAPE = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers")  # keys that differ between models


def open_engine(path: str, config: Config, rows: int | None, beside_trainer: bool) -> Any:
    """Open vLLM's `LLM` on a checkpoint folder or hub id, for at most `rows` concurrent requests of this process.
    None means vLLM's own limit for the GPU, so that only the cache limits the rows.

    Each process has an engine on its own GPU, or a part of one with tensor parallelism; all processes open theirs
    together. Raises UserError if vLLM cannot start: too little memory, or an unsupported model.
    """
    require_vllm()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the trainer can only write weights in its own process
    from vllm import LLM

    try:
        disable_onednn_packing()
        with hidden_module("llvmlite.binding.ffi"):
            return LLM(
                model=path,
                dtype=config.policy.dtype,
                seed=config.seed,
                max_num_seqs=rows and rows * config.rollout.vllm_tensor_parallel,
                max_model_len=longest(path, config.rollout),
                max_num_batched_tokens=4096,  # vLLM's default is larger and needs more memory
                gpu_memory_utilization=config.rollout.vllm_memory if beside_trainer else VLLM_ALONE,
                enable_sleep_mode=config.rollout.vllm_sleep and beside_trainer,
                tensor_parallel_size=config.rollout.vllm_tensor_parallel,
                **lora_options(config) if beside_trainer else {},
                enable_prefix_caching=True,
                generation_config="vllm",  # ignores the model's own generation_config.json
                logprobs_mode="processed_logprobs",  # logprobs under the sampling distribution, temperature included
                # external_launcher: the engine takes the GPU of LOCAL_RANK
                distributed_executor_backend="external_launcher" if beside_trainer or process_count() > 1 else None,
                enforce_eager=not torch.cuda.is_available(),  # compiling takes longer on a CPU than it saves
                disable_log_stats=True,
                use_tqdm_on_load=False,
            )
    except torch.OutOfMemoryError as error:
        remedy = f"{GPU_OUT_OF_MEMORY}, or change rollout.vllm_memory"
        raise UserError(f"vLLM could not start on {path}: {remedy}") from error
    except (ValueError, RuntimeError, OSError) as error:  # an unsupported model or device, or too little memory
        reason = f"{type(error).__name__}: {_first_line(error)}; vLLM's log is above"
        raise UserError(f"vLLM could not start on {path}: {reason}; {GO_ON}") from error


def lora_options(config: Config) -> dict[str, Any]:
    """Return vLLM's options for `rollout.send_adapter`; empty without it."""
    if not config.rollout.send_adapter:
        return {}
    return {"enable_lora": True, "max_lora_rank": next(rank for rank in LORA_RANKS if rank >= config.policy.lora_rank)}


def longest(path: str, rollout: RolloutConfig) -> int | None:
    """Return the length of a sequence for which vLLM keeps room; None means the model's maximum, if that is less."""
    positions = AutoConfig.from_pretrained(path).get_text_config().max_position_embeddings
    return rollout.longest if rollout.longest < positions else None


def load_engine(path: str, config: Config) -> Any:
    """Return this process's engine with a checkpoint's weights; the first call opens it.
    Raises UserError for a model of another shape than the first checkpoint's."""
    if not _OPEN:
        _OPEN.append(open_engine(path, config, None, beside_trainer=False))
        return _OPEN[0]
    (llm,) = _OPEN
    if differences := shape_differences(path, llm.llm_engine.model_config.hf_config):
        remedy = "evaluate it in a run of its own (evaluate.checkpoints)"
        raise UserError(f"{path} is another model than the first checkpoint ({', '.join(differences)}); {remedy}")
    llm.collective_rpc("reload_weights", kwargs={"weights_path": path})
    clear_prefix_cache(llm)
    return llm


def clear_prefix_cache(llm: Any) -> None:
    """Clear the prefix cache of older weights. Raises RuntimeError if that fails; vLLM itself only warns."""
    if not llm.reset_prefix_cache():
        raise RuntimeError("vLLM keeps the cache of older weights, because requests are still running")


def shape_differences(path: str, served: PreTrainedConfig) -> list[str]:
    """Return how the served model's text config differs from the policy's at `path`."""
    policy, served = AutoConfig.from_pretrained(path).get_text_config(), served.get_text_config()
    pairs = {key: (getattr(policy, key, None), getattr(served, key, None)) for key in _SHAPE}
    return [f"{key} {value} instead of {expected}" for key, (expected, value) in pairs.items() if expected != value]


def sampling_of(request: TurnRequest, eos_id: int) -> dict[str, Any]:
    """Return all of vLLM's sampling parameters for a request, so that no default of a model or server applies."""
    sampling = {"temperature": request.temperature, "seed": request.seed, "max_tokens": request.max_tokens}
    # The model's config may list other ends of a turn; only the tokenizer's end-of-turn token counts.
    end = {"stop_token_ids": [eos_id], "ignore_eos": True}
    neutral = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    return sampling | end | neutral | {"logprobs": 0}  # 0: the logprob of the token itself, without alternatives


class VLLMGenerator:
    """Sends requests to an engine of this process, `llm`, and returns each turn as soon as it is finished.
    `adapter` is the LoRA adapter to use, None for the engine's own weights."""

    adapter: Any = None

    def __init__(self, eos_id: int, llm: Any = None):
        self.eos_id = eos_id
        self.llm = llm
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future] = {}
        self._stepper: asyncio.Task | None = None

    @property
    def rows(self) -> int:
        """Number of this process's trajectories that the cache holds at once, at half their length on average."""
        return 2 * cached_tokens(self.llm) // self.llm.llm_engine.model_config.max_model_len

    async def generate(self, request: TurnRequest) -> GeneratedTurn:
        name = str(next(self._numbers))
        self.submit(name, request)
        future = self._waiting[name] = asyncio.get_running_loop().create_future()
        if self._stepper is None or self._stepper.done():
            self._stepper = asyncio.create_task(self._step_while_waiting())
        try:
            return await future
        finally:
            del self._waiting[name]
            if not future.done() or future.cancelled():  # this task was cancelled
                self.llm.llm_engine.abort_request([name])

    def submit(self, name: str, request: TurnRequest) -> None:
        """Add a request to the engine. Raises NoRoom for a prompt that is too long, and UserError if vLLM refuses the
        request for another reason."""
        from vllm import SamplingParams

        parameters = SamplingParams(**sampling_of(request, self.eos_id), detokenize=False)
        prompt = {"prompt_token_ids": request.token_ids}
        try:
            self.llm.llm_engine.add_request(name, prompt, parameters, lora_request=self.adapter)
        except refused_request() as error:
            tokens, most = len(request.token_ids), self.llm.llm_engine.model_config.max_model_len
            refused = f"vLLM refused a prompt of {tokens} tokens: {_first_line(error)}; lower rollout.max_tokens"
            raise NoRoom(refused) if tokens >= most else UserError(refused) from error

    def step(self) -> dict[str, list[int]]:
        """Step the engine, deliver the finished turns, and return their token ids by request."""
        outputs = {output.request_id: output.outputs[0] for output in self.llm.llm_engine.step() if output.finished}
        turns: dict[str, list[int]] = {}
        for name, output in outputs.items():
            token_ids = turns[name] = list(output.token_ids)
            if name not in self._waiting:  # a turn of another process that shares the engine
                continue
            logprobs_T = [logprobs[token].logprob for token, logprobs in zip(token_ids, output.logprobs, strict=True)]
            self._deliver(name, turn=GeneratedTurn(token_ids, logprobs_T))
        return turns

    def _deliver(self, name: str, turn: GeneratedTurn | None = None, error: Exception | None = None) -> None:
        """Pass a turn or an error to the trajectory, if it still waits."""
        future = self._waiting.get(name)
        if future is not None and not future.done():
            future.set_exception(error) if error else future.set_result(turn)

    async def _step_while_waiting(self) -> None:
        try:
            while self._waiting:
                self.step()
                await asyncio.sleep(0)
        except Exception as error:  # every waiting trajectory must get the error, or the rollout would hang
            for name in self._waiting:
                self._deliver(name, error=error)


@dataclass
class SchedulerMessage:
    """A process's new and aborted requests, sent to all processes of an engine before a step."""

    requests: dict[str, TurnRequest] = field(default_factory=dict)
    aborted: list[str] = field(default_factory=list)
    is_over: bool = False
    checksum: int = 0  # checksum of the turns that the last step finished


class SharedVLLMGenerator(VLLMGenerator):
    """A vLLM engine split over the GPUs of several processes, each of which rolls out its own trajectories.

    Each process holds a part of the weights and its own scheduler. vLLM is correct only if all schedulers see the same
    requests in the same order at every step, but requests come in another order in every process. Before each step,
    the processes therefore exchange new and aborted requests and apply them in the order of the ranks. Then they take
    the step together, until no process has requests left.

    `gather` sends a message and returns the messages of all processes of the engine, in the order of their ranks.
    """

    def __init__(self, eos_id: int, llm: Any, rank: str, gather: Callable[[SchedulerMessage], list[SchedulerMessage]]):
        super().__init__(eos_id, llm)
        self.rank, self.gather = rank, gather
        self._message = SchedulerMessage()

    async def generate(self, request: TurnRequest) -> GeneratedTurn:
        name = f"{self.rank}-{next(self._numbers)}"
        future = self._waiting[name] = asyncio.get_running_loop().create_future()
        without_cache = TurnRequest(request.token_ids, request.max_tokens, request.temperature, request.seed)
        self._message.requests[name] = without_cache
        try:
            return await future
        finally:
            del self._waiting[name]
            if future.cancelled():
                self._message.aborted.append(name)

    async def serve(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run the coroutine and step the engine until all processes are done; they call it together.
        Raises UserError if the processes of an engine sampled different tokens."""
        work, engine = asyncio.ensure_future(coroutine), self.llm.llm_engine
        while True:
            await asyncio.sleep(0 if engine.has_unfinished_requests() else IDLE_S)
            if work.done() and work.exception():
                for task in asyncio.all_tasks() - {asyncio.current_task()}:  # after an error no turn is needed
                    task.cancel()
            self._message.is_over = work.done() and not self._waiting
            message, self._message = self._message, SchedulerMessage()
            messages = self.gather(message)
            if len({message.checksum for message in messages}) > 1:
                problem = "drew different tokens from the same requests, so their tokens are wrong"
                remedy = "leave rollout.vllm_tensor_parallel out, or set rollout.backend=vllm_server"
                raise UserError(f"the {len(messages)} processes of a vLLM engine {problem}; {remedy}")
            for message in messages:
                self._apply(message)
            if all(message.is_over for message in messages):
                return work.result()
            if engine.has_unfinished_requests():
                self._message.checksum = crc32(repr(self.step()).encode())

    def _apply(self, message: SchedulerMessage) -> None:
        for name, request in message.requests.items():
            try:
                self.submit(name, request)
            except UserError as error:  # all processes refuse it; only its own process waits for the error
                self._deliver(name, error=error)
        if message.aborted:
            self.llm.llm_engine.abort_request(message.aborted)


def _first_line(error: Exception) -> str:
    """Return the first line of an error; for a ValidationError the reason, because its first line is only a count."""
    text = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
    return (text.strip() or type(error).__name__).splitlines()[0]
