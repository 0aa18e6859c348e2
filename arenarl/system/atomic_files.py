"""Files that appear whole or not at all, so that a run killed at any moment leaves only files that can be read.

Several may write one file at once: each writes to a place of its own, and whoever ends last has it. What is written is
JSON that every reader takes, whatever a policy, a judge or a tool put into it.
"""

import hashlib
import itertools
import json
import os
import re
import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import Any

_WRITERS = itertools.count()  # in this process


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Lend a path beside `path` to write a file or folder to;
    it takes the place of `path` at the end, or goes if writing failed."""
    partial = path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}-{next(_WRITERS)}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_of_the_dead(path)
    _remove(partial)
    try:
        yield partial
    except BaseException:
        _remove(partial)
        raise
    partial.replace(path)


def write_text(path: Path, text: str) -> None:
    with appearing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, to_json(value, indent=2) + "\n")


def write_lines(path: Path, records: Iterable[Any]) -> None:
    """A JSON line for each record."""
    with appearing(path) as partial, partial.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(to_json(record) + "\n")


def read_json(path: Path) -> Any | None:
    """What a JSON file holds, None if there is no such file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def to_json(value: Any, **options: Any) -> str:
    """`json.dumps` without what JSON does not have: `null` stands for NaN and the infinities, as in JavaScript.

    >>> to_json({"x": [1.5, float("nan")], "y": json.loads("1e999")})
    '{"x": [1.5, null], "y": null}'
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def hash_files(paths: Iterable[Path]) -> str:
    """sha256 of the files' bytes, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _remove_of_the_dead(path: Path) -> None:
    """What processes of this machine were writing for `path` when they were killed."""
    name = re.compile(rf"{re.escape(path.name)}\.{re.escape(socket.gethostname())}-(\d+)-\d+\.partial")
    for beside in path.parent.iterdir():
        if (found := name.fullmatch(beside.name)) and not _is_alive(int(found[1])):
            with suppress(FileNotFoundError):  # others remove it too
                _remove(beside)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
