"""The ranking study on small groups: the files and tables it writes."""

import json
import sys

import pytest

from arenarl.studies import fidelity, simulated_rankings
from arenarl.studies.fidelity import MODELS, markdown_differences, markdown_table
from arenarl.studies.simulated_rankings import NOISE


@pytest.mark.slow(seconds=6)
def test_it_writes_every_noise_and_size(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(simulated_rankings, "WARM_UP", 0)
    monkeypatch.setattr(fidelity, "PAIRED_SIZES", (4,))
    monkeypatch.setattr(sys, "argv", f"_ --sizes 2 4 --groups 2 --paired-groups 2 --out {tmp_path}".split())
    fidelity.main()
    out = capsys.readouterr().out
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert "simulated" in out.splitlines()[-1] and summary["judge"] == "simulated" and summary["seed"] == 0
    named = {
        "noise", "strength", "group_size", "topology", "ranking", "matches", "judge_calls", "critical_path", "tau",
        "tau_ci", "best_first",
    }  # fmt: skip
    assert all(named <= set(row) for row in summary["rows"])
    assert {row["noise"] for row in summary["rows"]} == set(NOISE)
    assert {row["group_size"] for row in summary["rows"]} == {2, 4}
    rankings = {(row["topology"], row["ranking"]) for row in summary["rows"]}
    assert rankings >= {("swiss", "bracket"), ("swiss", "scores"), ("pointwise", "mean")}
    assert len(summary["reach"]) == len(MODELS)
    assert markdown_table(summary) in out and markdown_differences(summary) in out
    assert {path.name for path in tmp_path.iterdir()} == {"summary.json", "tau_by_calls.png", "tau_by_calls.svg"}
