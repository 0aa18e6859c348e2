"""Where the repository lies that this package belongs to: configs, prompts and rubrics are found from any working directory."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"


def file_named(path: str | Path) -> Path:
    """The file that a user means: as it is, or the repository's where the working directory has none of this name."""
    path = Path(path)
    of_repository = CONFIGS.parent / path
    return of_repository if of_repository.exists() and not path.exists() else path
