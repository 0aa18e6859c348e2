"""Checkpoints that survive a kill at any moment, and the trainer's progress bar.

The trainer writes a checkpoint file by file, on several processes. A checkpoint is complete once all processes are done
and its marker file exists. Older checkpoints are deleted only then, so a complete one always exists after the first.
transformers' own rotation is off: it deletes earlier, and any folder called checkpoint-….
"""

import re
import shutil
from functools import cache
from pathlib import Path

import torch
from accelerate import PartialState
from transformers import PrinterCallback, Trainer, TrainerCallback

from arenarl.run.timing import Stopwatch
from arenarl.run.tracking import wait_until_written
from arenarl.system.atomic_files import read_json, write_json
from arenarl.system.errors import UserError
from arenarl.system.progress import Bar, is_main_process, process_count

MARK = "whole.json"
KEPT = 2  # complete checkpoints


def last_checkpoint(folder: Path, shared: str = "") -> str | None:
    """Return the newest complete checkpoint, and delete incomplete checkpoints.

    Args:
        shared: data that the processes divide among them. With another number of processes some of it would be used
            twice or never.

    Raises:
        UserError: something is shared, and the checkpoint was written by another number of processes.
    """
    _register_cpu_0()
    checkpoints = _checkpoints(folder)
    complete = [path for path in checkpoints if (path / MARK).is_file()]
    processes = read_json(complete[-1] / MARK).get("processes") if complete else None
    if shared and processes not in (None, process_count()):  # markers of earlier versions lack the number
        how = f"resume with the same number of processes, or delete {folder} to restart"
        raise UserError(f"{complete[-1]} was written by {processes} processes, which share {shared}; {how}")
    if is_main_process():
        for path in set(checkpoints) - set(complete):
            shutil.rmtree(path)
    return str(complete[-1]) if complete else None


def _checkpoints(folder: Path) -> list[Path]:
    """Return the trainer's checkpoints by step; other folders called checkpoint-… belong to the user."""
    found = [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(found, key=lambda path: int(path.name.partition("-")[2]))


@cache  # registering twice would add a second entry
def _register_cpu_0() -> None:
    """Register the device "cpu:0" with torch's loader; accelerate loads optimizer states onto it."""
    torch.serialization.register_package(
        5, lambda storage: None, lambda storage, place: storage if place.startswith("cpu:") else None
    )


class CheckpointMarker(TrainerCallback):
    """Marks complete checkpoints, deletes all but the last two, and records the time up to each.

    The interval between checkpoints comes from the config, not from the checkpoint that the run resumes from.
    """

    def __init__(self, stopwatch: Stopwatch):
        self.stopwatch = stopwatch

    def on_train_begin(self, args, state, control, **kwargs):
        state.compute_steps(args, state.max_steps)

    def on_save(self, args, state, control, **kwargs):
        PartialState().wait_for_everyone()
        if state.is_world_process_zero:
            wait_until_written()
            folder, step = Path(args.output_dir), state.global_step
            write_json(folder / f"checkpoint-{step}" / MARK, {"step": step, "processes": process_count()})
            self.stopwatch.lap()
            for older in [path for path in _checkpoints(folder) if (path / MARK).is_file()][:-KEPT]:
                shutil.rmtree(older)


class TrainingBar(TrainerCallback):
    """The trainer's progress bar; `note` shows a text behind it."""

    def __init__(self, title: str):
        self.title = title
        self.bar: Bar | None = None

    def attach(self, trainer: Trainer) -> None:
        """Replace the trainer's own callback, which prints all metrics at every log."""
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(self)

    def note(self, text: object) -> None:
        if self.bar is not None:
            self.bar.note(str(text))

    def on_train_begin(self, args, state, control, **kwargs):
        self.bar = Bar(self.title, state.max_steps, state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        self.bar.update()

    def on_train_end(self, args, state, control, **kwargs):
        self.bar.close()
