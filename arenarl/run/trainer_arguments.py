"""What all of TRL's trainers are told alike; each stage adds what is its own."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from arenarl.config.schema import Config
from arenarl.run.tracking import reporters
from arenarl.run.zero3 import LONGEST_WAIT_S

if TYPE_CHECKING:
    from transformers import TrainingArguments

Arguments = TypeVar("Arguments", bound="TrainingArguments")


def common_arguments(config: Config, folder: Path, use_cpu: bool) -> dict[str, Any]:
    """Arguments of a trainer that writes its checkpoints into `folder`."""
    return {
        "output_dir": str(folder),
        "use_cpu": use_cpu,
        "bf16": config.policy.dtype == "bfloat16",
        "seed": config.seed,
        "optim": "adamw_torch",
        # TRL would lay it out over all GPUs of the machine
        "model_init_kwargs": {"dtype": config.policy.dtype, "device_map": None},
        "gradient_checkpointing": config.policy.gradient_checkpointing,
        "report_to": reporters(config.wandb),
        "disable_tqdm": True,
        "ddp_timeout": LONGEST_WAIT_S,
        "ddp_find_unused_parameters": False,
    }


def on_one_gpu(arguments: Arguments) -> Arguments:
    """The same, for a process that has a GPU to itself: one that no launcher started takes the first, where
    transformers would copy the policy to all that it sees, and TRL refuses."""
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments
