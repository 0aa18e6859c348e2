"""Checkpoints that survive a kill at any moment and are checked before use, and the trainer's progress bar.

The trainer writes a checkpoint file by file, on several processes. A checkpoint is complete once all processes are done
and its mark exists, which holds the hash of every file. A thread hashes the files while training continues. It then
deletes older checkpoints, so after the first one, a complete checkpoint always exists. transformers' own rotation is
off: it deletes too early, and deletes any folder called checkpoint-….
"""

import atexit
import logging
import math
import re
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import PrinterCallback, Trainer, TrainerCallback

from arenarl.run.marks import MARK, damage, read_mark, write_mark
from arenarl.run.timing import Stopwatch
from arenarl.run.tracking import wait_until_written
from arenarl.run.weights import start_hash
from arenarl.system.atomic_files import remove
from arenarl.system.errors import UserError
from arenarl.system.progress import Bar, is_main_process, process_count, say

KEPT = 2  # complete checkpoints
_MARKING = ThreadPoolExecutor(1, "marking")
_marks: list[Future] = []  # marks that are being written
atexit.register(_MARKING.shutdown)  # `run_cli` may skip Python's shutdown, which waits for threads


def last_checkpoint(folder: Path, shared: str = "") -> str | None:
    """Return the newest complete checkpoint that equals its mark. Call it on all processes.

    Deletes incomplete checkpoints, and renames damaged checkpoints that are newer than the result. `shared` names data
    that the processes divide among them. Raises UserError if it is set and the number of processes has changed, because
    some data would be used twice or never, and if all complete checkpoints are damaged.
    """
    _register_cpu_0()
    finish_marks()
    return gather_object([_last_checkpoint(folder, shared) if is_main_process() else None])[0]


def _last_checkpoint(folder: Path, shared: str) -> str | None:
    checkpoints = _checkpoints(folder)
    complete = [path for path in checkpoints if (path / MARK).is_file()]
    for path in (path for path in checkpoints if path not in complete):
        say(f"{path} is incomplete; deleting it")
        remove(path)
    problems: dict[Path, str] = {}
    while complete and (problem := _problem(complete[-1])):
        problems[complete.pop()] = problem
    if problems and not complete:
        details = "; ".join(f"{path.name}: {problem}" for path, problem in problems.items())
        how = "restore them, or delete the folder to restart"
        raise UserError(f"{folder} has no undamaged checkpoint ({details}); {how}")
    if not complete:
        return None
    last = complete[-1]
    processes = read_mark(last).processes
    if shared and processes != process_count():
        how = f"resume with the same number of processes, or delete {folder} to restart"
        raise UserError(f"{last} was written by {processes} processes, which share {shared}; {how}")
    for path, problem in problems.items():
        aside = path.with_name(f"damaged-{path.name}")
        remove(aside)
        path.rename(aside)
        say(f"{path} is damaged: {problem}; renamed it to {aside.name}, resuming from {last.name}")
    return str(last)


def _problem(checkpoint: Path) -> str:
    """Return why training cannot resume from a complete checkpoint, "" if it can."""
    if problem := damage(checkpoint):
        return problem
    mark = read_mark(checkpoint)
    if checkpoint.name != f"checkpoint-{mark.step}":
        return f"it is the checkpoint of step {mark.step}"
    return "" if mark.start == start_hash(checkpoint.parent) else "it belongs to another run"


def finish_marks() -> None:
    """Wait until all checkpoints that were saved have their marks."""
    while _marks:
        _marks.pop().result()


def checkpoint_folder(args: Any, state: Any) -> Path:
    """Return the folder of a trainer's checkpoint after its current step, from its arguments and its state."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _checkpoints(folder: Path) -> list[Path]:
    """Return the trainer's checkpoints by step; other folders called checkpoint-… belong to the user."""
    paths = [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(paths, key=lambda path: int(path.name.partition("-")[2]))


@cache  # registering twice would add a second entry
def _register_cpu_0() -> None:
    """Register the device "cpu:0" with torch's loader; accelerate loads optimizer states onto it."""
    torch.serialization.register_package(
        5, lambda storage: None, lambda storage, place: storage if place.startswith("cpu:") else None
    )


def _lacks_only(tied: set[str], message: str) -> bool:
    """True for the trainer's warning about missing weights if it names only weights that are tied."""
    return message.startswith("There were missing keys") and set(re.findall(r"'([^']*)'", message)) <= tied


class CheckpointMarker(TrainerCallback):
    """Marks complete checkpoints, deletes all but the last two, and records the time up to each.

    A loss or gradient that is not finite ends training before its weights are saved. Add this callback after callbacks
    that write into checkpoints. The interval between checkpoints comes from the config, not from the checkpoint that
    the run resumes from.
    """

    def __init__(self, stopwatch: Stopwatch):
        self.stopwatch = stopwatch

    def on_train_begin(self, args, state, control, **kwargs):
        state.compute_steps(args, state.max_steps)

    def on_log(self, args, state, control, logs=None, **kwargs):
        for name in ("loss", "grad_norm", "train_loss"):
            if not math.isfinite((logs or {}).get(name) or 0.0):
                what = f"{name} is {logs[name]} at step {state.global_step}, so all weights would become NaN"
                how = f"lower the learning rate ({args.learning_rate:g}), or start from another model"
                raise UserError(f"{args.output_dir}: {what}; {how}; delete the folder to restart")

    def on_save(self, args, state, control, **kwargs):
        PartialState().wait_for_everyone()
        if state.is_world_process_zero:
            wait_until_written()
            finish_marks()
            _marks.append(_MARKING.submit(self._mark, Path(args.output_dir), state.global_step))

    def on_train_end(self, args, state, control, **kwargs):
        finish_marks()

    def _mark(self, folder: Path, step: int) -> None:
        write_mark(folder / f"checkpoint-{step}", step=step, processes=process_count(), start=start_hash(folder))
        self.stopwatch.lap()
        for older in [path for path in _checkpoints(folder) if (path / MARK).is_file()][:-KEPT]:
            remove(older)


class TrainingBar(TrainerCallback):
    """The trainer's progress bar; `note` shows a text behind it."""

    def __init__(self, title: str):
        self.title = title
        self.bar: Bar | None = None

    def attach(self, trainer: Trainer) -> None:
        """Replace the trainer's own callback, which prints all metrics at every log.

        Also hide its warning about weights that a checkpoint lacks, if all of them are tied to other weights.
        """
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(self)
        tied = set(getattr(trainer.model, "all_tied_weights_keys", ()))
        logging.getLogger(Trainer.__module__).addFilter(lambda record: not _lacks_only(tied, record.getMessage()))

    def note(self, text: object) -> None:
        if self.bar is not None:
            self.bar.note(str(text))

    def on_train_begin(self, args, state, control, **kwargs):
        self.bar = Bar(self.title, state.max_steps, state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        self.bar.update()

    def on_train_end(self, args, state, control, **kwargs):
        self.bar.close()
