"""Rankings of simulated groups: their tallies, and that all topologies face the same groups."""

import numpy as np
import pytest

from arenarl.studies.simulated_rankings import TOPOLOGIES, Tally, format_params, interval, pointwise_key, simulate


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
        assert own and all(
            [calls for _, calls, _ in tally.cost] == [calls for _, calls, _ in pointwise.cost] for tally in own
        )
