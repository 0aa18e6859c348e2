"""Start of every stage: threads, seeds, the stage's folder, and whether the stage is done.

`start_stage` writes the start record, the resolved config and the provenance. A stage is done when its policy and its
timing.json, which is written last, exist; it is then not run again. Only the stage's folder decides that, never
results.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from arenarl.config.load import config_to_yaml
from arenarl.config.schema import Config
from arenarl.run.marks import refuse_damaged_policy
from arenarl.run.settings import has_begun
from arenarl.run.timing import read_timing
from arenarl.run.tracking import reporters
from arenarl.run.weights import START, StartRecord, read_start, refuse_other_start, start_record
from arenarl.system.atomic_files import remove, write_json, write_text
from arenarl.system.errors import UserError, keep_tracebacks
from arenarl.system.locks import try_lock
from arenarl.system.progress import is_main_process, quiet_libraries, say
from arenarl.trajectory import read_steps

_LOCKS: dict[Path, IO] = {}  # folder -> the open file whose lock this process holds


def start_stage(
    config: Config, stage: str, provenance: Callable[[Config, str], dict[str, Any]], policy: str | None = None,
    query_ids: Sequence[str] = (),
) -> Path:  # fmt: skip
    """Make the stage's folder, fix threads and seeds, write config and provenance, and return runs/<run>/<stage>.

    Call it before the first model is built. Only the main process writes. `policy` is the folder or hub id that `sft`
    or `rl` starts from, None for a policy from scratch; `query_ids` are RL's queries. Raises UserError if the folder
    holds work with other settings, data or weights, or another run is writing it.
    """
    from arenarl.run.processes import check_launch  # loads torch

    check_launch()
    reporters(config.wandb)  # raises for a misspelt WANDB_MODE
    fix_randomness(config)
    folder = config.run_dir / stage
    folder.mkdir(parents=True, exist_ok=True)
    if is_main_process():
        is_finished = _has_finished(folder)
        now = {} if is_finished else provenance(config, stage)
        start = start_record(config, stage, now, policy, query_ids) if stage in ("sft", "rl") else None
        if start and has_begun(folder):
            refuse_other_start(folder, config, start, is_finished)
        if not is_finished:
            lock_folder(folder)
            if start and has_begun(folder):
                for name in ("curve", "groups", "metrics", "watch"):  # a damaged line raises here, not at a later step
                    if (path := folder / f"{name}.jsonl").exists():
                        deque(read_steps(path), maxlen=0)
            elif start:
                _keep_start(folder, start)
            write_text(folder / "config.yaml", config_to_yaml(config))
            write_json(folder / "provenance.json", now)
    keep_tracebacks(folder)  # only now: the folder may belong to another run
    return folder


def _keep_start(folder: Path, start: StartRecord) -> None:
    """Write the start record of a stage that took no step. If it had another record, delete that start's files."""
    before = None
    with suppress(UserError):  # damaged: replaced below
        before = read_start(folder)
    if before != start:
        for name in ("wandb.json", "elapsed.json", "watch.jsonl", "initial"):  # initial: SFT's untrained policy
            remove(folder / name)
        write_json(folder / START, asdict(start))


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


def lock_folder(folder: Path) -> None:
    """Lock a stage's folder until this process ends: two runs would overwrite each other's files. Raises UserError if
    another process holds the lock."""
    if folder.resolve() in _LOCKS:
        return
    lock = (folder / ".lock").open("w")
    if not try_lock(lock):
        raise UserError(f"{folder} is being written by another run; wait until it ends, or stop it")
    _LOCKS[folder.resolve()] = lock


def is_done(folder: Path) -> bool:
    """Return True, and print a line, if a training stage has finished. Raises UserError if its policy is damaged."""
    if _has_finished(folder):
        if is_main_process():
            refuse_damaged_policy(folder)
            read_timing(folder)
        say(f"{folder} is done already; delete it to run it again")
        return True
    if is_main_process():
        (folder / "timing.json").unlink(missing_ok=True)  # left by a deleted policy
    return False


def _has_finished(folder: Path) -> bool:
    """True if the stage's last file and its weights exist."""
    return (folder / "timing.json").is_file() and any(folder.glob("*.safetensors"))
