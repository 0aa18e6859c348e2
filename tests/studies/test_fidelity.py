"""The ranking study, small: what it writes, and what must hold of simulated groups whatever the noise."""

import asyncio
import json
import subprocess
import sys

import numpy as np
import pytest

from arenarl.studies.fidelity import MODELS, TOPOLOGIES, Tally, format_params, interval, markdown_differences, markdown_table, pointwise_key, simulate
from arenarl.studies.simulated_groups import NOISE, ROUNDING, Group, Noise

EXACT = Noise(independent=0.0, position=0.0)


def scores_of(group, size):
    return np.array([[asyncio.run(group.compare(i, j)) for j in range(size)] for i in range(size)])


def test_a_judge_without_noise_reports_the_quality_rounded():
    group = Group(6, EXACT, 3)
    expected = np.round(group.quality_G / ROUNDING) * ROUNDING
    scores = scores_of(group, 6)
    assert (scores[..., 0] == expected[:, None]).all() and (scores[..., 1] == expected[None]).all()
    assert group.pointwise(6) == group.pointwise(13) == pytest.approx(expected)
    assert asyncio.run(group.choose((4, 2, 0), 2)) == sorted((4, 2, 0), key=lambda g: -expected[g])[:2]


@pytest.mark.parametrize("part", ["independent", "shared", "sticking", "position", "length"])
def test_each_part_of_the_noise_has_its_own_pattern(part):
    """Over many groups: does it move the sum of a call, its difference, and the mean over all calls of a trajectory?"""
    sums, differences, means = [], [], []
    for seed in range(300):
        group = Group(4, Noise(**{"independent": 0.0, "position": 0.0, part: 2.0}), seed)
        errors = scores_of(group, 4) - np.stack([np.repeat(group.quality_G[:, None], 4, 1), np.repeat(group.quality_G[None], 4, 0)], -1)
        sums.append(errors[0, 1].sum())
        differences.append(errors[0, 1, 0] - errors[0, 1, 1])
        means.append(np.concatenate([errors[0, 1:, 0], errors[1:, 0, 1]]).mean() - np.concatenate([errors[1, 2:, 0], errors[2:, 1, 1]]).mean())
    moved = {"sum": np.std(sums) > 0.5, "difference": np.std(differences) > 0.5, "sticks": np.std(means) > 1.5}
    sticks = "sum difference sticks"
    expected = {"independent": "sum difference", "shared": "sum", "sticking": sticks, "length": sticks, "position": ""}
    assert {name for name, is_moved in moved.items() if is_moved} == set(expected[part].split())
    assert np.mean(differences) == pytest.approx(4.0 if part == "position" else 0.0, abs=0.5)


def test_a_length_bias_is_drawn_to_the_worse():
    seen = [(group.quality_G, group.seen_G - group.quality_G) for group in (Group(8, Noise(length=1.0), seed) for seed in range(200))]
    quality, error = (np.concatenate(values) for values in zip(*seen))
    assert np.corrcoef(quality, error)[0, 1] == pytest.approx(-0.5, abs=0.05)


def test_a_tally_by_hand():
    tally = Tally()
    tally.add(np.array([3.0, 1.0, 2.0]), [0.0, 2.0, 1.0], (3, 6, 1))
    tally.add(np.array([3.0, 1.0, 2.0]), [0.5, 0.5, 2.0], (2, 4, 2))  # the best shares the first rank; tau-b of 1 and 1 against 1 and -1
    assert tally.tau == pytest.approx([1.0, 0.0])
    row = tally.row()
    assert (row["best_first"], row["matches"], row["judge_calls"], row["critical_path"]) == (0.75, 2.5, 5, 1.5)
    assert interval([1.0, 3.0]) == pytest.approx([2 - 1.96, 2 + 1.96])


def test_topologies_rank_the_same_groups_and_pointwise_has_as_many_calls():
    tallies = simulate("mixed", 1.0, 5, 4, seed=0)
    alone = simulate("mixed", 1.0, 5, 4, 0, [("swiss", {})])
    assert all(tallies[key].tau == tally.tau for key, tally in alone.items())
    for topology, params in TOPOLOGIES:
        own = [tally for key, tally in tallies.items() if key[:2] == (topology, format_params(params))]
        pointwise = tallies[pointwise_key(topology, format_params(params))]
        assert own and all([calls for _, calls, _ in tally.cost] == [calls for _, calls, _ in pointwise.cost] for tally in own)


def test_it_runs_as_a_command_and_says_what_the_issue_asks(tmp_path):
    command = [sys.executable, "-m", "arenarl.studies.fidelity", "--sizes", "2", "8", "--groups", "2", "--paired-groups", "2", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "simulated" in done.stdout.splitlines()[-1]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["judge"] == "simulated" and summary["seed"] == 0
    named = {"noise", "strength", "group_size", "topology", "ranking", "matches", "judge_calls", "critical_path", "tau", "tau_ci", "best_first"}
    assert all(named <= set(row) for row in summary["rows"])
    assert {row["noise"] for row in summary["rows"]} == set(NOISE)
    assert {row["group_size"] for row in summary["rows"]} == {2, 8}
    assert {(row["topology"], row["ranking"]) for row in summary["rows"]} >= {("swiss", "bracket"), ("swiss", "scores"), ("pointwise", "mean")}
    assert len(summary["reach"]) == len(MODELS)
    assert markdown_table(summary) in done.stdout and markdown_differences(summary) in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"summary.json", "tau_by_calls.png", "tau_by_calls.svg"}


def test_wrong_numbers_are_refused():
    done = subprocess.run([sys.executable, "-m", "arenarl.studies.fidelity", "--groups", "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "at least 2" in done.stderr
