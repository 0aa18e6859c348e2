"""Write files that appear whole or not at all, so that a killed run leaves only readable files.

Several processes may write one file at once: each writes to its own temporary path, and the last to finish wins.
JSON output follows the standard, even if a policy, a judge or a tool produced NaN or half a character.
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
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

from arenarl.system.errors import UserError, is_alive, one_line
from arenarl.system.user_input import first_problem, is_stream

_WRITERS = itertools.count()  # numbers this process's temporary files


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` for a new file or folder. It replaces `path`, or what a link names, on
    success and is deleted on an error. Raises UserError for a pipe or a device, such as /dev/null."""
    if is_stream(path):
        raise UserError(f"{path} is a pipe or device, which a new file would replace; name a file")
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    partial = path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}-{next(_WRITERS)}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    remove(partial)
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        remove(partial)
        raise


def write_text(path: Path, text: str) -> None:
    with atomic_path(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, to_json(value, indent=2) + "\n")


def write_lines(path: Path, records: Iterable[Any]) -> int:
    """Write one JSON line per record. Return the number of records."""
    count = 0
    with atomic_path(path) as partial, partial.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(to_json(record) + "\n")
            count += 1
    return count


def append_lines(path: Path, records: Iterable[Any]) -> None:
    """Append one JSON line per record. A kill may leave only the first lines, and the last of these cut off."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(to_json(record) + "\n" for record in records))


def read_json(path: Path, form: Any = None, remedy: str = "restore it, or delete it") -> Any | None:
    """Return the content of a JSON file, None if the file does not exist.

    `form` is the type of the content; for a dataclass, an instance is returned. None accepts any content. Raises
    UserError, with `remedy`, if the file is not JSON or its content has another form.
    """
    if not path.exists():
        return None
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if form is None else _validator(form).validate_json(text, strict=True)
    except (ValueError, RecursionError) as error:  # pydantic's and json's errors are ValueErrors
        problem = first_problem(error) if hasattr(error, "errors") else error
        raise UserError(f"{path} is damaged ({one_line(problem)}); {remedy}") from error


@cache
def _validator(form: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(form)


def to_json(value: Any, **options: Any) -> str:
    """Like `json.dumps`, with `null` for NaN and the infinities, as in JavaScript, and `?` for a lone surrogate, which
    no file can contain.

    >>> to_json({"x": [1.5, float("nan")], "y": json.loads("1e999"), "z": "\\ud83d"})
    '{"x": [1.5, null], "y": null, "z": "?"}'
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, **options)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, **options)
    return text.encode("utf-8", "replace").decode()


def as_stored(value: Any) -> Any:
    """Return a JSON value as it is read back from a file.

    >>> as_stored({1: (1.5, float("nan"))})
    {'1': [1.5, None]}
    """
    return json.loads(to_json(value))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def hash_files(paths: Iterable[Path]) -> str:
    """Return the sha256 of the files' concatenated bytes."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def json_hash(value: Any) -> str:
    """Return the sha256 of a JSON value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _remove_leftovers(path: Path) -> None:
    """Delete temporary files for `path` that killed processes of this machine left behind."""
    name = re.compile(rf"{re.escape(path.name)}\.{re.escape(socket.gethostname())}-(\d+)-\d+\.partial")
    for beside in path.parent.iterdir():
        if (found := name.fullmatch(beside.name)) and not is_alive(int(found[1])):
            with suppress(FileNotFoundError):  # another process may delete it at the same time
                remove(beside)


def remove(path: Path) -> None:
    """Delete a file, a folder, or a symbolic link without its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
