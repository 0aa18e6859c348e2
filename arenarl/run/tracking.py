"""W&B tracking: each stage is one W&B run, grouped by run; a resumed stage continues its W&B run.

The W&B config is the resolved config; TRL's callback finds the W&B run and adds its own arguments. If W&B is disabled,
it is not imported. Offline, each start writes its own folder; `wandb sync` merges folders with the same id.
"""

import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from arenarl.config.schema import Config, WandbConfig
from arenarl.system.atomic_files import read_json, write_json
from arenarl.system.errors import UserError, did_you_mean, one_line
from arenarl.system.progress import is_main_process, say

FLUSH_EVERY_S = 0.1  # W&B's default is 15 s; a kill loses the entries since the last flush
_STEP = "train/global_step"  # name in TRL's callback
_MODES = {  # values of WANDB_MODE; the last two are older names
    "online": "online", "offline": "offline", "disabled": "disabled", "shared": "shared", "run": "online",
    "dryrun": "offline",
}  # fmt: skip
_SWITCH = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
T = TypeVar("T")


@dataclass(frozen=True)
class _Id:
    id: Annotated[str, Field(pattern=r"^[\w-]{1,128}$")]


def mode(wandb: WandbConfig) -> str:
    """Return W&B's mode. `auto` means WANDB_MODE if set, else online with a login, else offline, without a question.

    Without the package, `auto` means disabled. WANDB_DISABLED disables every mode. Raises UserError for an unknown
    value of either variable.
    """
    if wandb.mode == "disabled" or _choice("WANDB_DISABLED", _SWITCH, "false"):
        return "disabled"
    chosen = _choice("WANDB_MODE", _MODES, "online" if _has_login() else "offline")
    if wandb.mode != "auto":
        return wandb.mode
    return chosen if _is_installed() else "disabled"


def _choice(variable: str, choices: Mapping[str, T], default: str) -> T:
    value = os.environ.get(variable, "").strip() or default
    if value.lower() not in choices:
        listed = ", ".join(choices)
        raise UserError(f"{variable}={one_line(value)}: set it to one of {listed}{did_you_mean(value, choices)}")
    return choices[value.lower()]


def _is_installed() -> bool:
    spec = find_spec("wandb")
    return spec is not None and spec.origin is not None  # a folder called wandb, such as W&B's own, has no origin


def _has_login() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        netrc = Path(os.environ.get("NETRC") or os.path.expanduser("~/.netrc"))
        return "wandb" in netrc.read_text(encoding="utf-8", errors="ignore")
    except OSError:  # missing, or not ours to read
        return False


def reporters(wandb: WandbConfig) -> list[str]:
    """Return TRL's `report_to`."""
    return [] if mode(wandb) == "disabled" else ["wandb"]


def start_tracking(config: Config, folder: Path) -> None:
    """Start or continue the W&B run of the stage in `folder`. Call it before the trainer, which would start its own.
    Raises UserError for a damaged id of the run, and if W&B refuses to start."""
    if not is_main_process():
        return
    if not reporters(config.wandb):
        if config.wandb.mode == "auto" and not _is_installed():
            say("W&B is not installed, so no curves are logged")
        return
    for name in [name for name, value in os.environ.items() if name.startswith("WANDB_") and not value.strip()]:
        del os.environ[name]  # W&B refuses empty values, which container files pass on
    os.environ["WANDB_MODE"] = chosen = mode(config.wandb)  # W&B reads it too, and refuses capitals
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_INIT_TIMEOUT", "30")  # seconds until a stage goes on offline; W&B's default is 90
    for variable in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR"):  # W&B's default is the home, which may be read-only
        os.environ.setdefault(variable, str((config.run_dir / "wandb" / "cache").absolute()))
    import wandb

    file = folder / "wandb.json"
    if not file.is_file():
        write_json(file, {"id": secrets.token_hex(8)})
    run_id = read_json(file, _Id, "restore it, or delete it: the stage then continues in a new W&B run").id
    place = os.environ.get("WANDB_DIR", str(config.run_dir))
    start = partial(
        wandb.init,
        project=os.environ.get("WANDB_PROJECT", config.wandb.project),
        dir=place,
        group=config.run_name,
        job_type=folder.name,
        name=f"{config.run_name}-{folder.name}",
        id=run_id,
        resume="allow",
        config=asdict(config),
        allow_val_change=True,  # keys that may change on resuming, such as batch sizes
    )
    try:
        settings = wandb.Settings(x_transaction_log_flush_interval=FLUSH_EVERY_S)
        try:
            start(mode=chosen, settings=settings)
        except (wandb.Error, ValueError) as error:  # no network, or a refused or malformed key
            wandb.teardown()  # its service still holds the run
            say(f"W&B: {one_line(error)}; this stage is logged offline, and `wandb sync` can upload it later")
            start(mode="offline", settings=settings)
    except (wandb.Error, ValueError) as error:
        how = "correct the environment variable WANDB_… that the error names, or set wandb.mode=disabled"
        raise UserError(f"W&B cannot start: {one_line(error)}; {how}") from error
    if not Path(wandb.run.dir).resolve().is_relative_to(Path(place).resolve()):  # W&B's own warning is silenced
        say(f"W&B: {place} is not writable; the log of this stage is in {wandb.run.dir}")


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
