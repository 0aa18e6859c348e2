"""What every script does around its work: threads and seeds, the stage's folder and whether it is done.

`start_stage` writes what the run is: resolved config and provenance. A stage is done when its timing.json, written
last, and its policy are there: then it is not run again. `runs/` alone decides that, never `results/`.
"""

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from arenarl.config.load import config_to_yaml
from arenarl.config.schema import Config
from arenarl.run.settings import has_begun, other_settings, refuse_other_settings
from arenarl.system.atomic_files import read_json, write_json, write_text
from arenarl.system.errors import UserError, keep_tracebacks
from arenarl.system.progress import is_main_process, quiet_libraries, say

# the splits of data.folder that a stage reads
_READ_BY = {"sft": ("sft",), "rl": ("rl_queries", "test_queries", "test_baselines")}
_CLAIMS: list[IO] = []  # open files whose locks this process holds


def start_stage(config: Config, stage: str, provenance: Callable[[Config, str], dict[str, Any]]) -> Path:
    """Make the stage's folder, fix threads and seeds, write config and provenance; returns runs/<run>/<stage>.

    To be called before the first model is built. Only the main process writes.
    """
    from arenarl.run.processes import check_launch  # loads torch

    check_launch()
    fix_randomness(config)
    folder = config.run_dir / stage
    folder.mkdir(parents=True, exist_ok=True)
    refuse_other_settings(config, folder)
    if is_main_process() and not _has_finished(folder):
        _claim(folder)
        now = provenance(config, stage)
        changed = _other_content(folder, stage, now)
        if changed and has_begun(folder):
            raise UserError(
                f"{folder} was begun with other content of {', '.join(changed)}; restore it, delete {folder}, "
                "or give this run another `name`"
            )
        if changed or other_settings(config, folder):  # of a stage that never took a step
            for name in ("wandb.json", "elapsed.json", "watch.jsonl"):
                (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / "initial", ignore_errors=True)  # SFT's policy from scratch
        write_text(folder / "config.yaml", config_to_yaml(config))
        write_json(folder / "provenance.json", now)
    keep_tracebacks(folder)  # not before: the folder may be another run's
    return folder


def _other_content(folder: Path, stage: str, now: dict[str, Any]) -> list[str]:
    """What has changed under the same paths since the last start: rows would be seen twice or never, and the policy
    told something else half way."""
    before = read_json(folder / "provenance.json") or {}
    old, new = (noted.get("data_sha256", {}) for noted in (before, now))
    changed = [f"{name}.jsonl" for name in _READ_BY.get(stage, ()) if old.get(name) not in (None, new.get(name))]
    if stage in _READ_BY and "system_prompt" in before and before["system_prompt"] != now["system_prompt"]:
        changed.append("the system prompt")
    return changed


def fix_randomness(config: Config) -> None:
    """Threads, algorithms and seeds, so that a run can be repeated; and what libraries say on every run is silenced."""
    import torch
    from transformers import set_seed

    quiet_libraries()
    torch.set_num_threads(config.threads)
    if config.rollout.backend != "vllm":  # which brings kernels into this process that no seed makes repeatable
        torch.use_deterministic_algorithms(True, warn_only=True)
    # else TRL's half-gigabyte scratch buffer is filled every forward pass
    torch.utils.deterministic.fill_uninitialized_memory = False
    set_seed(config.seed)


def _claim(folder: Path) -> None:
    """Hold the stage's folder until this process ends, however it ends:
    two runs would write over each other's checkpoints."""
    lock = (folder / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"{folder} is being written by another run; wait until it ends or stop it, or give this run another `name`"
        ) from None
    except OSError:
        say(f"{folder} lies on a file system without locks: take care not to start this stage twice at once")
    _CLAIMS.append(lock)


def is_done(folder: Path) -> bool:
    """Whether a training stage has finished before; says so."""
    if _has_finished(folder):
        say(f"{folder} is done already; delete it to run it again")
        return True
    if is_main_process():
        (folder / "timing.json").unlink(missing_ok=True)  # of a policy that is gone
    return False


def _has_finished(folder: Path) -> bool:
    """Its last file is there, and so are the weights."""
    return (folder / "timing.json").is_file() and any(folder.glob("*.safetensors"))
