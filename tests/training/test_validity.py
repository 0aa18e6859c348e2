from collections import Counter

import pytest
from policies import query

from arenarl.llm.client import RunStopped
from arenarl.training.rewards.group import Tally
from arenarl.training.validity import ValidityWatch, VerdictWatch
from arenarl.trajectory import RolloutGroup, Trajectory

LONG = "so it goes on " * 500


def groups(*reasons):
    return [
        RolloutGroup(query(), [Trajectory("q", [], reason, prompt_ids=[7], completion_ids=[8]) for reason in reasons])
    ]


def watch(patience):
    return ValidityWatch(patience, lambda token_ids: LONG if 8 in token_ids else "")


REMEDIES = {
    "max_tokens": "rollout.max_turn_tokens",
    "no_answer": "train_sft.py",
    "max_turns": "rollout.max_turns",
    "tool_crash": "environment.name",
}


@pytest.mark.parametrize(("reason", "remedy"), REMEDIES.items())
def test_the_first_step_without_a_valid_trajectory_is_said_with_two_of_them_and_the_likely_cause(
    reason, remedy, capsys
):
    watch(2).look(3, Counter({reason: 6}), groups(reason, reason, reason))
    said = capsys.readouterr().out
    assert said.count(f"--- {reason}") == 2 and "[…]" in said and len(said) < 4000
    assert said.startswith("step 3: 6 trajectories, none of them valid") and remedy in said.splitlines()[0]


def test_a_run_without_valid_trajectories_stops_after_as_many_steps_in_a_row_as_the_config_says(capsys):
    seen = watch(3)
    for step, valid in enumerate([0, 0, 1, 0, 0]):
        seen.look(step, Counter({"answer": valid, "no_answer": 4}), groups("no_answer"))
    assert capsys.readouterr().out.count("none of them valid") == 2  # said once for each such stretch
    with pytest.raises(
        RunStopped, match=r"3 steps in a row without a valid trajectory .rl.stop_without_valid.: 4 trajectories"
    ):
        seen.look(5, Counter(no_answer=4), groups("no_answer"))


def test_a_judge_of_whatever_kind_whose_calls_fail_too_often_ends_the_run():
    """By the last 200 calls, and not before there are 50: 40 good ones, then a third fails."""
    seen = VerdictWatch(0.2)
    seen.look([Tally(failed_calls=9, calls=9)])
    seen = VerdictWatch(0.2)
    seen.look([Tally(calls=20), Tally(calls=20)])
    for _ in range(2):
        seen.look([Tally(failed_calls=10, calls=30)])
    with pytest.raises(RunStopped, match=r"30 of the last 130 judge calls failed, above judge.max_failure_share=0.2"):
        seen.look([Tally(failed_calls=10, calls=30)])


def test_good_steps_of_long_ago_do_not_hide_a_judge_that_has_broken():
    seen = VerdictWatch(0.2)
    for _ in range(50):
        seen.look([Tally(calls=100)])
    seen.look([Tally(failed_calls=30, calls=100)])
    with pytest.raises(RunStopped, match="130 of the last 200 judge calls failed"):
        seen.look([Tally(failed_calls=100, calls=100)])


def test_null_never_stops():
    seen = watch(None)
    for step in range(50):
        seen.look(step, Counter(max_tokens=4), groups("max_tokens"))
