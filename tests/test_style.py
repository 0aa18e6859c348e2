"""What the house style asks of every file, where a tool can see it."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_ruff_finds_nothing():
    command = [sys.executable, "-m", "ruff", "check", "--output-format", "concise"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_slow_test_says_how_slow():
    texts = {file.name: file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py") if file != Path(__file__)}
    assert [name for name, text in texts.items() if re.search(r"mark\.slow\b(?!\(seconds=\d)", text)] == []
