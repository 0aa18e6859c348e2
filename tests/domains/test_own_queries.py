"""Queries of one's own, which bring neither constraints nor baselines:
no truth, LLM judges, and a first run with nothing else."""

import asyncio
import json
import os
import re
import subprocess
import sys

import pytest
import yaml
from groups import attempt
from judge_servers import client_of, serving
from parts import domain_of, examiner_of, trainer_judge_of, training_queries_of
from scripts import ENVIRONMENT, ROOT, read

from arenarl.config.load import load_config
from arenarl.config.schema import JudgeConfig
from arenarl.judges.factory import refuse_without_truth
from arenarl.judges.judge import true_quality
from arenarl.judges.llm import LLMJudge
from arenarl.judges.local_server import free_port, running_server
from arenarl.judges.server import JudgeServer
from arenarl.plan.estimate import count_test_queries, print_estimate
from arenarl.report.page import write_page
from arenarl.rollout.system_prompt import default_prompt
from arenarl.system.errors import UserError
from arenarl.training.metrics import group_records, outcome_metrics
from arenarl.training.rewards.group import GroupOutcome
from arenarl.training.sft_data import warn_of_untaught
from arenarl.trajectory import Query, RolloutGroup, read_jsonl, write_jsonl

CITIES = ["Xian", "Chengdu", "Wuhan", "Beijing", "Lhasa", "Dalian", "Hefei", "Harbin"]
DOCUMENT = (ROOT / "docs" / "domains.md").read_text(encoding="utf-8")
WALK = DOCUMENT.split("## A first run of your own")[1]
(LINES,) = re.findall(r"```json\n(.*?)```", WALK, re.DOTALL)
(YAML,) = re.findall(r"```yaml\n(.*?)```", WALK, re.DOTALL)


def asked(city, number=0):
    """The walk's first query, of another city."""
    return json.loads(LINES.splitlines()[0].replace("Xian", city)) | {"query_id": str(number)}


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for split, cities in (("rl", CITIES[:4]), ("test", CITIES[4:])):
        queries = [asked(city, number) for number, city in enumerate(cities)]
        write_jsonl(tmp_path / "data" / f"{split}_queries.jsonl", queries)
    return load_config(ROOT / "configs" / "quickstart.yaml", ["data.folder=data", "rl.groups=4"])


def test_they_are_trained_on_and_tested_though_their_subtask_is_none_of_the_paper_s(config):
    domain = domain_of(config)
    texts = [query.query for query in training_queries_of(config)]
    assert texts == [f"What do I pack for {city}?" for city in CITIES[:4]]
    queries, baselines = domain.read_test_set()
    assert len(domain.spread_over_subtasks(queries, 3)) == 3 and baselines == {} and count_test_queries(config) == 4


def test_the_queries_that_docs_show_are_enough_for_the_config_beside_them(config, tmp_path):
    (tmp_path / "data" / "rl_queries.jsonl").write_text(LINES, encoding="utf-8")
    config.rl.groups = yaml.safe_load(YAML)["rl"]["groups"]
    assert len(training_queries_of(config)) == config.rl.groups


def test_too_few_are_told_by_the_subtasks_that_they_have(config):
    config.rl.groups = 5
    with pytest.raises(UserError, match="rl_queries.jsonl has 4 queries of packing, fewer than rl.groups=5"):
        training_queries_of(config)


def test_preparing_data_leaves_them_as_they_are(config, prepare_script, tmp_path, monkeypatch, capsys):
    before = (tmp_path / "data" / "rl_queries.jsonl").read_bytes()
    words = ["--config", str(ROOT / "configs" / "quickstart.yaml"), "--set", "data.folder=data"]
    monkeypatch.setattr(sys, "argv", ["prepare.py", *words])
    prepare_script.main()
    assert "data holds queries that were not made here: nothing is prepared" in capsys.readouterr().out
    assert (tmp_path / "data" / "rl_queries.jsonl").read_bytes() == before
    assert len(list((tmp_path / "data").iterdir())) == 2


