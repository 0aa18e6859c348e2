"""Arguments shared by all TRL trainers, and DeepSpeed for SFT and RL: what is refused before training starts, and how
its processes find each other.

ZeRO-3 shares parameters, gradients and optimizer states over the processes (Appendix A); the trainers do the rest.
Rollouts gather the weights once a phase, and what is saved is the whole model.
"""

import importlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from arenarl.config.schema import Config, PolicyConfig
from arenarl.run.tracking import reporters
from arenarl.system.errors import UserError
from arenarl.system.repository import file_named
from arenarl.system.user_input import text_of_file

if TYPE_CHECKING:
    from transformers import TrainingArguments

Arguments = TypeVar("Arguments", bound="TrainingArguments")

BFLOAT16_LOSES = 512  # a bfloat16 weight more than so many times as large as an update stays what it was
MOST_WEIGHTS = 0.02  # standard deviation of the weights of transformers' models at initialisation
# for the slowest process's trajectories, and for a judge that is down; then the run has failed. Our choice
LONGEST_WAIT_S = 6 * 3600


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


def check_deepspeed(key: str, path: str | None, script: str, is_check: bool) -> int:
    """ZeRO's stage, 0 without DeepSpeed. Refuses a JSON that cannot be used, and `key` without a launcher,
    unless only input is checked.

    Raises:
        UserError: one line that says what to change.
    """
    file = deepspeed_file(path)
    if file is None:
        return 0
    if not Path(file).exists():
        raise UserError(f"{key}={path} does not exist; name a DeepSpeed JSON or set it to null")
    try:
        zero = dict(_settings(file)["zero_optimization"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{key}={path} is no DeepSpeed JSON with a zero_optimization: {error}; start from ds_config.json"
        ) from error
    if zero.get("stage") == 3 and not zero.get("stage3_gather_16bit_weights_on_model_save"):
        raise UserError(
            f"{path}: set stage3_gather_16bit_weights_on_model_save to true in zero_optimization, "
            "or no whole policy could be saved"
        )
    if "RANK" not in os.environ and not is_check:
        raise UserError(
            f"ZeRO-3 needs a launcher: torchrun --nproc_per_node 2 {script} …, or --set {key}=null for one process"
        )
    return zero.get("stage", 0)


def refuse_lost_updates(policy: PolicyConfig, key: str, learning_rate: float, deepspeed: str | None) -> None:
    """Refuse full fine-tuning in bfloat16 without the float32 copy of the weights that DeepSpeed keeps, at a rate too
    small for it: AdamW's updates, each about as large as the rate, would move few weights, and nothing in the log would
    show it.

    Raises:
        UserError: one line that says what to change.
    """
    lost = BFLOAT16_LOSES * learning_rate
    if policy.dtype == "bfloat16" and not policy.lora_rank and deepspeed is None and lost < MOST_WEIGHTS:
        raise UserError(
            f"{key}={learning_rate:g} is lost in the rounding of every bfloat16 weight above {lost:.1g}, "
            "which most are; set policy.dtype=float32, policy.lora_rank=32 or, where the method may have it, "
            f"{key.partition('.')[0]}.deepspeed=ds_config.json, which keeps a copy in float32"
        )


def clip_norm(path: str | None, norm: float) -> float:
    """To which gradients are clipped, 0 for not at all: where the JSON names Muon,
    DeepSpeed clips what Muon made of them, and little is left."""
    file = deepspeed_file(path)
    optimizer = _settings(file).get("optimizer", {}) if file else {}
    return 0.0 if str(optimizer.get("type")).lower() == "muon" else norm


def deepspeed_file(path: str | None) -> str | None:
    """The JSON that is meant: as it is, or the repository's from another working directory."""
    return None if path is None else str(file_named(path))


def _settings(file: str) -> dict[str, Any]:
    return json.loads(text_of_file(Path(file)))


def start_deepspeed() -> None:
    """Start the process group; to be called once the trainer's arguments are there,
    before a model is loaded in parts."""
    import deepspeed

    # DeepSpeed imports its Muon, whose module compiles a function: loading torch's compiler takes ten seconds
    before = os.environ.get("TORCHDYNAMO_DISABLE")
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    try:
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
    finally:
        del os.environ["TORCHDYNAMO_DISABLE"]
        if before is not None:
            os.environ["TORCHDYNAMO_DISABLE"] = before
    # half a minute of compiling, for an inference-only collective
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed()
