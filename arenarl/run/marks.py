"""Marks: the file `whole.json`, written last into a folder, holds the size and sha256 of every other file.

A folder without a mark is incomplete, and a folder that differs from its mark is damaged. Checkpoints, SFT's initial
policy and all trained policies have marks.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from arenarl.system.atomic_files import hash_files, read_json, write_json
from arenarl.system.database import json_hash
from arenarl.system.errors import UserError

MARK = "whole.json"
_WEIGHTS = ("*.safetensors*", "*.bin", "*.bin.index.json")
_BESIDE_WEIGHTS = (  # of a policy's folder: model config, tokenizer, chat template, code, our system prompt
    "config.json", "generation_config.json", "*tokenizer*", "*token*.json", "vocab*", "merges.txt", "*.model",
    "chat_template*", "additional_chat_templates/*", "*processor_config.json", "adapter_config.json",
    "modeling_*.py", "configuration_*.py", "system_prompt.json",
)  # fmt: skip


@dataclass(frozen=True)
class Mark:
    """Content of the file. Marks of earlier versions lack hashes."""

    files: dict[str, tuple[int, str]]  # path in the folder -> size and sha256
    step: int | None = None
    processes: int | None = None
    start: str | None = None  # hash of the start record of the stage that wrote the folder
    sha256: str | None = None  # of the other fields; None until written

    @property
    def hash(self) -> str:
        return json_hash({**asdict(self), "sha256": None})


def files_in(folder: Path) -> Iterable[Path]:
    """Return all files of a folder but its mark and hidden files, which other programs leave."""
    return [path for path in folder.rglob("*") if path.is_file() and path.name != MARK and path.name[0] != "."]


def policy_files(folder: Path, patterns: Iterable[str] = (*_WEIGHTS, *_BESIDE_WEIGHTS)) -> Iterable[Path]:
    """Return the files of a policy in a stage's folder, which holds other files too."""
    found = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return found - {folder / "training_args.bin"}  # written by the trainer, never read


def files_beside_weights(folder: Path) -> dict[str, str]:
    """Return the sha256 of a policy's config, tokenizer, chat template and code."""
    names = policy_files(folder, _BESIDE_WEIGHTS)
    return {path.relative_to(folder).as_posix(): sha256(path) for path in sorted(names)}


def sha256(path: Path) -> str:
    """Return a file's hash. It is computed once for each size and time stamp, because a file may hold 16 GB."""
    status = path.stat()
    return _sha256(path.resolve(), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1024)
def _sha256(path: Path, size: int, modified: int) -> str:
    return hash_files([path])


def write_mark(folder: Path, files: Callable[[Path], Iterable[Path]] = files_in, **facts: Any) -> None:
    """Write the mark of a folder; `facts` are the further fields of `Mark`."""
    hashes = {path.relative_to(folder).as_posix(): (path.stat().st_size, sha256(path)) for path in files(folder)}
    mark = Mark(dict(sorted(hashes.items())), **facts)
    write_json(folder / MARK, asdict(replace(mark, sha256=mark.hash)))


def read_mark(folder: Path) -> Mark:
    """Return a folder's mark. Raises UserError for a damaged mark, or one of an earlier version, without hashes."""
    mark = read_json(folder / MARK, Mark)
    if mark.sha256 != mark.hash:
        raise UserError(f"{folder / MARK} is damaged; restore it")
    return mark


def damage(folder: Path, files: Callable[[Path], Iterable[Path]] = files_in) -> str:
    """Return the first difference between a folder and its mark, "" without one."""
    try:
        marked = read_mark(folder).files
    except UserError:
        return f"{MARK} is damaged, or was written by an earlier version"
    present = {path.relative_to(folder).as_posix(): path for path in files(folder)}
    for name, (size, digest) in marked.items():
        if name not in present:
            return f"{name} is missing"
        if present[name].stat().st_size != size or sha256(present[name]) != digest:
            return f"{name} was changed"
    return next((f"{name} does not belong there" for name in sorted(present) if name not in marked), "")


def refuse_damaged_policy(folder: Path) -> None:
    """Raise UserError if a finished stage's policy differs from its mark; a policy without a mark passes."""
    if (folder / MARK).is_file() and (problem := damage(folder, policy_files)):
        how = f"restore it, or delete {folder / 'timing.json'} and rerun the stage, which writes the policy again"
        own = f"if you changed it on purpose, delete {folder / MARK}"
        raise UserError(f"{folder} is not the policy that was trained: {problem}; {how}; {own}")
