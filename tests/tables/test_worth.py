"""README's sentence on judge noise and the worth of a tournament."""

import pytest

from arenarl.tables.documents import worth_sentence
from arenarl.tables.rows import read_table


@pytest.fixture
def table():
    return read_table("noise_strength")


def summary_of(table, leads, unfinished=()):
    """Return a table.json with these leads; four points or more are significant, and intervals are ± 2.

    Args:
        leads: series -> noise -> lead of ArenaRL over these scores, or of `balanced` over two scores.
    """
    place = {name: (row.series, row.at) for name, row in table.rows.items()}
    comparisons = []
    for pair in table.pairs:
        (who, at), (scores, _) = (place[row] for row in pair)
        lead = leads.get(scores if who == "ArenaRL" else who, {}).get(at, 0.0)
        verdict = {"is_beyond_chance": abs(lead) >= 4, "p": None if pair in unfinished else 0.5}
        figures = {"rows": list(pair), "seeds": [0, 1, 2, 3, 4], "difference": lead, "ci": [lead - 2, lead + 2]}
        comparisons.append(figures | verdict)
    calls = {"one score": 2500, "two scores": 5000, "ArenaRL": 3125}
    rows = [{"row": name, "seeds": [0], "judge_calls": calls.get(series, 10**6)} for name, (series, _) in place.items()]
    return {"comparisons": comparisons, "rows": rows}


def test_the_sentence_lists_noise_levels_ahead_behind_and_neither_and_the_calls(table):
    leads = {
        "one score": {0: -4.5, 1: 1.2, 2: 4.0, 3: 6.1},
        "two scores": {1: -0.04, 2: 0.5, 3: 3.0},
        "balanced (ours)": {1: -2.5, 2: 0.3, 3: 4.4},
    }
    assert worth_sentence(table, summary_of(table, leads)) == (
        "Win rates by judge noise, as a multiple of the spread within a group. Against one score per "
        "trajectory, the greedy sample's included (0.8 times its judge calls), ArenaRL is significantly ahead "
        "at 2 and 3 (+4.0 and +6.1), significantly behind at 0 (-4.5) and not distinguishable at 1 (+1.2). Against "
        "two scores (1.6 times its calls), it is ahead only before Holm's correction at 3 (+3.0) and not "
        "distinguishable at 1 and 2 (+0.0 and +0.5); `balanced` against two scores is significantly ahead at 3 (+4.4), "
        "behind only before Holm's correction at 1 (-2.5) and not distinguishable at 2 (+0.3) (`./reproduce.sh "
        "noise_strength`, 5 seeds, **simulated**)."
    )


@pytest.mark.parametrize(
    "pair", [("tournament_noise_3", "pointwise_twice_noise_3"), ("seeded_single_elimination", "pointwise_anchor")]
)
def test_the_sentence_is_empty_until_all_rows_have_all_seeds(pair, table):
    assert worth_sentence(table, summary_of(table, {}, [pair])) == ""
    assert worth_sentence(table, summary_of(table, {}) | {"comparisons": []}) == ""
