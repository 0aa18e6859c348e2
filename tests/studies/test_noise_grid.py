"""The grid of noises on small groups: differences over the same groups, and the files it writes."""

import json
import sys
from statistics import fmean

import pytest

from arenarl.studies import noise_grid, simulated_rankings
from arenarl.studies.noise_grid import METHODS, STRENGTHS, cell_rows, markdown_table, run
from arenarl.studies.simulated_rankings import NOISE, difference, pointwise_key, simulate


def test_a_difference_is_over_the_same_groups_and_tournaments_win_if_noise_is_shared():
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
    key, found = ("balanced", "matches=2n-2", "scores"), {}
    for kind in ("shared", "sticking"):
        tallies = simulate(kind, 2.0, 5, 50, 0, [("balanced", {"matches": "2n-2"})])
        found[kind] = difference(tallies[key], tallies[pointwise_key(*key[:2])])
    assert found["shared"]["ci"][0] > 0.1 and abs(found["sticking"]["difference"]) < 0.1


@pytest.mark.slow(seconds=5)
def test_the_grid_has_all_kinds_and_strengths(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(simulated_rankings, "WARM_UP", 0)
    monkeypatch.setattr(sys, "argv", f"_ --size 3 --groups 2 --out {tmp_path}".split())
    noise_grid.main()
    out, grid = capsys.readouterr().out, json.loads((tmp_path / "grid.json").read_text())
    cells = {(row["noise"], row["strength"]) for row in grid["rows"]}
    assert cells == {(kind, strength) for kind in NOISE for strength in STRENGTHS}
    assert markdown_table(grid) in out
    assert len(markdown_table(grid).splitlines()) == 2 + len(METHODS) * len(NOISE)
    assert "simulated" in out.splitlines()[-1] and grid["judge"] == "simulated"
    assert {path.name for path in tmp_path.iterdir()} == {"grid.json", "noise_grid.png", "noise_grid.svg"}
    assert run(3, 2, 0, 1)["rows"] == grid["rows"]
