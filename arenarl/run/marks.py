"""Marks: the file `whole.json`, written last into a folder, holds the size and sha256 of every other file.

A folder without a mark is incomplete, and a folder that differs from its mark is damaged. Checkpoints, SFT's initial
policy and all trained policies have marks.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any

from arenarl.system.atomic_files import hash_files, json_hash, read_json, write_json
from arenarl.system.errors import UserError

MARK = "whole.json"
HASHED_AT_ONCE = 4  # files; sha256 reads about 1 GB a second on one core
_WEIGHTS = ("*.safetensors*", "*.bin", "*.bin.index.json")
_BESIDE_WEIGHTS = (  # model config, tokenizer, chat template, code, our system prompt
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


def any_file(name: str) -> bool:
    return True


def policy_file(name: str) -> bool:
    """True for the files of a policy. A stage's folder and a checkpoint hold other files too."""
    return name != "training_args.bin" and _fits(name, _WEIGHTS + _BESIDE_WEIGHTS)  # the trainer never reads it


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    """True if a path fits a pattern; `*` does not match a slash."""
    return any(fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in patterns)


def _paths(folder: Path, is_part: Callable[[str], bool]) -> dict[str, Path]:
    """Return the folder's files for which `is_part` is true, by their path in it, without its mark and hidden files."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    hidden = {name for name in paths if name.startswith(".") or "/." in name}  # other programs leave them
    return {name: paths[name] for name in sorted(paths.keys() - hidden - {MARK}) if is_part(name)}


def files_beside_weights(folder: Path) -> dict[str, str]:
    """Return the sha256 of a policy's config, tokenizer, chat template and code."""
    paths = _paths(folder, lambda name: _fits(name, _BESIDE_WEIGHTS))
    return {name: sha256(path) for name, path in paths.items()}


def sha256(path: Path) -> str:
    """Return a file's hash. It is computed once for each size and time stamp, because a file may hold 16 GB."""
    status = path.stat()
    return _sha256(path.resolve(), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1024)
def _sha256(path: Path, size: int, modified: int) -> str:
    return hash_files([path])


def _content(path: Path) -> tuple[int, str]:
    return path.stat().st_size, sha256(path)


def write_mark(folder: Path, is_part: Callable[[str], bool] = any_file, **facts: Any) -> None:
    """Write the mark of a folder's files for which `is_part` is true; `facts` are the further fields of `Mark`."""
    mark = Mark({name: _content(path) for name, path in _paths(folder, is_part).items()}, **facts)
    write_json(folder / MARK, asdict(replace(mark, sha256=mark.hash)))


def read_mark(folder: Path) -> Mark:
    """Return a folder's mark. Raises UserError if it is damaged, or was written by an earlier version."""
    mark = read_json(folder / MARK, Mark)
    if mark is None or mark.sha256 != mark.hash:
        raise UserError(f"{folder / MARK} is damaged; restore it")
    return mark


def damage(folder: Path, is_part: Callable[[str], bool] = any_file) -> str:
    """Return the first difference between a folder's mark and its files for which `is_part` is true.

    Returns "" for equal files, and for a folder without a mark.
    """
    if not (folder / MARK).is_file():
        return ""
    try:
        marked = {name: content for name, content in read_mark(folder).files.items() if is_part(name)}
    except UserError:
        return f"{MARK} is damaged, or was written by an earlier version"
    paths = _paths(folder, is_part)
    with ThreadPoolExecutor(HASHED_AT_ONCE) as pool:
        contents = dict(zip(paths, pool.map(_content, paths.values()), strict=True))
    for name in [*marked, *contents]:
        if name not in contents:
            return f"{name} is missing"
        if name not in marked:
            return f"{name} does not belong there"
        if contents[name] != marked[name]:
            return f"{name} was changed"
    return ""


def refuse_damaged_policy(folder: Path) -> None:
    """Raise UserError if a policy differs from its mark; a policy without a mark passes."""
    if problem := damage(folder, policy_file):
        is_final = (folder / "timing.json").is_file()
        again = f"delete {folder / 'timing.json'} and rerun the stage, which writes the policy again"
        how = f"restore it, or {again if is_final else 'name another policy'}"
        own = f"if you changed it on purpose, delete {folder / MARK}"
        raise UserError(f"{folder} is not the policy that was trained: {problem}; {how}; {own}")
