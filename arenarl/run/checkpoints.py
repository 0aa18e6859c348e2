"""Checkpoints that survive a kill at any moment, and the trainer's part of what a run shows.

The trainer writes a checkpoint file by file, on several processes. It counts as whole once all of them are through and
the mark is there; older ones are deleted only then, so from the first mark on there always is a whole one.
transformers' own rotation, which deletes before that, and whatever is called checkpoint-…, is off.
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
KEPT = 2  # whole checkpoints


def last_checkpoint(folder: Path, shared: str = "") -> str | None:
    """The newest whole checkpoint to resume from; those that were being written when the run was killed are removed.

    Args:
        shared: what the processes share out among them, so that it takes as many to go on:
            rows would be seen twice or never, say.

    Raises:
        UserError: there are more or fewer processes than the checkpoint's, and something is shared.
    """
    _know_cpu_0()
    checkpoints = _checkpoints(folder)
    whole = [path for path in checkpoints if (path / MARK).is_file()]
    processes = read_json(whole[-1] / MARK).get("processes") if whole else None
    if shared and processes not in (None, process_count()):  # a mark of earlier code says nothing of them
        raise UserError(
            f"{whole[-1]} was begun with {processes} processes, which share {shared}; start as many, "
            f"or delete {folder} to begin anew"
        )
    if is_main_process():
        for path in set(checkpoints) - set(whole):
            shutil.rmtree(path)
    return str(whole[-1]) if whole else None


def _checkpoints(folder: Path) -> list[Path]:
    """By step; what else is called checkpoint-… is somebody's own."""
    ours = [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(ours, key=lambda path: int(path.name.partition("-")[2]))


@cache  # torch cannot tell two apart
def _know_cpu_0() -> None:
    """Accelerate loads optimizer states onto "cpu:0", a place that torch's loader does not know."""
    torch.serialization.register_package(
        5, lambda storage: None, lambda storage, place: storage if place.startswith("cpu:") else None
    )


class Survival(TrainerCallback):
    """Marks whole checkpoints, deletes all but the last of them, and stops the time up to each.

    How often there is one, the config says, not the checkpoint resumed from.
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
    """The trainer's progress; `note` shows a text behind it."""

    def __init__(self, title: str):
        self.title = title
        self.bar: Bar | None = None

    def attach(self, trainer: Trainer) -> None:
        """Take the place of the trainer's own callback, which prints all metrics at every log."""
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
