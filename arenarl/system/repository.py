"""Paths of the repository, so that configs, prompts and rubrics are found from any working directory."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"


def file_named(path: str | Path) -> Path:
    """Return `path` if it exists in the working directory, else the file of this name in the repository, if any."""
    fallback = ROOT / path
    # os.path.exists, unlike Path.exists, accepts any string
    return fallback if os.path.exists(fallback) and not os.path.exists(path) else Path(path)
