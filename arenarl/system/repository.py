"""Paths of the repository, so that configs, prompts and rubrics are found from any working directory.

A wheel holds `configs` inside the package, and nothing else of the repository.
"""

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
IS_INSTALLED = (_PACKAGE / "configs").is_dir()  # from a wheel, without a clone
ROOT = _PACKAGE if IS_INSTALLED else _PACKAGE.parent  # the folder that holds `configs`
CONFIGS = ROOT / "configs"
SOURCES = _PACKAGE.parent  # the folder from which `arenarl` is imported


def file_named(path: str | Path) -> Path:
    """Return `path` if it exists in the working directory, else the file of this name in the repository, if any."""
    fallback = ROOT / path
    # os.path.exists, unlike Path.exists, accepts any string
    return fallback if os.path.exists(fallback) and not os.path.exists(path) else Path(path)