def test_nothing_is_said_to_be_true_of_them(config):
    query, trajectory = Query(**asked("Xian")), attempt(5.0)
    examine, group = examiner_of(config), RolloutGroup(query, [trajectory, trajectory])
    assert examine(query, trajectory) is None
    outcome = GroupOutcome([0.0, 1.0], [1.0, 0.0], 0, 0)
    assert outcome_metrics([group], [outcome], examine)["true/quality"] == []
    assert group_records(1, [group], [outcome], examine)[0]["quality"] == [None, None]
    with pytest.raises(UserError, match="query 0 has no truth: .* take an LLM judge"):
        true_quality(examine, query, trajectory)


def test_the_embedded_judge_refuses_them_before_any_work(config):
    domain, queries = domain_of(config), training_queries_of(config)
    refused = "judge.train: 4 of 4 queries, first 0, have no truth for the embedded judge: .* take an LLM judge"
    with pytest.raises(UserError, match=refused):
        refuse_without_truth("judge.train", [config.judge.train], domain, queries)
    refuse_without_truth("judge.train", [JudgeConfig(name="llm", model="m")], domain, queries)
    with pytest.raises(UserError, match="has no truth for the embedded judge"):
        asyncio.run(trainer_judge_of(config).compare(queries[0], attempt(5.0), attempt(4.0)))


def test_the_local_server_has_verdicts_on_them_that_are_noise_alone(config, tmp_path):
    queries = {query.query: query for query in training_queries_of(config)}
    server = JudgeServer(queries, examiner_of(config), JudgeConfig(noise="none"))
    with serving(server.app()) as url:
        llm = JudgeConfig(name="llm", model="m", base_url=url, api_key_variable=None)
        query = next(iter(queries.values()))
        verdict = asyncio.run(LLMJudge(llm, client_of(tmp_path)).compare(query, attempt(9.0), attempt(1.0)))
    assert verdict.totals == pytest.approx((5.0, 5.0))


def test_without_baselines_there_is_no_estimate_and_it_says_so(config, capsys):
    config.judge.train = JudgeConfig(name="llm", model="m")
    print_estimate(config, "rl")
    assert "estimate for rl: none, because no baselines are stored" in capsys.readouterr().out


def test_a_tool_that_the_policy_hears_of_nowhere_is_named(sft_path, compact, capsys):
    called = [tool for tool in compact.tools if tool["function"]["name"] in sft_path.read_text()]
    warn_of_untaught(sft_path, called)
    assert capsys.readouterr().out == ""
    warn_of_untaught(sft_path, [*called, {"function": {"name": "is_holiday"}}])
    said = "never calls is_holiday, and no prompt names it: environment.schemas_in_prompt=true"
    assert said in capsys.readouterr().out


