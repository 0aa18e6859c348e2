"""mypy accepts the public interface, and code that uses it as a user would."""

import subprocess
import sys
from pathlib import Path


def test_the_public_interface_is_typed():
    command = [sys.executable, "-m", "mypy", "--no-error-summary"]
    root = Path(__file__).resolve().parents[1]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
