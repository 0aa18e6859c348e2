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
    "max_tokens": "rollout.max_turn_tokens", "no_answer": "train_sft.py", "max_turns": "rollout.max_turns",
    "tool_crash": "fix the environment class", "max_seconds": "rollout.max_seconds",
    "no_room": "lower rollout.max_tokens",
}  # fmt: skip


@pytest.mark.parametrize(("reason", "remedy"), REMEDIES.items())
def test_the_first_step_without_valid_trajectories_prints_two_and_the_likely_cause(reason, remedy, capsys):
    watch(2).look(3, Counter({reason: 6}), groups(reason, reason, reason))
    output = capsys.readouterr().out
    assert output.count(f"--- {reason}") == 2 and " … " in output and len(output) < 4000
    assert output.startswith("step 3: 6 trajectories, none of them valid") and remedy in output.splitlines()[0]


def test_a_run_stops_after_patience_steps_in_a_row_without_valid_trajectories_and_null_never(capsys):
    checks, endless = watch(3), watch(None)
    for step, valid in enumerate([0, 0, 1, 0, 0]):
        checks.look(step, Counter({"answer": valid, "no_answer": 4}), groups("no_answer"))
    assert capsys.readouterr().out.count("none of them valid") == 2  # once per series of such steps
    words = r"3 steps in a row without a valid trajectory .rl.stop_without_valid.: 4 trajectories"
    with pytest.raises(RunStopped, match=words):
        checks.look(5, Counter(no_answer=4), groups("no_answer"))
    for step in range(50):
        endless.look(step, Counter(max_tokens=4), groups("max_tokens"))


@pytest.mark.parametrize(("steps", "last", "words"), [  # (failed calls, calls) of each step
    # at least 50 calls count: here 40 succeed, then a third fails
    ([(0, 40), (10, 30), (10, 30)], (10, 30), r"30 of the last 130 judge calls failed, above judge.max_failure_share="),
    # only the last 200 count: old successful calls do not hide a broken judge
    ([*[(0, 100)] * 50, (30, 100)], (100, 100), "130 of the last 200 judge calls failed"),
])  # fmt: skip
def test_too_many_failed_judge_calls_stop_the_run(steps, last, words):
    VerdictWatch(0.2).look([Tally(failed_calls=9, calls=9)])
    checks = VerdictWatch(0.2)
    for failed, calls in steps:
        checks.look([Tally(failed_calls=failed, calls=calls)])
    with pytest.raises(RunStopped, match=words):
        checks.look([Tally(failed_calls=last[0], calls=last[1])])
