"""README's sentence about noise."""

import pytest

from arenarl.tables.rows import read_table
from arenarl.tables.worth import worth_sentence


@pytest.fixture
def table():
    return read_table("noise_strength")


def summary_of(table, leave_out=()):
    """ArenaRL is before any scores by ten points for each multiple of the noise, beyond chance from 2 on; all others are level."""
    comparisons = [
        {"rows": list(pair), "difference": 10 * (table.rows[pair[0]].at if table.rows[pair[0]].series == "ArenaRL" else 0)} for pair in table.pairs
    ]
    kept = [one | {"is_beyond_chance": one["difference"] >= 20} for one in comparisons if tuple(one["rows"]) not in leave_out]
    return {"comparisons": kept, "rows": [{"seeds": [0, 1, 2]}, {"seeds": [0, 1]}]}


def test_it_has_the_lead_over_one_score_and_over_two_at_each_strength(table):
    text = worth_sentence(table, summary_of(table))
    assert "noise at 0, 1, 2 and 3 times" in text and "one score a trajectory +0.0, +10.0, +20.0 * and +30.0 * points" in text
    assert "at 1, 2 and 3 times" in text and "more calls, +10.0, +20.0 * and +30.0 *" in text and "2 seeds, **simulated**" in text


@pytest.mark.parametrize("pair", [("tournament_noise_3", "pointwise_twice_noise_3"), ("seeded_single_elimination", "pointwise_anchor")])
def test_until_all_of_its_rows_were_run_it_says_how_to(pair, table):
    assert worth_sentence(table, summary_of(table, [pair])).endswith("makes a tournament worth its calls: `./reproduce.sh noise_strength`.")
