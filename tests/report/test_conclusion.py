"""What a run's last lines say of its figures."""

import pytest

from arenarl.report.conclusion import meaning

WINS = {"mean": 50.0, "ci": [48.0, 52.0]}


@pytest.mark.parametrize(
    ("cases", "curves"),
    [(400, {}), (1600, {"pass_at_k": {"win": [WINS] * 4}}), (1598, {"pass_at_k": {"win": [WINS] * 4}})],
)
def test_it_counts_queries_not_samples_of_them(cases, curves):
    """Attempts that a tool's crash ended are no cases."""
    summary = {name: {"sampled": {"cases": cases, "win_rate": WINS} | curves} for name in ("sft", "rl")} | {
        "judge": "simulated"
    }
    assert "One seed, 400 test queries, and the judge is simulated" in meaning(summary)[1]


def test_without_an_interval_nothing_is_said_to_be_apart():
    summary = {
        name: {"sampled": {"cases": 2, "win_rate": {"mean": mean, "ci": [None, None]}}}
        for name, mean in (("sft", 37.5), ("rl", 50.0))
    }
    assert "37.5 → 50.0 % (no interval: one query a subtask)" in meaning(summary | {"judge": "simulated"})[0]


def test_a_run_that_is_evaluated_greedily_alone_has_a_conclusion_too():
    summary = {name: {"greedy": {"cases": 400, "win_rate": WINS}} for name in ("sft", "rl")} | {"judge": "simulated"}
    assert "400 test queries" in meaning(summary)[1] and "greedy wins 50.0" in meaning(summary)[0]
