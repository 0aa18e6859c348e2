"""Arguments shared by all TRL trainers, and DeepSpeed's settings, checks and start.

ZeRO-3 divides parameters, gradients and optimizer states among the processes (Appendix A). Rollouts gather the weights
once per phase. The saved model is always whole.
"""

import codecs
import importlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import patch

from arenarl.config.schema import Config, PolicyConfig
from arenarl.run.tracking import reporters
from arenarl.system.errors import UserError, missing
from arenarl.system.repository import file_named
from arenarl.system.user_input import text_of_file

if TYPE_CHECKING:
    from transformers import TrainingArguments

Arguments = TypeVar("Arguments", bound="TrainingArguments")

BFLOAT16_LOSES = 512  # a bfloat16 weight more than this many times larger than its update does not change
MOST_WEIGHTS = 0.02  # standard deviation of initial weights in transformers
LONGEST_WAIT_S = 6 * 3600  # longest wait of a process for the other processes; then the run fails. Our choice


def common_arguments(config: Config, folder: Path) -> dict[str, Any]:
    """Return the arguments of a trainer that writes its checkpoints into `folder`."""
    import torch  # imported late: the checks of a config do not need it

    return {
        "output_dir": str(folder),
        "use_cpu": not torch.cuda.is_available(),
        "bf16": config.policy.dtype == "bfloat16",
        "seed": config.seed,
        "optim": "adamw_torch",
        # with TRL's default device_map the model would be spread over all GPUs
        "model_init_kwargs": {"dtype": config.policy.dtype, "device_map": None},
        "gradient_checkpointing": config.policy.gradient_checkpointing,
        "report_to": reporters(config.wandb),
        "disable_tqdm": True,
        "logging_nan_inf_filter": False,  # CheckpointMarker ends such a run
        "ddp_timeout": LONGEST_WAIT_S,
        "ddp_find_unused_parameters": False,
    }


def on_one_gpu(arguments: Arguments) -> Arguments:
    """Limit a process to one GPU: without a launcher, transformers would use all GPUs, which TRL refuses."""
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def check_deepspeed(key: str, path: str | None, script: str, is_check: bool) -> int:
    """Return the stage of ZeRO; 0 without DeepSpeed. Raises UserError if the JSON cannot be used, or if a launcher is
    missing and `is_check` is False."""
    file = deepspeed_file(path)
    if file is None:
        return 0
    if not Path(file).exists():
        raise UserError(f"{key}={missing(path, '; name a DeepSpeed JSON or set it to null')}")
    try:
        settings = _settings(file)
        zero, optimizer = settings["zero_optimization"], settings.get("optimizer", {})
        if not (isinstance(zero, dict) and isinstance(optimizer, dict)):
            raise ValueError("zero_optimization and optimizer must be objects")
        if (stage := zero.get("stage", 0)) not in range(4):
            raise ValueError(f"its stage is {stage!r}, not 0, 1, 2 or 3")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        how = "start from ds_config.json"
        raise UserError(f"{key}={path} is not a DeepSpeed JSON with zero_optimization: {error}; {how}") from error
    if Path(file).read_bytes().startswith(codecs.BOM_UTF8):
        raise UserError(f"{key}={path} begins with a byte order mark, which DeepSpeed refuses; save it without")
    if stage == 3 and not zero.get("stage3_gather_16bit_weights_on_model_save"):
        how = "set stage3_gather_16bit_weights_on_model_save to true in zero_optimization"
        raise UserError(f"{path}: the policy could not be saved whole; {how}")
    if "RANK" not in os.environ and not is_check:
        how = f"start it with torchrun --nproc_per_node 2 {script} …, or --set {key}=null for one process"
        raise UserError(f"{key}={path} needs a launcher; {how}")
    return stage


def refuse_lost_updates(policy: PolicyConfig, key: str, learning_rate: float, deepspeed: str | None) -> None:
    """Refuse full fine-tuning in bfloat16 at a learning rate too small for it.

    AdamW's updates are about as large as the rate. Without DeepSpeed's float32 copy of the weights, rounding would undo
    most of them, and no metric would show it. Raises UserError.
    """
    lost = BFLOAT16_LOSES * learning_rate
    if policy.dtype == "bfloat16" and not policy.lora_rank and deepspeed is None and lost < MOST_WEIGHTS:
        raise UserError(
            f"{key}={learning_rate:g} is lost in the rounding of bfloat16 weights above {lost:.1g}, and most weights "
            "are larger; set policy.dtype=float32, policy.lora_rank=32 or, if the method allows it, "
            f"{key.partition('.')[0]}.deepspeed=ds_config.json, which keeps a float32 copy"
        )


def clip_norm(path: str | None, norm: float) -> float:
    """Return the clipping norm; 0 (no clipping) with Muon, whose output DeepSpeed would clip to almost nothing."""
    file = deepspeed_file(path)
    optimizer = _settings(file).get("optimizer", {}) if file else {}
    return 0.0 if str(optimizer.get("type")).lower() == "muon" else norm


def deepspeed_file(path: str | None) -> str | None:
    """Return the path of the JSON, in the working directory or else in the repository."""
    return None if path is None else str(file_named(path))


def _settings(file: str) -> dict[str, Any]:
    return json.loads(text_of_file(Path(file)))


def start_deepspeed() -> None:
    """Start the process group. Call it after making the trainer's arguments and before loading a sharded model."""
    import deepspeed

    # DeepSpeed's Muon module compiles a function on import, and loading torch's compiler takes ten seconds
    with patch.dict(os.environ, TORCHDYNAMO_DISABLE="1"):
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
    # skips half a minute of compiling a collective that only inference uses
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed()
