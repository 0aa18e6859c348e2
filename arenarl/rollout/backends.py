"""What generates, by `rollout.backend`: transformers' `generate`, vLLM in this process, or a vLLM server;
and the engines on top of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from arenarl.config.checks import check_tensor_parallel
from arenarl.config.schema import Config, LLMConfig, RolloutConfig
from arenarl.llm.client import LLMClient
from arenarl.rollout.api_policy import ApiRolloutEngine
from arenarl.rollout.engine import RolloutEngine
from arenarl.rollout.environment import Environment
from arenarl.rollout.generation import Generator, TransformersGenerator
from arenarl.rollout.policy import load_to_generate, load_tokenizer
from arenarl.rollout.system_prompt import system_prompt
from arenarl.rollout.tensor_parallel import SharedVLLMGenerator, tell_engine
from arenarl.rollout.vllm_generation import VLLMGenerator, load_engine, require_vllm
from arenarl.rollout.vllm_server import ServerGenerator, VLLMServer
from arenarl.system.errors import UserError
from arenarl.system.progress import process_count, process_rank


def make_engine(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    make: Callable[[], Environment],
    model: Any = None,
    stage: str = "rl",
) -> RolloutEngine:
    """query → trajectories, with what `rollout.backend` names; in training the trainer lends it the model.
    `make` makes environments."""
    generator, world, told = (
        _make_generator(config.rollout, tokenizer, model),
        config.environment,
        system_prompt(config, stage),
    )
    return RolloutEngine(
        generator, tokenizer, make, config.rollout, world.schemas_in_prompt, told, world.actions, world.instances
    )


def make_policy_engine(
    config: Config, policy: str | LLMConfig, make: Callable[[], Environment], client: LLMClient | None
) -> RolloutEngine:
    """The engine of a policy to evaluate: a checkpoint, or a model behind an API."""
    if not isinstance(policy, str):
        return ApiRolloutEngine.from_config(config, policy, client, make, config.data.language)
    return make_engine(config, load_tokenizer(policy), make, _load_policy(config, policy))


def require_backend(rollout: RolloutConfig, path: str, dtype: str, is_check: bool = False) -> None:
    """Raises UserError if what `rollout.backend` names is not there, cannot be split over the processes, which a check
    leaves aside, or serves another model than the policy at `path`.
    """
    if not is_check:
        check_tensor_parallel(rollout, process_count())
    if rollout.backend == "vllm":
        require_vllm("rollout.backend=vllm")
    elif rollout.backend == "vllm_server":
        VLLMServer(rollout.server_url).require(path, dtype)


def require_sync(rollout: RolloutConfig) -> None:
    """Raises UserError if vLLM cannot be given a trainer's weights as `rollout` says:
    it needs GPUs to sleep, and for NCCL."""
    for key, other in {"vllm_sleep": False, "server_sync": "disk"}.items():
        if (value := getattr(rollout, key)) != other and not torch.cuda.is_available():
            raise UserError(
                f"rollout.{key}={str(value).lower()} needs GPUs, and there is none here; "
                f"set rollout.{key}={str(other).lower()}"
            )
    if rollout.server_sync == "nccl":
        require_vllm("rollout.server_sync=nccl")
        VLLMServer(rollout.server_url).require_nccl()


def _make_generator(rollout: RolloutConfig, tokenizer: PreTrainedTokenizerBase, model: Any) -> Generator:
    if rollout.backend == "vllm" and rollout.vllm_tensor_parallel > 1:
        return SharedVLLMGenerator(tokenizer.eos_token_id, model, str(process_rank()), tell_engine)
    if rollout.backend == "vllm":
        return VLLMGenerator(tokenizer.eos_token_id, model)
    if rollout.backend == "vllm_server":
        return ServerGenerator(VLLMServer(rollout.server_url), tokenizer.eos_token_id)
    return TransformersGenerator(model, tokenizer, rollout.batch_size)


def _load_policy(config: Config, path: str) -> Any:
    """A checkpoint for generation: the model, on the GPU if there is one, or vLLM's engine,
    or None where a server now serves it."""
    if config.rollout.backend == "vllm":
        return load_engine(path, config)
    if config.rollout.backend == "vllm_server":
        VLLMServer(config.rollout.server_url).load(str(Path(path).resolve()) if Path(path).is_dir() else path)
        return None
    return load_to_generate(path, config.policy.dtype)
