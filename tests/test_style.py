"""What the house style asks of every file, where a tool can see it."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_ruff_finds_nothing():
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--output-format", "concise"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_slow_test_says_how_slow():
    marks = {str(file.relative_to(ROOT)): re.findall(r"mark\.slow\b(.{0,9})", file.read_text(encoding="utf-8")) for file in (ROOT / "tests").rglob("test_*.py")}
    assert [file for file, rests in marks.items() if any(not rest.startswith("(seconds=") for rest in rests if file != "tests/test_style.py")] == []
