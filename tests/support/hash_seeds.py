"""Does a computation depend on the order of sets, or on anything else of its process?
Python hashes strings by a seed of each process's own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def printed_in_two_processes(code: str) -> list[str]:
    """What `code` prints in two processes with different hash seeds."""
    environments = [os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)} for seed in ("1", "2")]
    return [
        subprocess.run([sys.executable, "-c", code], env=one, capture_output=True, text=True, check=True).stdout
        for one in environments
    ]
