"""Cases to figures: what is counted, and what is not."""

import numpy as np
import pytest

from arenarl.evaluation.evaluation import Case, summarize
from arenarl.report.summary import print_table
from arenarl.trajectory import Query, Trajectory

DIMENSIONS = 7  # of the travel rubric


def case(number, is_valid, outcomes):
    """What evaluation makes of a trajectory: an invalid one loses with every judge, unseen."""
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "<answer>\n!\n</answer>"}]
    trajectory = Trajectory(f"q{number}", messages, "answer" if is_valid else "max_turns", meta={"turns": 1})
    outcomes = outcomes if is_valid else np.full_like(outcomes, -1.0)
    return Case(Query(f"q{number}", "travel", "Search", "en", "?"), trajectory, None, outcomes)


@pytest.mark.parametrize("valid_share", [0.1, 0.3, 1.0])
def test_judges_that_toss_coins_do_not_agree_however_many_trajectories_are_invalid(valid_share):
    rng = np.random.default_rng(0)
    cases = [case(number, rng.random() < valid_share, rng.choice([1.0, 0.0, -1.0], size=(2, DIMENSIONS))) for number in range(1000)]
    agree = summarize(cases, 0, 0)["judges_agree"]
    assert agree["cases"] == DIMENSIONS * sum(one.trajectory.valid for one in cases)
    assert agree["kappa"] == pytest.approx(0, abs=0.06) and agree["agreement"] == pytest.approx(1 / 3, abs=0.06)


def test_a_case_that_one_judge_was_silent_on_is_no_agreement_either():
    outcomes = np.ones((2, DIMENSIONS))
    outcomes[1] = np.nan
    summary = summarize([case(0, True, outcomes), case(1, True, np.ones((2, DIMENSIONS)))], 0, 0)
    assert summary["judges_agree"]["cases"] == DIMENSIONS and summary["missing_verdicts"] == 1


def test_two_judges_of_nothing_but_invalid_trajectories_agree_on_nothing_and_the_table_says_so(capsys):
    figures = summarize([case(number, False, np.ones((2, DIMENSIONS))) for number in range(3)], 0, 0)
    assert figures["judges_agree"]["agreement"] is None and figures["win_rate"]["mean"] == 0
    print_table({"judge": "simulated", "checkpoints": ["rl"], "rl": {"sampled": figures}})
    assert "on - (nothing that both judged) of the outcomes" in capsys.readouterr().out
