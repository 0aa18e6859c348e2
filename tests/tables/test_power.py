"""The number of seeds that a comparison needs, checked against simulated experiments."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from arenarl.tables.power import POWER, power_table, seeds_needed
from arenarl.tables.store import read_runs, store_run

RESULTS = Path(__file__).resolve().parents[2] / "results"


@pytest.mark.parametrize(("spread", "difference"), [(1.0, 1.5), (2.0, 3.0), (2.5, 1.5), (0.3, 3.0)])
def test_the_number_of_seeds_is_the_least_with_which_four_of_five_experiments_detect_the_difference(spread, difference):
    seeds = seeds_needed(spread, difference)
    drawn = np.random.default_rng(0).normal(difference, spread, size=(20_000, seeds))

    def power(count):
        return np.mean(ttest_1samp(drawn[:, :count], 0, axis=1).pvalue < 0.05)

    assert power(seeds) > POWER - 0.01 and (seeds == 2 or power(seeds - 1) < POWER + 0.01)


def test_the_spread_uses_runs_of_a_comparing_table_with_the_rows_settings(tmp_path, monkeypatch):
    monkeypatch.setattr("arenarl.tables.power.TABLES", ["table2"])  # reading the others takes seconds

    def of_swiss():
        return [line for line in power_table(tmp_path).splitlines() if line.startswith("| Swiss")]

    for table, row in (("table2", "swiss"), ("table2", "seeded_single_elimination")):
        for run in (run for (name, _), run in read_runs(RESULTS / table).items() if name == row):
            store_run(tmp_path / table, run)
    [line] = of_swiss()
    spread = line.rsplit("|", 3)[0]  # the numbers of seeds depend on the number of comparisons in all tables
    assert spread in (RESULTS.parent / "docs" / "results.md").read_text(encoding="utf-8")
    run = read_runs(tmp_path / "table2")["swiss", 2]
    store_run(tmp_path / "table2", run | {"settings": run["settings"] | {"rl.steps": 10}})
    assert of_swiss() == []
