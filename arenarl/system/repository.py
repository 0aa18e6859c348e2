"""Where the repository lies that this package belongs to: configs, prompts and rubrics are found from any working directory."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
