"""Rules of the house style that a tool can check in every file."""

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


def test_the_main_block_is_the_last_statement_of_a_file():
    """A definition after it would be missing when the file runs as a script, and tests would not notice."""
    files = [file for folder in ("", "data", "examples") for file in (ROOT / folder).glob("*.py")]
    late = []
    for file in [*files, *(ROOT / "arenarl").rglob("*.py")]:
        *others, _ = ast.parse(file.read_text(encoding="utf-8")).body or [None]
        late += [file for node in others if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)]
    assert late == []


def test_every_slow_test_states_its_seconds():
    files = [file for file in (ROOT / "tests").rglob("test_*.py") if file != Path(__file__)]
    pattern = re.compile(r"mark\.slow\b(?!\(seconds=\d)")
    assert [file.name for file in files if pattern.search(file.read_text(encoding="utf-8"))] == []
