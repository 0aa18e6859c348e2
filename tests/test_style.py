"""What the house style asks of every file, where a tool can see it."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_ruff_finds_nothing():
    command = [sys.executable, "-m", "ruff", "check", "--output-format", "concise"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_stands_behind_what_starts_a_script():
    """`python -m` would start it before that is defined, and tests, which import, would not see it."""
    late = []
    for file in (
        *ROOT.glob("*.py"),
        *(ROOT / "data").glob("*.py"),
        *(ROOT / "arenarl").rglob("*.py"),
        *(ROOT / "examples").glob("*.py"),
    ):
        *others, _ = ast.parse(file.read_text(encoding="utf-8")).body or [None]
        late += [file for one in others if isinstance(one, ast.If) and "__main__" in ast.unparse(one.test)]
    assert late == []


def test_every_slow_test_says_how_slow():
    texts = {
        file.name: file.read_text(encoding="utf-8")
        for file in (ROOT / "tests").rglob("test_*.py")
        if file != Path(__file__)
    }
    assert [name for name, text in texts.items() if re.search(r"mark\.slow\b(?!\(seconds=\d)", text)] == []
