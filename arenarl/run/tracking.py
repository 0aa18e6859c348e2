"""W&B: each stage of a run is a W&B run, in a group with the others;
started again, the stage goes on in the one that it began.

The config is the resolved one, all of it; TRL's callback takes the W&B run that it finds and adds its own arguments.
Nothing of W&B is begun where it is disabled. Offline every start writes a folder of its own; `wandb sync` puts those of
one id together.
"""

import os
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arenarl.config.schema import Config, WandbConfig
from arenarl.system.atomic_files import read_json, write_json
from arenarl.system.progress import is_main_process

WRITTEN_EVERY_S = 0.1  # by W&B's process, which would take 15 s; a kill takes what it still holds
_STEP = "train/global_step"  # as TRL's callback names it


def mode(wandb: WandbConfig) -> str:
    """`auto` is what WANDB_MODE says, else online where there is a login and offline otherwise:
    a run never stops to ask."""
    if wandb.mode != "auto":
        return wandb.mode
    if os.environ.get("WANDB_MODE"):
        return os.environ["WANDB_MODE"]
    netrc = Path.home() / ".netrc"
    has_login = netrc.is_file() and "wandb" in netrc.read_text(errors="ignore")
    return "online" if has_login or os.environ.get("WANDB_API_KEY") else "offline"


def reporters(wandb: WandbConfig) -> list[str]:
    """TRL's `report_to`."""
    return [] if mode(wandb) == "disabled" else ["wandb"]


def start_tracking(config: Config, folder: Path) -> None:
    """Begin the W&B run of the stage in `folder`, or go on with it.
    To be called before the trainer, which would begin one of its own."""
    if not is_main_process() or not reporters(config.wandb):
        return
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    kept = folder / "wandb.json"
    if not kept.is_file():
        write_json(kept, {"id": secrets.token_hex(8)})
    wandb.init(
        project=os.environ.get("WANDB_PROJECT", config.wandb.project),
        dir=os.environ.get("WANDB_DIR", config.run_dir),
        group=config.run_name,
        job_type=folder.name,
        name=f"{config.run_name}-{folder.name}",
        id=read_json(kept)["id"],
        resume="allow",
        config=asdict(config),
        allow_val_change=True,  # of what a stage may go on with, such as smaller batches
        mode=mode(config.wandb),
        settings=wandb.Settings(x_transaction_log_flush_interval=WRITTEN_EVERY_S),
    )


def log(figures: dict[str, Any], step: int) -> None:
    """Figures of an optimizer step. Like what follows, it does nothing where this process has no W&B run."""
    if run := _run():
        run.log(figures | {_STEP: step})


def log_table(name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
    if _run():
        import wandb

        log({name: wandb.Table(columns=list(columns), data=list(rows))}, step)


def log_summary(figures: dict[str, Any]) -> None:
    """What the stage came to, nested as it is in summary.json."""
    if run := _run():
        run.summary.update(figures)


def wait_until_written() -> None:
    """Until what was logged lies on the disk: a checkpoint that a run goes on from must not have steps before it that
    W&B lacks."""
    if _run():
        time.sleep(2 * WRITTEN_EVERY_S)


def _run() -> Any:
    wandb = sys.modules.get("wandb")
    return wandb and wandb.run
