"""The grid of noises, small: differences over the same groups, and what it writes."""

import json
import subprocess
import sys
from statistics import fmean

import pytest

from arenarl.studies.noise_grid import METHODS, STRENGTHS, cell_rows, markdown_table, run
from arenarl.studies.simulated_rankings import NOISE, pointwise_key, simulate


def test_a_difference_is_that_of_the_same_groups_at_as_many_calls():
    tallies = simulate("shared", 1.0, 4, 5, 0)
    rows = {(row["topology"], row["params"], row["ranking"]): row for row in cell_rows("shared", 1.0, 4, 5, 0)}
    assert set(rows) == {key for key in tallies if key[0] != "pointwise"}
    for key, row in rows.items():
        pointwise = tallies[pointwise_key(*key[:2])]
        differences = [a - b for a, b in zip(tallies[key].tau, pointwise.tau, strict=True)]
        assert row["difference"] == pytest.approx(fmean(differences), abs=1e-4)
        assert row["groups"] == len(differences) == 5
        assert row["difference"] == pytest.approx(row["tau"] - row["pointwise_tau"], abs=2e-4)
        assert row["ci"][0] <= row["difference"] <= row["ci"][1]
        assert row["judge_calls"] == fmean(calls for _, calls, _ in pointwise.cost)


@pytest.mark.slow(seconds=4)
def test_a_tournament_wins_where_noise_is_shared_and_not_where_it_sticks():
    found = {
        kind: {row["params"]: row for row in cell_rows(kind, 2.0, 5, 50, 0) if row["topology"] == "balanced"}
        for kind in ("shared", "sticking")
    }
    assert found["shared"]["matches=2n-2"]["ci"][0] > 0.1
    assert abs(found["sticking"]["matches=2n-2"]["difference"]) < 0.1


def test_it_runs_as_a_command_over_all_kinds_and_strengths(tmp_path):
    command = [sys.executable, "-m", "arenarl.studies.noise_grid", "--size", "3", "--groups", "2", "--out", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    grid = json.loads((tmp_path / "out" / "grid.json").read_text())
    assert {(row["noise"], row["strength"]) for row in grid["rows"]} == {
        (kind, strength) for kind in NOISE for strength in STRENGTHS
    }
    assert markdown_table(grid) in done.stdout
    assert len(markdown_table(grid).splitlines()) == 2 + len(METHODS) * len(NOISE)
    assert "simulated" in done.stdout.splitlines()[-1] and grid["judge"] == "simulated"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"grid.json", "noise_grid.png", "noise_grid.svg"}
    assert run(3, 2, 0, 1)["rows"] == grid["rows"]
