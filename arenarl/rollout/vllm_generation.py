"""vLLM in this process: one engine, to which every turn is a request of its own.

`VLLMGenerator` steps the engine for as long as anyone waits and lets go of the event loop after every step, so a turn
that ends sets its trajectory going at once, its next turn joins the running batch, and a trajectory that waits for a
tool holds nobody up. Greedy and sampled requests share the batch. A prompt's head never changes between turns, so the
engine's prefix cache has it. `SharedVLLMGenerator` does the same with one engine over the GPUs of several processes.

In training the engine gets the trainer's weights before every rollout (`weight_sync`);
in evaluation it loads a checkpoint.
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

from arenarl.config.schema import VLLM_ALONE, Config, RolloutConfig
from arenarl.rollout.generation import GeneratedTurn, TurnRequest
from arenarl.rollout.vllm_internals import disable_onednn_packing, hidden_module, refused_request, require_vllm
from arenarl.system.errors import GO_ON, GPU_OUT_OF_MEMORY, UserError
from arenarl.system.progress import process_count

Result = TypeVar("Result")
IDLE_S = 0.001  # between two looks at whether a trajectory is back from its tools, when the engine has nothing to do
_OPEN: list[Any] = []  # the engine of this process, unless a trainer owns it: there is no sure way to free one's memory
_SHAPE = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers")  # what tells a wrong model apart


def open_engine(path: str, config: Config, rows: int, beside_trainer: bool) -> Any:
    """vLLM's `LLM` on a checkpoint folder or hub id, in this process, on its own GPU,
    for at most `rows` requests of this process at once.

    Of several processes all open theirs together. Those of a tensor-parallel engine hold a part each; see
    `SharedVLLMGenerator`.

    Raises:
        UserError: vLLM cannot start, for want of memory or because it does not know the model.
    """
    require_vllm()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # in another process nobody could write into its weights
    from vllm import LLM

    try:
        disable_onednn_packing()
        with hidden_module("llvmlite.binding.ffi"):
            return LLM(
                model=path,
                dtype=config.policy.dtype,
                seed=config.seed,
                max_num_seqs=rows * config.rollout.vllm_tensor_parallel,
                max_model_len=longest(path, config.rollout),
                # of prompts in one step; vLLM's own default is larger, and its memory profile goes by it
                max_num_batched_tokens=4096,
                gpu_memory_utilization=config.rollout.vllm_memory if beside_trainer else VLLM_ALONE,
                enable_sleep_mode=config.rollout.vllm_sleep and beside_trainer,
                tensor_parallel_size=config.rollout.vllm_tensor_parallel,
                enable_prefix_caching=True,
                generation_config="vllm",  # nothing of the model's own generation_config.json
                # of the distribution that tokens are drawn from, temperature included
                logprobs_mode="processed_logprobs",
                # the GPU of LOCAL_RANK
                distributed_executor_backend="external_launcher" if beside_trainer or process_count() > 1 else None,
                enforce_eager=not torch.cuda.is_available(),  # compiling takes longer on a CPU than it saves
                disable_log_stats=True,
                use_tqdm_on_load=False,
            )
    except torch.OutOfMemoryError as error:
        remedy = f"{GPU_OUT_OF_MEMORY}, or change rollout.vllm_memory"
        raise UserError(f"vLLM could not start on {path}: {remedy}") from error
    except (ValueError, RuntimeError, OSError) as error:
        # what vLLM says of a model, a device or a memory that do not fit
        reason = f"{type(error).__name__}: {_first_line(error)}; its log stands above"
        raise UserError(f"vLLM could not start on {path}: {reason}; {GO_ON}") from error


def longest(path: str, rollout: RolloutConfig) -> int | None:
    """Tokens of a sequence for which vLLM keeps room; None is what the model can read, where that is less."""
    positions = AutoConfig.from_pretrained(path).get_text_config().max_position_embeddings
    return rollout.longest if rollout.longest < positions else None


def load_engine(path: str, config: Config) -> Any:
    """Return this process's engine with a checkpoint's weights; it is opened for the first checkpoint.
    Raises UserError for a model of another shape than the first."""
    if not _OPEN:
        _OPEN.append(open_engine(path, config, config.rollout.batch_size, beside_trainer=False))
        return _OPEN[0]
    (llm,) = _OPEN
    if other := other_shape(path, llm.llm_engine.model_config.hf_config):
        remedy = "name it alone in evaluate.checkpoints"
        raise UserError(f"{path} is another model than the first checkpoint ({', '.join(other)}); {remedy}")
    llm.collective_rpc("reload_weights", kwargs={"weights_path": path})
    forget(llm)
    return llm


def forget(llm: Any) -> None:
    """Have it drop what it computed with other weights, which vLLM itself only warns that it could not."""
    if not llm.reset_prefix_cache():
        raise RuntimeError("vLLM keeps what it computed with older weights, because requests are still under way")


def other_shape(path: str, served: PreTrainedConfig) -> list[str]:
    """In what the policy at `path` differs from the model of a config, by the text's part of either."""
    ours, theirs = AutoConfig.from_pretrained(path).get_text_config(), served.get_text_config()
    pairs = {key: (getattr(ours, key, None), getattr(theirs, key, None)) for key in _SHAPE}
    return [f"{key} {their} instead of {our}" for key, (our, their) in pairs.items() if our != their]


