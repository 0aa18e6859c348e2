"""Find the user's own code that a config names by import path, so that a change of this code is noticed."""

import ast
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from arenarl.system.atomic_files import hash_files
from arenarl.system.user_input import add_current_folder

OWN_CODE = "the code of "
_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def code_hashes(settings: Any) -> dict[str, str]:
    """Return the hash of the code of each own function or class that the settings name.

    `settings` are a config as dicts and lists. A key is "the code of package.module:Class".
    """
    files = {name: own_code([name]) for name in _import_paths(settings)}
    return {OWN_CODE + name: hash_files(of_name) for name, of_name in files.items() if of_name}


def own_code(names: Iterable[str]) -> list[Path]:
    """Return the source files of a user's classes and functions: a package, or a module and its imports beside it.

    Names without a colon and modules that cannot be found have none; importing them reports the error.
    """
    add_current_folder()
    files: set[Path] = set()
    for module in (name.partition(":")[0] for name in names if ":" in name):
        with suppress(Exception):  # importing the code reports its errors
            if (spec := find_spec(module)) and spec.has_location:
                file = Path(spec.origin)
                _add_code(module, file.parents[module.count(".") + (file.stem == "__init__")], files)
    return sorted(files)


def _import_paths(settings: Any) -> Iterator[str]:
    """Yield each value of the form package.module:Class."""
    if isinstance(settings, str):
        if _IMPORT_PATH.fullmatch(settings):
            yield settings
    elif isinstance(settings, dict | list | tuple):
        for value in settings.values() if isinstance(settings, dict) else settings:
            yield from _import_paths(value)


def _add_code(module: str, root: Path, files: set[Path]) -> None:
    """Add the files of a module below `root` and of its imports below `root`; a package is added whole."""
    top, file = root / module.partition(".")[0], root.joinpath(*module.split(".")).with_suffix(".py")
    if top.name == "arenarl" or file in files:
        return
    if (top / "__init__.py").is_file():
        files |= set(top.rglob("*.py"))
    elif file.is_file():
        files.add(file)
        if "site-packages" not in file.parts:
            for used in _imports(module, file):
                _add_code(used, root, files)


def _imports(module: str, file: Path) -> Iterator[str]:
    """Yield the names of modules that a module may import; `from a import b` yields `a` and `a.b`."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*package, *filter(None, [node.module])])
            yield from (origin, *(f"{origin}.{alias.name}" for alias in node.names))
