"""The conclusion of a run: numbers of queries, missing intervals, and greedy evaluation."""

import pytest

from arenarl.report.conclusion import meaning

WINS = {"mean": 50.0, "ci": [48.0, 52.0]}
CURVES = {"pass_at_k": {"win": [WINS] * 4}}


@pytest.mark.parametrize("decoding", ["sampled", "greedy"])
@pytest.mark.parametrize(("cases", "curves"), [(400, {}), (1600, CURVES), (1598, CURVES)])
def test_the_conclusion_counts_queries_not_samples(decoding, cases, curves):
    """1,598 cases of 400 queries: a tool's crash ended two samples."""
    summary = {name: {decoding: {"cases": cases, "win_rate": WINS} | curves} for name in ("sft", "rl")}
    change, limits = meaning(summary | {"judge": "simulated"})
    assert f"{decoding} wins 50.0" in change and "One seed, 400 test queries, and the judge is simulated" in limits


def test_without_an_interval_no_difference_is_claimed():
    means = {"sft": 37.5, "rl": 50.0}
    figures = {name: {"win_rate": {"mean": mean, "ci": [None, None]}, "cases": 2} for name, mean in means.items()}
    summary = {name: {"sampled": values} for name, values in figures.items()} | {"judge": "simulated"}
    assert "37.5 → 50.0 % (no interval: one query a subtask)" in meaning(summary)[0]


def test_the_conclusion_names_the_judge():
    summary = {name: {"sampled": {"cases": 4, "win_rate": WINS}} for name in ("sft", "rl")}
    judges = {judge: meaning(summary | {"judge": judge})[1] for judge in ("simulated", "library:Librarian")}
    assert "4 test queries, and the judge is simulated: the intervals" in judges["simulated"]
    assert "4 test queries, judged by library:Librarian: the intervals" in judges["library:Librarian"]
