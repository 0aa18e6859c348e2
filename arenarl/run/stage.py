"""Start of every stage: threads, seeds, the stage's folder, and whether the stage is done.

`start_stage` writes the resolved config and the provenance. A stage is done when its policy and its timing.json, which
is written last, exist; it is then not run again. Only `runs/` decides that, never `results/`.
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

_SPLITS = {"sft": ("sft",), "rl": ("rl_queries", "test_queries", "test_baselines")}  # stage -> splits that it reads
_LOCKS: list[IO] = []  # open files whose locks this process holds


def start_stage(config: Config, stage: str, provenance: Callable[[Config, str], dict[str, Any]]) -> Path:
    """Make the stage's folder, fix threads and seeds, write config and provenance, and return runs/<run>/<stage>.

    Call it before the first model is built. Only the main process writes.

    Raises:
        UserError: the folder holds work with other settings or data, or another run is writing it.
    """
    from arenarl.run.processes import check_launch  # loads torch

    check_launch()
    fix_randomness(config)
    folder = config.run_dir / stage
    folder.mkdir(parents=True, exist_ok=True)
    refuse_other_settings(config, folder)
    if is_main_process() and not _has_finished(folder):
        _lock(folder)
        now = provenance(config, stage)
        changed = _other_content(folder, stage, now)
        if changed and has_begun(folder):
            how = f"restore it, delete {folder}, or give this run another `name`"
            raise UserError(f"{folder} was started with other content of {', '.join(changed)}; {how}")
        if changed or other_settings(config, folder):  # the stage took no step yet: restart it
            for name in ("wandb.json", "elapsed.json", "watch.jsonl"):
                (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / "initial", ignore_errors=True)  # SFT's untrained policy
        write_text(folder / "config.yaml", config_to_yaml(config))
        write_json(folder / "provenance.json", now)
    keep_tracebacks(folder)  # not earlier, because the folder may belong to another run
    return folder


def _other_content(folder: Path, stage: str, now: dict[str, Any]) -> list[str]:
    """Return the data files, and the system prompt, whose content has changed since the stage's last start."""
    before = read_json(folder / "provenance.json") or {}
    old, new = (provenance.get("data_sha256", {}) for provenance in (before, now))
    changed = [f"{name}.jsonl" for name in _SPLITS.get(stage, ()) if old.get(name) not in (None, new.get(name))]
    if stage in _SPLITS and "system_prompt" in before and before["system_prompt"] != now["system_prompt"]:
        changed.append("the system prompt")
    return changed


def fix_randomness(config: Config) -> None:
    """Set threads, deterministic algorithms and seeds, so that a run can be repeated, and silence libraries."""
    import torch
    from transformers import set_seed

    quiet_libraries()
    torch.set_num_threads(config.threads)
    if config.rollout.backend != "vllm":  # vLLM's kernels are not deterministic
        torch.use_deterministic_algorithms(True, warn_only=True)
    # otherwise every forward pass fills TRL's scratch buffer of half a gigabyte
    torch.utils.deterministic.fill_uninitialized_memory = False
    set_seed(config.seed)


def _lock(folder: Path) -> None:
    """Lock the stage's folder until this process ends: two runs would overwrite each other's checkpoints."""
    lock = (folder / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        how = "wait until it ends or stop it, or give this run another `name`"
        raise UserError(f"{folder} is being written by another run; {how}") from None
    except OSError:
        say(f"{folder} is on a file system without locks; do not start this stage twice at once")
    _LOCKS.append(lock)


def is_done(folder: Path) -> bool:
    """True, with a printed line, if a training stage has finished before."""
    if _has_finished(folder):
        say(f"{folder} is done already; delete it to run it again")
        return True
    if is_main_process():
        (folder / "timing.json").unlink(missing_ok=True)  # left by a deleted policy
    return False


def _has_finished(folder: Path) -> bool:
    """True if the stage's last file and its weights exist."""
    return (folder / "timing.json").is_file() and any(folder.glob("*.safetensors"))
