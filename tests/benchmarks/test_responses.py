"""The text of a trajectory for the judge, and the tools and system prompt of the policy."""

import pytest
from benchmark_files import run_here, write_jsonl, writing_records
from policies import ANSWER, Echo, Scripted, query
from scripts import ROOT, read

from arenarl.benchmarks.benchmark import Item
from arenarl.benchmarks.responses import Response, respond, response_text, settings_of
from arenarl.config.schema import Config, EnvironmentConfig, RolloutConfig
from arenarl.rollout.engine import Attempt, RolloutEngine
from arenarl.rollout.policy import Limit
from arenarl.system.errors import UserError
from arenarl.trajectory import ToolCall, Trajectory, assistant_message, reply_message


@pytest.mark.parametrize(("reply", "text"), [
    ("<think>\nhm\n</think>\n\nDear reader,\n\nyours", "Dear reader,\n\nyours"),
    ("Dear <b>reader</b>", "Dear <b>reader</b>"),
    ("<think>\nhm\n</think>\n\nSo: <answer>\nDear reader\n</answer> Done.", "Dear reader"),
    ("<answer>\nDear rea", "Dear rea"), ("<answer>\n</answer>", ""), ("<think>\nI should", ""),
    ('<tool_call>\n{"name": "search"', ""), ("", ""),
])  # fmt: skip
def test_a_judge_gets_the_answer_or_the_text_without_thoughts(reply, text):
    messages = [{"role": "user", "content": "q"}, assistant_message(reply)]
    assert response_text(Trajectory("q", messages, "no_answer")) == text


def test_a_turn_with_a_tool_call_is_not_a_response():
    call = reply_message({"content": "let me see"}, [ToolCall("search", {"query": "x"})])
    messages = [{"role": "user", "content": "q"}, call]
    assert response_text(Trajectory("q", messages, "max_turns")) == ""
    assert response_text(Trajectory("q", [*messages, {"role": "tool", "content": "found"}], "max_tokens")) == ""


def test_search_uses_research_tools_or_the_users_class_and_writing_none():
    config = Config(rollout=RolloutConfig(force_answer=True))
    searching, writing = settings_of(config, True), settings_of(config, False)
    assert searching.environment.name == "research" and searching.rollout.force_answer
    rollout = writing.rollout
    assert (rollout.max_turns, rollout.force_answer, rollout.system_prompt) == (1, False, "none")
    own = Config(environment=EnvironmentConfig(name="mine:Tools"))
    assert [settings_of(own, has_search).environment.name for has_search in (True, False)] == ["mine:Tools", "none"]


def test_the_prompts_of_every_benchmark_are_checked_though_benchmarks_share_an_engine(tokenizer, tmp_path):
    scripted = Scripted(tokenizer, {"short": [ANSWER]})
    engine = RolloutEngine(scripted, tokenizer, Echo, RolloutConfig(max_tokens=100), schemas_in_prompt=False)
    engine.limit = Limit(200, "that the model reads")

    def response(text):
        return Response(0, 0, Item("0", text), Attempt(query(text), 0.0, 1), tmp_path / text[:5], "made by")

    short, long = response("short"), response("long " * 120)
    respond([short], lambda: engine, "one")
    assert short.trajectory.valid and not short.trajectory.completion_ids  # of thousands, the tokens fill the memory
    with pytest.raises(UserError, match="than the 200 that the model reads; shorten"):
        respond([long], lambda: engine, "another")
    assert long.trajectory is None


def test_a_policy_reads_the_system_prompt_of_the_config_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = [f"writingbench={write_jsonl(tmp_path / 'w.jsonl', writing_records(1))}"]
    asked, _ = run_here(ROOT, wanted, lambda body: "", **{"rollout.system_prompt": "Write well."})
    assert [message["content"] for message in asked[0]["messages"]] == ["Write well.", "Write a letter number 0."]
    entry = read(tmp_path / "runs/bench/benchmarks/writingbench.json")["policies"]["closed"]
    assert entry["empty"] == 1 and entry["items"] == 1  # the judge scores it
