"""Simulated groups: the patterns of their judge's noise, and equal groups for all topologies."""

import asyncio

import numpy as np
import pytest

from arenarl.studies import simulated_rankings as simulated
from arenarl.studies.simulated_rankings import TOPOLOGIES, Group, Noise, Tally, interval, simulate


def test_a_tally_worked_by_hand():
    tally = Tally()
    tally.add(np.array([3.0, 1.0, 2.0]), [0.0, 2.0, 1.0], (3, 6, 1))
    # the best trajectory shares the first rank
    tally.add(np.array([3.0, 1.0, 2.0]), [0.5, 0.5, 2.0], (2, 4, 2))
    assert tally.tau == pytest.approx([1.0, 0.0])
    row = tally.row()
    assert (row["best_first"], row["matches"], row["judge_calls"], row["critical_path"]) == (0.75, 2.5, 5, 1.5)
    assert interval([1.0, 3.0]) == pytest.approx([2 - 1.96, 2 + 1.96])


def test_topologies_rank_the_same_groups_and_pointwise_has_as_many_calls():
    tallies = simulate("mixed", 1.0, 5, 4, seed=0)
    alone = simulate("mixed", 1.0, 5, 4, 0, [("swiss", {})])
    assert all(tallies[key].tau == tally.tau for key, tally in alone.items())
    for topology, params in TOPOLOGIES:
        own = [tally for key, tally in tallies.items() if key[:2] == (topology, simulated.format_params(params))]
        pointwise = tallies[simulated.pointwise_key(topology, simulated.format_params(params))]
        assert own
        assert all([calls for _, calls, _ in tally.cost] == [calls for _, calls, _ in pointwise.cost] for tally in own)


EXACT = Noise(independent=0.0, position=0.0)


def scores_of(group, size):
    return np.array([[asyncio.run(group.compare(i, j)) for j in range(size)] for i in range(size)])


def test_a_judge_reports_the_rounded_quality_and_with_a_length_bias_favours_worse_trajectories():
    group = Group(6, EXACT, 3)
    expected = np.round(group.quality_G / simulated.ROUNDING) * simulated.ROUNDING
    scores = scores_of(group, 6)
    assert (scores[..., 0] == expected[:, None]).all() and (scores[..., 1] == expected[None]).all()
    assert group.pointwise(6) == group.pointwise(13) == pytest.approx(expected)
    assert asyncio.run(group.choose((4, 2, 0), 2)) == sorted((4, 2, 0), key=lambda g: -expected[g])[:2]
    groups = [Group(8, Noise(length=1.0), seed) for seed in range(200)]
    quality, seen = (np.concatenate([getattr(group, name) for group in groups]) for name in ("quality_G", "seen_G"))
    assert np.corrcoef(quality, seen - quality)[0, 1] == pytest.approx(-0.5, abs=0.05)


@pytest.mark.parametrize("part", ["independent", "shared", "sticking", "position", "length"])
def test_each_part_of_the_noise_has_its_own_pattern(part):
    """Over many groups: does it change a call's sum, its difference, and the mean over a trajectory's calls?"""
    sums, differences, means = [], [], []
    for seed in range(300):
        group = Group(4, Noise(**{"independent": 0.0, "position": 0.0, part: 2.0}), seed)
        first, second = np.meshgrid(group.quality_G, group.quality_G, indexing="ij")
        errors = scores_of(group, 4) - np.stack([first, second], -1)
        sums.append(errors[0, 1].sum())
        differences.append(errors[0, 1, 0] - errors[0, 1, 1])
        of_one, of_other = (np.concatenate([errors[k, k + 1 :, 0], errors[k + 1 :, k, 1]]) for k in (0, 1))
        means.append(of_one.mean() - of_other.mean())
    moved = {"sum": np.std(sums) > 0.5, "difference": np.std(differences) > 0.5, "sticks": np.std(means) > 1.5}
    expected = {"independent": {"sum", "difference"}, "shared": {"sum"}, "position": set()}
    assert {name for name, is_moved in moved.items() if is_moved} == expected.get(part, set(moved))
    assert np.mean(differences) == pytest.approx(4.0 if part == "position" else 0.0, abs=0.5)
