"""Arguments shared by TRL's offline trainers."""

from pathlib import Path
from typing import Any

from arenarl.config.schema import Config
from arenarl.run.trainer_arguments import common_arguments
from arenarl.system.progress import process_count


def offline_arguments(config: Config, folder: Path, trajectories: int = 1) -> dict[str, Any]:
    """One pass over the examples of so many trajectories, `rl.batch_size`
    of them a step over all processes.

    A CPU reads one at a time: it gains nothing from several at once, and most of what it then reads is padding.
    """
    import torch

    rl, use_cpu = config.rl, not torch.cuda.is_available()
    share = rl.batch_size // process_count()
    most = 1 if use_cpu else max(1, min(rl.micro_batch_size // trajectories, share))
    size = next(size for size in range(most, 0, -1) if share % size == 0)  # or a step would have fewer
    return common_arguments(config, folder, use_cpu) | {
        "num_train_epochs": 1,
        "learning_rate": rl.learning_rate,
        "lr_scheduler_type": rl.lr_scheduler,
        "max_grad_norm": rl.max_grad_norm,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": share // size,
        "max_length": None,
        "logging_steps": 1,
        "save_steps": rl.save_steps,
    }
