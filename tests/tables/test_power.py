"""How many seeds a comparison needs, against drawn experiments."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from arenarl.tables.power import POWER, seeds_needed


@pytest.mark.parametrize(("spread", "difference"), [(1.0, 1.5), (2.0, 3.0), (2.5, 1.5), (0.3, 3.0)])
def test_with_so_many_seeds_and_with_none_fewer_four_of_five_drawn_experiments_see_the_difference(spread, difference):
    seeds = seeds_needed(spread, difference)
    drawn = np.random.default_rng(0).normal(difference, spread, size=(20_000, seeds))

    def seen(count):
        return np.mean(ttest_1samp(drawn[:, :count], 0, axis=1).pvalue < 0.05)

    assert seen(seeds) > POWER - 0.01 and (seeds == 2 or seen(seeds - 1) < POWER + 0.01)


def test_a_smaller_difference_a_wider_spread_and_a_stricter_level_need_no_fewer():
    assert seeds_needed(2, 3) <= seeds_needed(2, 1.5) <= seeds_needed(2, 1.5, alpha=0.001) and seeds_needed(2, 3) <= seeds_needed(3, 3)
    assert seeds_needed(1e-6, 3) == 2
