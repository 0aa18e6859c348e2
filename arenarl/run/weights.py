"""Refuse an RL policy whose SFT policy was trained again: the SFT folder then has the same name but other weights.

Otherwise RL would resume with another reference policy, and evaluation would compare RL with a start that it never had.
"""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from arenarl.run.settings import has_begun
from arenarl.system.atomic_files import hash_files, read_json, write_json
from arenarl.system.errors import UserError
from arenarl.system.progress import is_main_process

_START = "start.json"


def hash_weights(policy: str) -> str:
    """Return the sha256 of the weights in a policy's folder, or `policy` itself for a hub id or an empty folder."""
    files = sorted(Path(policy).glob("*.safetensors")) or sorted(Path(policy).glob("pytorch_model*.bin"))
    return _hash(tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files)) if files else policy


@lru_cache  # the weights may be 16 GB
def _hash(files: tuple[tuple[Path, int, int], ...]) -> str:
    return hash_files(path for path, _, _ in files)


def keep_start(folder: Path, policy: str) -> None:
    """Store the hash of RL's initial weights in its folder (main process only).

    Raises UserError if the folder's RL started from other weights.
    """
    if not is_main_process():
        return
    start = read_json(folder / _START)
    if not has_begun(folder):
        write_json(folder / _START, {"policy": policy, "weights": hash_weights(policy)})
    elif start is not None and start["weights"] != hash_weights(policy):  # None: started by an earlier version
        how = f"delete {folder} to train it from these, or give this run another `name`"
        raise UserError(f"{folder} was trained from other weights than {policy} has now; {how}")


def refuse_other_starts(policies: Iterable[str]) -> None:
    """Raise UserError if one of the compared policies was trained from an earlier version of another."""
    folders = {Path(policy).resolve(): policy for policy in policies}
    for policy in folders.values():
        stored = read_json(Path(policy) / _START)
        start = folders.get(Path(stored["policy"]).resolve()) if stored else None
        if start and stored["weights"] != hash_weights(start):
            how = f"delete {policy} and train it again, or name only one of them in evaluate.checkpoints"
            compared = "so they cannot be compared"
            raise UserError(f"{policy} was trained from other weights than {start} has now, {compared}; {how}")
