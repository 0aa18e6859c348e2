"""The processes of one script that torchrun starts.

In evaluation and difficulty each process takes a share of the queries; in training the processes average gradients.
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import TypeVar

import torch
from accelerate import PartialState

from arenarl.config.schema import Config
from arenarl.run.trainer_arguments import LONGEST_WAIT_S
from arenarl.system.errors import UserError
from arenarl.system.progress import launcher_number, process_count

T = TypeVar("T")


def join_processes(config: Config) -> None:
    """Join the process group, if there is one, and choose this process's GPU. Call it before loading a model.

    Raises UserError if processes would share a GPU, or a vLLM server, into which each would load its own checkpoints.
    """
    check_launch()
    # on a machine without GPUs, cpu=True is needed to find the other processes
    state = PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(seconds=LONGEST_WAIT_S))
    if state.num_processes > 1 and config.rollout.backend == "vllm_server":
        raise UserError("rollout.backend=vllm_server is for one process; start the script without torchrun")


def check_launch() -> None:
    """Raise UserError if several processes would share a GPU, which NCCL forbids, if WORLD_SIZE is set without a
    launcher, because accelerate would then treat each process as the only one, and if a rank is not a number."""
    for name in ("RANK", "LOCAL_RANK"):  # torch and accelerate read them too
        launcher_number(name, 0, least=0)
    if process_count() > 1 and "LOCAL_RANK" not in os.environ:
        how = "start the script with torchrun, or unset WORLD_SIZE"
        raise UserError(f"WORLD_SIZE={process_count()} is set, but not LOCAL_RANK, which a launcher sets; {how}")
    processes = launcher_number("LOCAL_WORLD_SIZE", 1)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if 0 < gpus < processes:
        how = (
            f"start {gpus} (--nproc_per_node {gpus}, for ./reproduce.sh PROCESSES={gpus}), or set CUDA_VISIBLE_DEVICES="
        )
        raise UserError(f"{processes} processes cannot share {gpus} GPU{'s' * (gpus > 1)}; {how}")


def own_share(queries: Sequence[T]) -> Sequence[T]:
    """Return this process's share of the queries, or of any sequence in the order of the queries."""
    state = PartialState()
    return queries[state.process_index :: state.num_processes]
