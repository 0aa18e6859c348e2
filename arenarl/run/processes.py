"""Several processes of one script, which torchrun starts:
evaluation and difficulty share out their queries, a trainer averages gradients."""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import torch
from accelerate import PartialState

from arenarl.config.schema import Config
from arenarl.run.trainer_arguments import LONGEST_WAIT_S
from arenarl.system.errors import UserError
from arenarl.system.progress import process_count

if TYPE_CHECKING:
    from transformers import Trainer

T = TypeVar("T")


def join_processes(config: Config) -> None:
    """Meet the other processes, if there are any; to be called before a model is loaded, whose GPU this chooses.

    Raises:
        UserError: they would share a GPU; or vLLM's server, which one process keeps busy,
            and load checkpoints into it at the same time.
    """
    check_launch()
    # without cpu it would see no others there
    state = PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(seconds=LONGEST_WAIT_S))
    if state.num_processes > 1 and config.rollout.backend == "vllm_server":
        raise UserError(
            "rollout.backend=vllm_server is for one process, which keeps the server busy; "
            "start the script with python, without torchrun"
        )


def check_launch() -> None:
    """Raises UserError if the launcher started more processes on this machine than it has GPUs, for NCCL lets no two
    meet on one; or if there was none, and the environment speaks of several processes: accelerate takes this one for
    the only one then, and each would be the main one."""
    if process_count() > 1 and "LOCAL_RANK" not in os.environ:
        raise UserError(
            f"WORLD_SIZE={process_count()} is set, but not LOCAL_RANK: no launcher started this process; "
            "start it with torchrun, or unset WORLD_SIZE"
        )
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if 0 < gpus < processes:
        raise UserError(
            f"{processes} processes cannot share {gpus} GPU{'s' * (gpus > 1)}; start {gpus} (--nproc_per_node {gpus}, "
            f"for ./reproduce.sh PROCESSES={gpus}), or leave the GPUs aside with CUDA_VISIBLE_DEVICES="
        )


def own_share(of_queries: Sequence[T]) -> Sequence[T]:
    """What this process works off of the queries, or of something that stands in their order."""
    state = PartialState()
    return of_queries[state.process_index :: state.num_processes]


def hold_gradients_once(trainer: "Trainer") -> None:
    """Of several processes without DeepSpeed each keeps its gradients, and beside them the buckets in which they are
    averaged: here the ones are the others, four bytes a parameter less. No value changes."""
    trainer.accelerator.ddp_handler.gradient_as_bucket_view = True
