"""The weights that RL began from: a cold start that was trained anew is another start,
though its folder has the same name.

Otherwise RL would go on towards another reference policy, and evaluation would compare RL with a start that it never
had.
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
    """sha256 of the weights in a policy's folder. A hub id stands for its own,
    and a folder without any for what will be there."""
    files = sorted(Path(policy).glob("*.safetensors")) or sorted(Path(policy).glob("pytorch_model*.bin"))
    return _hash(tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files)) if files else policy


@lru_cache  # several who ask read 16 GB once
def _hash(files: tuple[tuple[Path, int, int], ...]) -> str:
    return hash_files(path for path, _, _ in files)


def keep_start(folder: Path, policy: str) -> None:
    """Note in RL's folder which weights it begins from, or see that they are those that it began from.
    On the main process only.

    Raises:
        UserError: RL was begun, or has ended, from other weights.
    """
    if not is_main_process():
        return
    kept = read_json(folder / _START)
    if not has_begun(folder):
        write_json(folder / _START, {"policy": policy, "weights": hash_weights(policy)})
    elif kept is not None and kept["weights"] != hash_weights(policy):  # None: a version without it began
        raise UserError(
            f"{folder} was trained from other weights than {policy} has now; delete {folder} to train it from these, "
            "or give this run another `name`"
        )


def refuse_other_starts(policies: Iterable[str]) -> None:
    """Of the policies that are compared, none was trained from an earlier version of another.
    Raises UserError naming the two."""
    folders = {Path(policy).resolve(): policy for policy in policies}
    for policy in folders.values():
        kept = read_json(Path(policy) / _START)
        start = folders.get(Path(kept["policy"]).resolve()) if kept else None
        if start and kept["weights"] != hash_weights(start):
            raise UserError(
                f"{policy} was trained from other weights than {start} has now, so they cannot be compared; "
                f"delete {policy} and train it again, or name one of them alone in evaluate.checkpoints"
            )