def sampling_of(request: TurnRequest, eos_id: int) -> dict[str, Any]:
    """A request's sampling as vLLM names it, complete, so that no default of a model or server slips in."""
    return {
        "temperature": request.temperature,
        "seed": request.seed,
        "max_tokens": request.max_tokens,
        "stop_token_ids": [eos_id],
        "ignore_eos": True,  # the model's own list of ends may have others; ours is the tokenizer's
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "logprobs": 0,  # of the token itself, nothing beside it
    }


class VLLMGenerator:
    """Requests to an engine of this process, `llm`, each answered as soon as it is done."""

    def __init__(self, eos_id: int, llm: Any = None):
        self.eos_id = eos_id
        self.llm = llm
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future] = {}
        self._stepper: asyncio.Task | None = None

    async def generate(self, request: TurnRequest) -> GeneratedTurn:
        name = str(next(self._numbers))
        self.submit(name, request)
        future = self._waiting[name] = asyncio.get_running_loop().create_future()
        if self._stepper is None or self._stepper.done():
            self._stepper = asyncio.create_task(self._step())
        try:
            return await future
        finally:
            del self._waiting[name]
            if not future.done() or future.cancelled():  # who was cancelled no longer waits
                self.llm.llm_engine.abort_request([name])

    def submit(self, name: str, request: TurnRequest) -> None:
        """Give the engine a request. Raises UserError for one that it refuses."""
        from vllm import SamplingParams

        parameters = SamplingParams(**sampling_of(request, self.eos_id), detokenize=False)
        try:
            self.llm.llm_engine.add_request(name, {"prompt_token_ids": request.token_ids}, parameters)
        except refused_request() as error:  # longer than the model can read
            refused = f"vLLM refused a prompt of {len(request.token_ids)} tokens: {_first_line(error)}"
            raise UserError(f"{refused}; lower rollout.max_tokens") from error

    def step(self) -> dict[str, list[int]]:
        """Step the engine, hand out the turns that ended, and return their token ids by request."""
        outputs = {output.request_id: output.outputs[0] for output in self.llm.llm_engine.step() if output.finished}
        turns: dict[str, list[int]] = {}
        for name, output in outputs.items():
            token_ids = turns[name] = list(output.token_ids)
            if name not in self._waiting:  # a turn of another process that shares the engine
                continue
            logprobs_T = [found[token].logprob for token, found in zip(token_ids, output.logprobs, strict=True)]
            self._settle(name, turn=GeneratedTurn(token_ids, logprobs_T))
        return turns

    def _settle(self, name: str, turn: GeneratedTurn | None = None, error: Exception | None = None) -> None:
        """Give a turn, or an error, to the trajectory that still waits for it."""
        future = self._waiting.get(name)
        if future is not None and not future.done():
            future.set_exception(error) if error else future.set_result(turn)

    async def _step(self) -> None:
        try:
            while self._waiting:
                self.step()
                await asyncio.sleep(0)
        except Exception as error:  # everyone who waits must learn of it, or the rollout would hang
            for name in self._waiting:
                self._settle(name, error=error)


