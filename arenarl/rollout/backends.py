"""Make and check the engine that `rollout.backend` names: transformers, vLLM in this process, or a vLLM server."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from arenarl.config.checks import check_tensor_parallel, shared_gpu_problem
from arenarl.config.schema import Config, LLMConfig, RolloutConfig
from arenarl.llm.client import LLMClient
from arenarl.rollout.api_policy import ApiRolloutEngine
from arenarl.rollout.chat_template import ANY_TOOL, chat_encoder
from arenarl.rollout.engine import RolloutEngine
from arenarl.rollout.environment import Environment
from arenarl.rollout.generation import Generator, TransformersGenerator
from arenarl.rollout.policy import load_to_generate, load_tokenizer, sequence_limit
from arenarl.rollout.system_prompt import system_prompt
from arenarl.rollout.vllm_generation import SharedVLLMGenerator, VLLMGenerator, load_engine
from arenarl.rollout.vllm_internals import gather_from_engine, require_vllm
from arenarl.rollout.vllm_server import ServerGenerator, VLLMServer
from arenarl.system.errors import UserError
from arenarl.system.progress import process_count, process_rank


def make_engine(
    config: Config, tokenizer: PreTrainedTokenizerBase, make: Callable[[], Environment], model: Any = None,
    stage: str = "rl",
) -> RolloutEngine:  # fmt: skip
    """Return the engine that `rollout.backend` names; in training the trainer sets the model later."""
    generator, world = _make_generator(config.rollout, tokenizer, model), config.environment
    options = (world.schemas_in_prompt, system_prompt(config, stage), world.actions, world.instances, world.timeout_s)
    return RolloutEngine(generator, tokenizer, make, config.rollout, *options)


def make_policy_engine(
    config: Config, policy: str | LLMConfig, make: Callable[[], Environment], client: LLMClient | None
) -> RolloutEngine:
    """Return the engine of a policy to evaluate: a checkpoint, or a model behind an API."""
    if not isinstance(policy, str):
        return ApiRolloutEngine.from_config(config, policy, client, make, config.data.language)
    tokenizer, model, backend = load_tokenizer(policy), None, config.rollout.backend
    if backend == "vllm":
        model = load_engine(policy, config)
    elif backend == "vllm_server":
        VLLMServer(config.rollout.server_url).load(policy)
    else:
        model = load_to_generate(policy, config.policy.dtype)
    engine = make_engine(config, tokenizer, make, model)
    engine.limit = sequence_limit(policy, in_batches=backend == "transformers")
    return engine


def require_backend(rollout: RolloutConfig, path: str, dtype: str, is_check: bool = False) -> None:
    """Raise UserError if the back end is missing, cannot be split over the processes, or serves another model.
    `path` is the policy; `is_check` skips the test of the processes."""
    if not is_check:
        check_tensor_parallel(rollout, process_count())
    if rollout.backend == "vllm":
        require_vllm("rollout.backend=vllm")
    elif rollout.backend == "vllm_server":
        VLLMServer(rollout.server_url).require(path, dtype)


def require_template(config: Config, tokenizer: PreTrainedTokenizerBase, stage: str = "rl") -> None:
    """Raise UserError if the chat template cannot show the prompts of the run: a system message, tools or results."""
    world = config.environment
    has_schemas = world.has_tools and world.schemas_in_prompt and world.actions == "tool_calls"
    chat_encoder(tokenizer).require(system_prompt(config, stage), [ANY_TOOL] if has_schemas else None, world.actions)


def require_sync(rollout: RolloutConfig, *, lora_rank: int = 0, steps_ahead: int = 0) -> None:
    """Raise UserError if `rollout.vllm_sleep` or `rollout.server_sync: nccl` lacks a GPU, if the server is unfit, or if
    `rl.steps_ahead` would generate on the trainer's GPU."""
    if (problem := shared_gpu_problem(rollout, steps_ahead)) and torch.cuda.is_available():
        raise UserError(problem)
    needs_gpu = {"vllm_sleep": False} if rollout.backend == "vllm" else {"server_sync": "disk"}
    for key, on_cpu in needs_gpu.items():
        if (value := getattr(rollout, key)) != on_cpu and not torch.cuda.is_available():
            remedy = f"set rollout.{key}={str(on_cpu).lower()}"
            raise UserError(f"rollout.{key}={str(value).lower()} needs GPUs, and there is none here; {remedy}")
    if rollout.server_sync == "nccl":
        require_vllm("rollout.server_sync=nccl")
        VLLMServer(rollout.server_url).require_nccl()
    if rollout.backend == "vllm_server" and rollout.send_adapter:
        VLLMServer(rollout.server_url).require_adapters(lora_rank)


def _make_generator(rollout: RolloutConfig, tokenizer: PreTrainedTokenizerBase, model: Any) -> Generator:
    if rollout.backend == "vllm" and rollout.vllm_tensor_parallel > 1:
        return SharedVLLMGenerator(tokenizer.eos_token_id, model, str(process_rank()), gather_from_engine)
    if rollout.backend == "vllm":
        return VLLMGenerator(tokenizer.eos_token_id, model)
    if rollout.backend == "vllm_server":
        return ServerGenerator(VLLMServer(rollout.server_url), tokenizer.eos_token_id)
    is_continuous = torch.cuda.is_available() if rollout.continuous_batching is None else rollout.continuous_batching
    return TransformersGenerator(model, tokenizer, rollout.batch_size, is_continuous)
