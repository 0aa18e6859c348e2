"""The tutorial: its excerpts are those of examples/own_domain, and its commands lead from queries to a report."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from scripts import ENVIRONMENT, ROOT, read

from arenarl.trajectory import read_jsonl

TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "own_domain"
EXCERPT = re.compile(r"```\w+\n(.*?)```", re.DOTALL)
COMMANDS = re.findall(r"^ {4}(\S.*)", EXCERPT.sub("", TUTORIAL), re.MULTILINE)


def test_every_excerpt_stands_in_a_file_of_the_example():
    files = [
        path.read_text(encoding="utf-8") for path in EXAMPLE.rglob("*") if path.suffix in (".py", ".yaml", ".jsonl")
    ]
    excerpts = EXCERPT.findall(TUTORIAL)
    assert len(excerpts) > 5
    for excerpt in excerpts:
        assert any(excerpt in text for text in files), excerpt


@pytest.mark.slow(seconds=60)
def test_the_commands_of_the_tutorial_work(tmp_path):
    for name in ("arenarl", "configs", "train_sft.py", "train_rl.py", "evaluate.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(EXAMPLE, tmp_path / "examples" / "own_domain", ignore=shutil.ignore_patterns("runs", "sft.jsonl"))
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, start in (("python", ""), ("arenarl", " -m arenarl")):
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable}{start} "$@"\n')
        (commands / name).chmod(0o755)
    environment = os.environ | ENVIRONMENT | {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
    script = "set -e\n" + "\n".join(COMMANDS)
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]

    folder = tmp_path / "examples" / "own_domain"
    ranked, best = list(read_jsonl(folder / "ranked.jsonl")), list(read_jsonl(folder / "best.jsonl"))
    assert [record["best"] for record in ranked] == [0, 1, 0] and "copies: 2" in best[0]["completion"]
    summary = read(folder / "runs" / "library" / "summary.json")
    assert summary["reference"] == "sft sampled" and summary["rl"]["sampled"]["valid_rate"]["mean"] > 50
    assert summary["rl"]["sampled"]["tool_calls"]["mean"] > summary["sft"]["sampled"]["tool_calls"]["mean"]
    assert "Training. Rewards from ranks" in (folder / "runs" / "library" / "report.html").read_text()
    assert (folder / "ranked.html").is_file() and (folder / "runs/library/figures/training_curves.svg").is_file()
