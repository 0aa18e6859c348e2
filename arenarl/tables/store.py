"""Finished runs on disk: results/<table>/rows.jsonl has a line for each row and seed.

A run is written as soon as it ends. The file is replaced as a whole under a lock. So a kill leaves the old file or the
new one, and processes that finish runs of one table at the same time keep each other's lines.
"""

from pathlib import Path
from typing import Any

from filelock import FileLock

from arenarl.system.atomic_files import write_lines
from arenarl.system.errors import UserError
from arenarl.trajectory import numbered_records

FILE = "rows.jsonl"
SFT_HASH = "sft_sha256"  # in a run's provenance: the weights of the SFT policy that it started from
_KEYS = {"row", "seed", "settings", "figures", "by_subtask", "judge_calls", "curve", "seconds", "judge"}

Stored = dict[tuple[str, int], dict[str, Any]]  # (row, seed) -> the run's results


def read_runs(folder: Path) -> Stored:
    """Return the finished runs of a table's folder, sorted by row and seed.
    Raises UserError for a line that is not a finished run, and for two lines with the same row and seed."""
    path, runs = folder / FILE, {}
    for number, run in numbered_records(path) if path.is_file() else ():
        is_run = isinstance(run, dict) and run.keys() >= _KEYS
        if not is_run or type(run["row"]) is not str or type(run["seed"]) is not int:
            raise UserError(f"{path}, line {number} is not a finished run; delete the line to repeat the run")
        if (run["row"], run["seed"]) in runs:
            raise UserError(f"{path}, line {number} repeats row {run['row']}, seed {run['seed']}; delete one of them")
        runs[run["row"], run["seed"]] = run
    return dict(sorted(runs.items()))


def store_run(folder: Path, run: dict[str, Any]) -> None:
    """Write a finished run; it replaces an earlier one of the same row and seed."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        runs = read_runs(folder) | {(run["row"], run["seed"]): run}
        write_lines(folder / FILE, (runs[key] for key in sorted(runs)))


def cpu_of(run: dict[str, Any]) -> str | None:
    """Return the kind of CPU of a run; None for older runs, which did not record it."""
    return run.get("provenance", {}).get("cpu")


def sft_hash_of(run: dict[str, Any]) -> str | None:
    """Return the hash of the SFT policy that a run started from; None for older runs, which did not record it."""
    return run.get("provenance", {}).get(SFT_HASH)


def are_other_policies(sha256: str | None, other: str | None) -> bool:
    """Return True if two SFT policies are known to differ."""
    return None not in (sha256, other) and sha256 != other


def row_of_other_policy(runs: Stored, seed: int, sha256: str | None) -> str | None:
    """Return the name of a row of this seed whose SFT policy is known to have another hash, or None."""
    of_seed = ((row, run) for (row, of), run in runs.items() if of == seed)
    return next((row for row, run in of_seed if are_other_policies(sft_hash_of(run), sha256)), None)