@dataclass
class SchedulerMessage:
    """What a process tells the others before a step."""

    requests: dict[str, TurnRequest] = field(default_factory=dict)
    aborted: list[str] = field(default_factory=list)
    is_over: bool = False
    drawn: int = 0  # a checksum of the turns that the last step ended here


class SharedVLLMGenerator(VLLMGenerator):
    """One vLLM engine split over the GPUs of several processes, each of which rolls out trajectories of its own.

    Each process has a part of the weights and a scheduler of its own, and vLLM computes right only if all of them see
    the same requests in the same order at every step. Here requests come whenever a trajectory is ready for its next
    turn, in another order in every process. So before each step the processes exchange what they ask for and what they
    abort, do all of it in the order of their ranks, and take the step together, until none has anything left to ask.

    `gather` gives the messages of every process of the engine, in the order of their ranks, once all have one.
    """

    def __init__(self, eos_id: int, llm: Any, rank: str, gather: Callable[[SchedulerMessage], list[SchedulerMessage]]):
        super().__init__(eos_id, llm)
        self.rank, self.gather = rank, gather
        self._message = SchedulerMessage()

    async def generate(self, request: TurnRequest) -> GeneratedTurn:
        name = f"{self.rank}-{next(self._numbers)}"
        future = self._waiting[name] = asyncio.get_running_loop().create_future()
        # without the cache, which need not travel
        plain = TurnRequest(request.token_ids, request.max_tokens, request.temperature, request.seed)
        self._message.requests[name] = plain
        try:
            return await future
        finally:
            del self._waiting[name]
            if future.cancelled():
                self._message.aborted.append(name)

    async def serve(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run the coroutine until the other processes are through with theirs; all of them call it together."""
        work, engine = asyncio.ensure_future(coroutine), self.llm.llm_engine
        while True:
            await asyncio.sleep(0 if engine.has_unfinished_requests() else IDLE_S)
            if work.done() and work.exception():
                for task in asyncio.all_tasks() - {asyncio.current_task()}:  # whose turns nobody wants any more
                    task.cancel()
            self._message.is_over = work.done() and not self._waiting
            message, self._message = self._message, SchedulerMessage()
            messages = self.gather(message)
            if len({message.drawn for message in messages}) > 1:
                problem = "drew different tokens from the same requests, so what they compute together is wrong"
                remedy = "leave rollout.vllm_tensor_parallel out, or set rollout.backend=vllm_server"
                raise UserError(f"the {len(messages)} processes of a vLLM engine {problem}; {remedy}")
            for message in messages:
                self._carry_out(message)
            if all(message.is_over for message in messages):
                return work.result()
            if engine.has_unfinished_requests():
                self._message.drawn = crc32(repr(self.step()).encode())

    def _carry_out(self, message: SchedulerMessage) -> None:
        for name, request in message.requests.items():
            try:
                self.submit(name, request)
            except UserError as error:  # every process refuses it; the one whose it is learns of it
                self._settle(name, error=error)
        if message.aborted:
            self.llm.llm_engine.abort_request(message.aborted)


def _first_line(error: Exception) -> str:
    """What it says; of options that vLLM refuses, the reason instead of their number."""
    text = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
    return (text.strip() or type(error).__name__).splitlines()[0]
