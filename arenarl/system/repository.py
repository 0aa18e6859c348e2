"""Where the repository lies that this package belongs to:
configs, prompts and rubrics are found from any working directory."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"


def file_named(path: str | Path) -> Path:
    """The file that a user means: as it is, or the repository's where the working directory has none of this name."""
    of_repository = ROOT / path
    # unlike Path's, for any odd path
    return of_repository if os.path.exists(of_repository) and not os.path.exists(path) else Path(path)
