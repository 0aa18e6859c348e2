"""Seconds and peak memory of a stage, over all its starts, for its timing.json."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from arenarl.system.atomic_files import read_json, write_json
from arenarl.system.progress import is_main_process, process_count

if sys.platform != "win32":
    import resource

_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Timing:
    """Content of a finished stage's timing.json."""

    seconds: _Amount
    peak_memory_gb: _Amount


def read_timing(folder: Path) -> Timing | None:
    """Return the timing of a finished stage, None before its end. Raises UserError for a damaged file."""
    return read_json(folder / "timing.json", Timing, "restore it, or delete it and rerun the stage")


class Stopwatch:
    """Counts the seconds of a stage over all its starts, without the work that was lost when a run was killed."""

    def __init__(self, folder: Path):
        self.path = folder / "elapsed.json"
        remedy = "restore it, or delete it: only the time up to the last checkpoint is then missing"
        self._before = (read_json(self.path, dict[str, _Amount], remedy) or {}).get("seconds", 0.0)
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return round(self._before + time.perf_counter() - self._start, 1)

    def lap(self) -> None:
        """Store the seconds so far; a resumed run continues to count from them."""
        write_json(self.path, {"seconds": self.seconds})


@contextmanager
def timed(folder: Path, stage: str, is_new: bool = True) -> Iterator[Stopwatch]:
    """Write the stage's seconds and peak memory to `<folder>/timing.json` at the end.

    Peak memory is the larger of this process's and its largest child's, times the number of processes. If `is_new` is
    False, an earlier timing.json stays.
    """
    stopwatch = Stopwatch(folder)
    yield stopwatch
    peak_gb = max(peak_memory_gb(), peak_memory_gb(of_children=True))
    if is_main_process() and (is_new or not (folder / "timing.json").is_file()):
        timing = {"stage": stage, "seconds": stopwatch.seconds, "peak_memory_gb": round(peak_gb * process_count(), 2)}
        write_json(folder / "timing.json", timing)
        stopwatch.path.unlink(missing_ok=True)


def peak_memory_gb(of_children: bool = False) -> float:
    """Return the peak memory of this process, or of its largest child, in GiB."""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN if of_children else resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)  # macOS counts bytes, Linux KiB
