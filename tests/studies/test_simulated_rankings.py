"""Simulated groups: what holds of their judge whatever its noise, and that all topologies rank the same groups."""

import asyncio

import numpy as np
import pytest

from arenarl.studies.simulated_rankings import (
    ROUNDING,
    TOPOLOGIES,
    Group,
    Noise,
    Tally,
    format_params,
    interval,
    pointwise_key,
    simulate,
)


def test_a_tally_by_hand():
    tally = Tally()
    tally.add(np.array([3.0, 1.0, 2.0]), [0.0, 2.0, 1.0], (3, 6, 1))
    # the best shares the first rank; tau-b of 1 and 1 against 1 and -1
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
        own = [tally for key, tally in tallies.items() if key[:2] == (topology, format_params(params))]
        pointwise = tallies[pointwise_key(topology, format_params(params))]
        assert own
        assert all([calls for _, calls, _ in tally.cost] == [calls for _, calls, _ in pointwise.cost] for tally in own)


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
        errors = scores_of(group, 4) - np.stack(
            [np.repeat(group.quality_G[:, None], 4, 1), np.repeat(group.quality_G[None], 4, 0)], -1
        )
        sums.append(errors[0, 1].sum())
        differences.append(errors[0, 1, 0] - errors[0, 1, 1])
        means.append(
            np.concatenate([errors[0, 1:, 0], errors[1:, 0, 1]]).mean()
            - np.concatenate([errors[1, 2:, 0], errors[2:, 1, 1]]).mean()
        )
    moved = {"sum": np.std(sums) > 0.5, "difference": np.std(differences) > 0.5, "sticks": np.std(means) > 1.5}
    sticks = "sum difference sticks"
    expected = {"independent": "sum difference", "shared": "sum", "sticking": sticks, "length": sticks, "position": ""}
    assert {name for name, is_moved in moved.items() if is_moved} == set(expected[part].split())
    assert np.mean(differences) == pytest.approx(4.0 if part == "position" else 0.0, abs=0.5)


def test_a_length_bias_is_drawn_to_the_worse():
    seen = [
        (group.quality_G, group.seen_G - group.quality_G)
        for group in (Group(8, Noise(length=1.0), seed) for seed in range(200))
    ]
    quality, error = (np.concatenate(values) for values in zip(*seen, strict=True))
    assert np.corrcoef(quality, error)[0, 1] == pytest.approx(-0.5, abs=0.05)
