"""The ranking study, small: what it writes."""

import json
import subprocess
import sys

import pytest

from arenarl.studies.fidelity import MODELS, markdown_differences, markdown_table
from arenarl.studies.simulated_rankings import NOISE


@pytest.mark.slow(seconds=19)
def test_it_runs_as_a_command_and_writes_every_noise_and_size(tmp_path):
    options = "--sizes 2 8 --groups 2 --paired-groups 2".split()
    command = [sys.executable, "-m", "arenarl.studies.fidelity", *options, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "simulated" in done.stdout.splitlines()[-1]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["judge"] == "simulated" and summary["seed"] == 0
    named = {
        "noise", "strength", "group_size", "topology", "ranking", "matches", "judge_calls", "critical_path", "tau",
        "tau_ci", "best_first",
    }  # fmt: skip
    assert all(named <= set(row) for row in summary["rows"])
    assert {row["noise"] for row in summary["rows"]} == set(NOISE)
    assert {row["group_size"] for row in summary["rows"]} == {2, 8}
    rankings = {(row["topology"], row["ranking"]) for row in summary["rows"]}
    assert rankings >= {("swiss", "bracket"), ("swiss", "scores"), ("pointwise", "mean")}
    assert len(summary["reach"]) == len(MODELS)
    assert markdown_table(summary) in done.stdout and markdown_differences(summary) in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"summary.json", "tau_by_calls.png", "tau_by_calls.svg"}
