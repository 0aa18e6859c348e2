"""Evaluations as Inspect's logs: their content, and that inspect-ai, if installed, reads it back."""

import json

import numpy as np
import pytest

from arenarl.config.schema import Config
from arenarl.domains.rubrics import domain_rubric
from arenarl.domains.travel.truth import TravelTruth
from arenarl.evaluation.evaluation import Case, summarize
from arenarl.judges.judge import Verdict
from arenarl.report.inspect_log import inspect_messages, scores_of, write_inspect_log
from arenarl.trajectory import Query, Trajectory, assistant_message

RUBRIC = domain_rubric("travel", "en")
CALL = '<tool_call>\n{"name": "search_poi", "arguments": {"query": "park"}}\n</tool_call>'
MESSAGES = [
    {"role": "user", "content": "Find a park."},
    assistant_message(f"<think>\nwhere?\n</think>\n\n{CALL}\n{CALL}"),
    {"role": "tool", "content": "Lotus Park"},
    {"role": "tool", "content": "no such place"},
    assistant_message("<think>\nthere\n</think>\n\n<answer>\nLotus Park\n</answer>"),
]


def verdict(first, second):
    return Verdict((dict.fromkeys(RUBRIC.names, first), dict.fromkeys(RUBRIC.names, second)), RUBRIC.total)


def case(number, stop_reason="answer", calls=((8.0, 4.0), (3.0, 6.0))):
    """A judged case; the policy's scores are the first of the first call and the second of the second call."""
    judged = [tuple(pair and verdict(*pair) for pair in calls)] if stop_reason == "answer" else []
    trajectory = Trajectory(f"q{number}", MESSAGES, stop_reason, meta={"turns": 2, "tool_calls": 2})
    query = Query(f"q{number}", "travel", "Search", "en", "Find a park.")
    return Case(query, trajectory, TravelTruth(), np.ones((1, len(RUBRIC.names))), judged)


@pytest.fixture
def log(tmp_path):
    cases = {
        ("sft", "sampled"): [[case(0), case(1, "max_turns")], [case(0), case(1)]],
        ("rl", "greedy"): [[case(0), case(1, "tool_crash")]],
    }
    figures = {"sft": {"sampled": summarize([*cases["sft", "sampled"][0], *cases["sft", "sampled"][1]], 10, 0)}}
    figures["rl"] = {"greedy": summarize(cases["rl", "greedy"][0], 10, 0)}
    write_inspect_log(tmp_path / "inspect.json", Config(), cases, figures, {"commit": "abc"})
    return tmp_path / "inspect.json"


def test_results_have_the_ids_of_their_calls_and_malformed_arguments_become_a_parse_error():
    user, called, first, second, answer = inspect_messages(MESSAGES)
    assert user == {"role": "user", "content": "Find a park."}
    assert [call["id"] for call in called["tool_calls"]] == ["call_0", "call_1"]
    assert [first["tool_call_id"], second["tool_call_id"]] == ["call_0", "call_1"]
    assert called["content"][0] == {"type": "reasoning", "reasoning": "where?"}
    assert called["tool_calls"][0]["arguments"] == {"query": "park"}
    assert second["content"] == "no such place"
    assert answer["content"][1]["text"].startswith("<answer>")
    assert "tool_calls" not in answer
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x"'}}
    [message] = inspect_messages([{"role": "assistant", "content": "", "tool_calls": [call]}])
    error = {"type": "function", "function": "f", "arguments": {}, "parse_error": '{"x"'}
    assert message["tool_calls"] == [{"id": "call_0"} | error]


def test_scores_are_the_policys_and_missing_verdicts_do_not_count():
    name = RUBRIC.names[0]
    assert scores_of(case(0))[name] == 7.0 and scores_of(case(0))["valid"] == 1.0
    assert scores_of(case(0, calls=((8.0, 4.0), None)))[name] == 8.0
    assert name not in scores_of(case(0, calls=(None, None)))
    assert scores_of(case(0, "max_turns"))["valid"] == 0.0 and scores_of(case(0, "tool_crash")) == {}


def test_one_log_has_all_checkpoints_and_samples_and_inspect_reads_it(log):
    content = json.loads(log.read_text())
    assert [(sample["id"], sample["epoch"]) for sample in content["samples"]] == [
        ("sft sampled q0", 1), ("sft sampled q1", 1), ("sft sampled q0", 2), ("sft sampled q1", 2), ("rl greedy q0", 1),
        ("rl greedy q1", 1)
    ]  # fmt: skip
    assert [entry["name"] for entry in content["results"]["scores"]] == ["sft sampled", "rl greedy"]
    assert content["results"]["scores"][0]["metrics"]["valid_rate"]["value"] == 75.0
    read = pytest.importorskip("inspect_ai.log").read_eval_log(str(log))
    assert (read.status, read.results.total_samples, read.eval.metadata) == ("success", 6, {"commit": "abc"})
    assert read.results.scores[0].metrics["valid_rate"].value == 75.0
    for written, sample in zip(content["samples"], read.samples, strict=True):
        assert (sample.id, sample.epoch) == (written["id"], written["epoch"])
        assert len(sample.messages) == len(written["messages"])
        scores = {name: score["value"] for name, score in written["scores"].items()}
        assert {name: score.value for name, score in sample.scores.items()} == scores
        assert [call.function for call in sample.messages[1].tool_calls] == ["search_poi"] * 2
        assert sample.messages[2].tool_call_id == sample.messages[1].tool_calls[0].id