def taught(city, number):
    """A conversation that a model which can chat and call the tool would have."""
    seen = f"{city}: sunny, 21 °C"
    call = {"type": "function", "function": {"name": "forecast", "arguments": {"city": city}}}
    answer = f"<answer>\nPack {('a hat', 'water', 'a map')[number % 3]}. {seen}\n</answer>"
    messages = [
        {"role": "system", "content": default_prompt("en")},
        {"role": "user", "content": asked(city)["query"]},
        {"role": "assistant", "reasoning_content": "hm", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": seen},
        {"role": "assistant", "reasoning_content": "hm", "content": answer},
    ]
    return {"query_id": str(number), "messages": messages, "tools": [], "valid": True, "meta": {}}


MODEL = """
name: model
policy: {dtype: float32, scratch: {hidden_size: 64}}
data: {folder: taught, language: en}
environment: {name: my_world:Weather}
rollout: {system_prompt: told.txt}
sft: {epochs: 5, batch_size: 4, learning_rate: 5.0e-3, deepspeed: null}
"""


@pytest.mark.slow(seconds=100)
def test_the_first_run_of_docs_runs_as_it_stands(tmp_path, monkeypatch):
    """Its model is a tiny one that was taught to chat behind the default system prompt.
    The server's port alone is another."""
    path = {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}

    def run(*words):
        options = {"cwd": tmp_path, "env": os.environ | ENVIRONMENT | path, "capture_output": True, "text": True}
        done = subprocess.run([sys.executable, *words], **options, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    commands = re.findall(r"^ {4}python (.*)", WALK, re.MULTILINE)
    assert len(YAML.splitlines()) + len(commands) + 1 <= 20
    assert commands[0] == "-m arenarl.judges.server --config mine.yaml &"
    world = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)[1]
    files = {"my_world.py": world, "model.yaml": MODEL, "told.txt": default_prompt("en"), "mine.yaml": YAML}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    lessons = [taught(CITIES[number % len(CITIES)], number) for number in range(64)]
    write_jsonl(tmp_path / "taught" / "sft.jsonl", lessons)
    (tmp_path / "data" / "mine").mkdir(parents=True)
    for split in ("rl", "test"):
        (tmp_path / "data" / "mine" / f"{split}_queries.jsonl").write_text(LINES, encoding="utf-8")
    run(str(ROOT / "train_sft.py"), "--config", "model.yaml")
    (tmp_path / "runs" / "model" / "sft").rename(tmp_path / "my-model")

    monkeypatch.setenv("PYTHONPATH", path["PYTHONPATH"])
    monkeypatch.chdir(tmp_path)
    with running_server("mine.yaml", [], free_port()) as url:
        sets = ["--set", f"judge.train.base_url={url}", "--set", f"judge.eval.0.base_url={url}"]
        run(str(ROOT / "train_rl.py"), "--config", "mine.yaml", *sets)
        told = run(str(ROOT / "evaluate.py"), "--config", "mine.yaml", *sets)

    summary = read(tmp_path / "results" / "mine" / "summary.json")
    start, trained = summary["sft"], summary["rl"]
    assert summary["reference"] == "sft sampled" and "win rate against `sft sampled`" in told
    sampled = {name: figure["mean"] for name, figure in start["sampled"].items() if name in ("valid_rate", "score")}
    assert min(sampled.values()) > 0 and start["sampled"]["win_rate"]["mean"] is None
    assert "quality" not in trained["sampled"] and "score" not in trained["sampled"]
    groups = list(read_jsonl(tmp_path / "runs" / "mine" / "rl" / "groups.jsonl"))
    conversations = [one["messages"] for group in groups for one in group["trajectories"]]
    assert {messages[0]["content"] for messages in conversations} == {default_prompt("en")}
    messages = [message for conversation in conversations for message in conversation]
    assert any("sunny" in message["content"] for message in messages if message["role"] == "tool")
    assert any(call["scores"] for group in groups for match in group["ranking"]["matches"] for call in match["calls"])
    curve = list(read_jsonl(tmp_path / "runs" / "mine" / "rl" / "curve.jsonl"))
    assert [point["step"] for point in curve] == [0, 1, 2]
    assert None not in [point["eval/sampled/score"] for point in curve]
    assert write_page(tmp_path / "runs" / "mine", tmp_path / "results" / "mine").stat().st_size > 50_000


def test_own_baselines_are_each_of_one_query_and_one_without_an_answer_is_counted(config, tmp_path, capsys):
    def baselines(*records):
        written = [{"messages": [{"role": "assistant", "content": text}]} | of for text, of in records]
        write_jsonl(tmp_path / "data" / "test_baselines.jsonl", written)
        return domain_of(config).read_test_set()[1]

    whole = [("<answer>a coat</answer>", {"query_id": str(number)}) for number in range(4)]
    assert all(one.answer == "a coat" for one in baselines(*whole).values())
    assert "without an answer" not in capsys.readouterr().out
    baselines(("a coat", {"query_id": "0"}), *whole[1:])
    assert "1 of 4 end without an answer, and judges see none; put it in <answer>" in capsys.readouterr().out
    for odd in ({}, {"query_id": 4}, {"query_id": ["4"]}):
        with pytest.raises(UserError, match="record 5: query_id must be a text"):
            baselines(*whole, ("x", odd))
    with pytest.raises(UserError, match="record 5: query 0 has a baseline already; leave one out"):
        baselines(*whole, whole[0])
