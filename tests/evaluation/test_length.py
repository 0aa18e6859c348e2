"""Win rate by length: every valid answer is in one class, and a judge that prefers length shows."""

import numpy as np
import pytest

from arenarl.domains.domain import Truth
from arenarl.evaluation.evaluation import Case
from arenarl.evaluation.length import EDGES, by_length
from arenarl.judges.judge import rubric_of
from arenarl.trajectory import Query, Trajectory

BASELINE = 20  # characters


class Plain(Truth):
    def dimensions(self):
        return dict.fromkeys(rubric_of(Query("q", "writing", "", "en", "")).names, 5.0)


def case(number, length, outcome, stop_reason="answer", subtask=""):
    query = Query(str(number), "writing", subtask, "en", f"Write {number}.")
    message = {"role": "assistant", "content": f"<answer>\n{'x' * length}\n</answer>"}
    return Case(query, Trajectory(query.query_id, [message], stop_reason), Plain(), np.full((1, 4), outcome))


def classes_of(*cases):
    baseline = [{"role": "assistant", "content": f"<answer>\n{'y' * BASELINE}\n</answer>"}]
    baselines = {one.query.query_id: Trajectory(one.query.query_id, baseline, "answer") for one in cases}
    return by_length(cases, baselines, 50, 0)


def test_every_valid_answer_is_in_one_class_and_a_judge_that_prefers_length_shows():
    lengths = [1, 9, 10, 15, 16, 20, 24, 25, 39, 40, 1000]
    answers = [case(number, length, 1.0) for number, length in enumerate(lengths)]
    classes = classes_of(*answers, case(99, 20, -1.0, "max_tokens"))
    assert [round(one["share"]["mean"] * len(lengths) / 100) for one in classes.values()] == [2, 2, 3, 2, 2]
    assert list(classes) == ["below 0.5", "0.5 to 0.8", "0.8 to 1.25", "1.25 to 2", "from 2"] and len(EDGES) == 6
    lengths = enumerate([5, 12, 18, 30, 90] * 4)
    classes = classes_of(*(case(number, length, 1.0 if length > BASELINE else -1.0) for number, length in lengths))
    assert [one["win_rate"]["mean"] for one in classes.values()] == [0, 0, 0, 100, 100]
    assert {one["quality"]["mean"] for one in classes.values()} == {5.0}


def test_a_class_without_answers_has_no_figures_and_without_answers_there_are_none():
    classes = classes_of(case(0, 20, 1.0))
    assert [name for name, one in classes.items() if "win_rate" in one] == ["0.8 to 1.25"]
    assert sum(one["share"]["mean"] for one in classes.values()) == pytest.approx(100)
    assert all(one["share"]["mean"] is None for one in classes_of(case(0, 20, 1.0, "no_answer")).values())
    # Worlds with a state need no answers.
    cases = [case(number, 20, 1.0, "done") for number in range(3)]
    opened = [{"role": "tool", "content": "It opens."}]
    played = {one.query.query_id: Trajectory(one.query.query_id, opened, "done") for one in cases}
    assert by_length(cases, played, 50, 0) == {}
    played["0"] = Trajectory("0", cases[0].trajectory.messages, "answer")
    assert by_length(cases, played, 50, 0)["0.8 to 1.25"]["share"]["mean"] == 100
