"""W&B tracking: each stage is one W&B run, grouped by run; a resumed stage continues its W&B run.

The W&B config is the resolved config; TRL's callback finds the W&B run and adds its own arguments. If W&B is disabled,
it is not imported. Offline, each start writes its own folder; `wandb sync` merges folders with the same id.
"""

import os
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arenarl.config.schema import Config, WandbConfig
from arenarl.system.atomic_files import read_json, write_json
from arenarl.system.progress import is_main_process

FLUSH_EVERY_S = 0.1  # W&B's default is 15 s; a kill loses the entries since the last flush
_STEP = "train/global_step"  # name in TRL's callback


@dataclass(frozen=True)
class _Id:
    id: str


def mode(wandb: WandbConfig) -> str:
    """Return W&B's mode. `auto` means WANDB_MODE if set, else online with a login, else offline; it never asks."""
    if wandb.mode != "auto":
        return wandb.mode
    if os.environ.get("WANDB_MODE"):
        return os.environ["WANDB_MODE"]
    netrc = Path.home() / ".netrc"
    has_login = netrc.is_file() and "wandb" in netrc.read_text(errors="ignore")
    return "online" if has_login or os.environ.get("WANDB_API_KEY") else "offline"


def reporters(wandb: WandbConfig) -> list[str]:
    """Return TRL's `report_to`."""
    return [] if mode(wandb) == "disabled" else ["wandb"]


def start_tracking(config: Config, folder: Path) -> None:
    """Start or continue the W&B run of the stage in `folder`. Call it before the trainer, which would start its own."""
    if not is_main_process() or not reporters(config.wandb):
        return
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    file = folder / "wandb.json"
    if not file.is_file():
        write_json(file, {"id": secrets.token_hex(8)})
    wandb.init(
        project=os.environ.get("WANDB_PROJECT", config.wandb.project),
        dir=os.environ.get("WANDB_DIR", config.run_dir),
        group=config.run_name,
        job_type=folder.name,
        name=f"{config.run_name}-{folder.name}",
        id=read_json(file, _Id, "restore it, or delete it: the stage then continues in a new W&B run").id,
        resume="allow",
        config=asdict(config),
        allow_val_change=True,  # keys that may change on resuming, such as batch sizes
        mode=mode(config.wandb),
        settings=wandb.Settings(x_transaction_log_flush_interval=FLUSH_EVERY_S),
    )


def log(figures: dict[str, Any], step: int) -> None:
    """Log figures of an optimizer step. This and the functions below do nothing in a process without a W&B run."""
    if run := _run():
        run.log(figures | {_STEP: step})


def log_table(name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
    if _run():
        import wandb

        log({name: wandb.Table(columns=list(columns), data=list(rows))}, step)


def log_summary(figures: dict[str, Any]) -> None:
    """Log the stage's final figures, nested as in summary.json."""
    if run := _run():
        run.summary.update(figures)


def wait_until_written() -> None:
    """Wait until W&B has written its log, so that no step before a checkpoint is missing after a kill."""
    if _run():
        time.sleep(2 * FLUSH_EVERY_S)


def _run() -> Any:
    wandb = sys.modules.get("wandb")
    return wandb and wandb.run
