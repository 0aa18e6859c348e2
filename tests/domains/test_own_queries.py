"""A user's own queries, without constraints and baselines: no truth, LLM judges, and the first run of the docs."""

import asyncio
import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from groups import attempt
from judge_servers import client_of, serving
from parts import domain_of, examiner_of, trainer_judge_of, training_queries_of
from scripts import ENVIRONMENT, ROOT, read

import train_sft
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
from arenarl.training.preflight import _check_answers
from arenarl.training.rewards.group import GroupOutcome
from arenarl.training.sft_data import warn_of_untaught
from arenarl.trajectory import RolloutGroup, read_jsonl, write_jsonl

CITIES = ["Xian", "Chengdu", "Wuhan", "Beijing", "Lhasa", "Dalian", "Hefei", "Harbin"]
DOCUMENT = (ROOT / "docs" / "domains.md").read_text(encoding="utf-8")
WALK = DOCUMENT.split("## A first run of your own")[1]
(LINES,) = re.findall(r"```json\n(.*?)```", WALK, re.DOTALL)
(YAML,) = re.findall(r"```yaml\n(.*?)```", WALK, re.DOTALL)


def query_record(city, number=0):
    """Return the first query of the docs for another city."""
    return json.loads(LINES.splitlines()[0].replace("Xian", city)) | {"query_id": str(number)}


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for split, cities in (("rl", CITIES[:4]), ("test", CITIES[4:])):
        queries = [query_record(city, number) for number, city in enumerate(cities)]
        write_jsonl(tmp_path / "data" / f"{split}_queries.jsonl", queries)
    return load_config(ROOT / "configs" / "quickstart.yaml", ["data.folder=data", "rl.groups=4"])


def test_queries_in_another_language_than_the_prompts_are_refused_or_counted(config, tmp_path, capsys):
    config.data.language = "zh"
    with pytest.raises(UserError, match=r"no query is in data.language=zh, .*; set data.language=en"):
        domain_of(config).read_split("test")
    records = list(read_jsonl(tmp_path / "data" / "test_queries.jsonl"))
    for change, count in ((lambda k: {"language": "zh"}, 4), (lambda k: {"language": "zh" if k else "en"}, 1)):
        changed = [record | change(k) for k, record in enumerate(records)]
        write_jsonl(tmp_path / "data" / "test_queries.jsonl", changed)
        for _ in range(2):
            domain_of(config).read_split("test")
        line = f"test_queries.jsonl: {count} of 4 queries are not in data.language=zh"
        assert capsys.readouterr().out.count(line) == 1
    write_jsonl(tmp_path / "data" / "test_baselines.jsonl", [attempt(1.0).to_record() | {"query_id": "0"}])
    with pytest.raises(UserError, match="3 test queries have no baseline, first 1; add them, or delete the file"):
        domain_of(config).read_test_set()


@pytest.mark.parametrize(("answered", "outcome"), [(0, "refused"), (1, "refused"), (2, "counted"), (4, "")])
def test_sft_trajectories_without_an_answer_are_refused_or_counted(config, tmp_path, capsys, answered, outcome):
    path, world = tmp_path / "data" / "sft.jsonl", replace(config.environment, name="textcraft")
    turns = [f"<answer>\n{k}\n</answer>" if k < answered else "It is 3." for k in range(4)]
    write_jsonl(
        path,
        ({"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": turn}]} for turn in turns),
    )
    what = f"sft.jsonl: {4 - answered} of 4 trajectories end without <answer>"
    if outcome == "refused":
        with pytest.raises(UserError, match=what):
            _check_answers(config, path)
    else:
        _check_answers(config, path)
        assert (what in capsys.readouterr().out) == (outcome == "counted")
    config.environment = world  # it ends its trajectories itself
    _check_answers(config, path)


def test_queries_of_your_own_are_read_for_training_and_tests_with_their_subtask(config, tmp_path):
    domain = domain_of(config)
    texts = [query.query for query in training_queries_of(config)]
    assert texts == [f"What do I pack for {city}?" for city in CITIES[:4]]
    queries, baselines = domain.read_test_set()
    assert len(domain.spread_over_subtasks(queries, 3)) == 3 and baselines == {} and count_test_queries(config) == 4
    config.rl.groups = 5
    with pytest.raises(UserError, match="rl_queries.jsonl has 4 queries of packing, fewer than rl.groups=5"):
        training_queries_of(config)


def test_data_preparation_does_not_change_queries_of_your_own(config, prepare_script, tmp_path, monkeypatch, capsys):
    before = (tmp_path / "data" / "rl_queries.jsonl").read_bytes()
    words = ["--config", str(ROOT / "configs" / "quickstart.yaml"), "--set", "data.folder=data"]
    monkeypatch.setattr(sys, "argv", ["prepare.py", *words])
    prepare_script.main()
    assert "data holds queries of your own: nothing is prepared" in capsys.readouterr().out
    assert (tmp_path / "data" / "rl_queries.jsonl").read_bytes() == before
    assert len(list((tmp_path / "data").iterdir())) == 2


def test_without_a_truth_there_is_no_quality_and_the_embedded_judge_refuses_them(config):
    domain, queries, first = domain_of(config), training_queries_of(config), attempt(5.0)
    examine, group = examiner_of(config), RolloutGroup(queries[0], [first, first])
    assert examine(queries[0], first) is None
    outcome = GroupOutcome([0.0, 1.0], [1.0, 0.0], 0, 0)
    assert outcome_metrics([group], [outcome], examine)["true/quality"] == []
    assert group_records(1, [group], [outcome], examine)[0]["quality"] == [None, None]
    with pytest.raises(UserError, match="query 0 has no truth: .* take an LLM judge"):
        true_quality(examine, queries[0], first)
    message = "judge.train: 4 of 4 queries, first 0, have no truth for the embedded judge: .* take an LLM judge"
    with pytest.raises(UserError, match=message):
        refuse_without_truth("judge.train", [config.judge.train], domain, queries)
    refuse_without_truth("judge.train", [JudgeConfig(name="llm", model="m")], domain, queries)
    with pytest.raises(UserError, match="has no truth for the embedded judge"):
        asyncio.run(trainer_judge_of(config).compare(queries[0], first, attempt(4.0)))


def test_the_local_server_judges_queries_of_your_own_by_noise_alone(config, tmp_path):
    queries = {query.query: query for query in training_queries_of(config)}
    server = JudgeServer(queries, examiner_of(config), JudgeConfig(noise="none"))
    with serving(server.app()) as url:
        llm = JudgeConfig(name="llm", model="m", base_url=url, api_key_variable=None)
        query = next(iter(queries.values()))
        verdict = asyncio.run(LLMJudge(llm, client_of(tmp_path)).compare(query, attempt(9.0), attempt(1.0)))
    assert verdict.totals == pytest.approx((5.0, 5.0))


def test_without_baselines_the_plan_reports_that_it_has_no_estimate(config, capsys):
    config.judge.train = JudgeConfig(name="llm", model="m")
    print_estimate(config, "rl")
    assert "estimate for rl: none, because no baselines are stored" in capsys.readouterr().out


def test_a_tool_in_neither_sft_nor_prompt_is_reported(sft_path, compact, capsys):
    called = [tool for tool in compact.tools if tool["function"]["name"] in sft_path.read_text()]
    warn_of_untaught(sft_path, called)
    assert capsys.readouterr().out == ""
    warn_of_untaught(sft_path, [*called, {"function": {"name": "is_holiday"}}])
    warning = "never calls is_holiday, and no prompt names it: set environment.schemas_in_prompt=true"
    assert warning in capsys.readouterr().out


def lesson(city, number):
    """Return an SFT record: a call of the tool, then an answer."""
    weather = f"{city}: sunny, 21 °C"
    call = {"type": "function", "function": {"name": "forecast", "arguments": {"city": city}}}
    answer = f"<answer>\nPack {('a hat', 'water', 'a map')[number % 3]}. {weather}\n</answer>"
    messages = [
        {"role": "system", "content": default_prompt("en")},
        {"role": "user", "content": query_record(city)["query"]},
        {"role": "assistant", "reasoning_content": "hm", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": weather},
        {"role": "assistant", "reasoning_content": "hm", "content": answer},
    ]
    return {"query_id": str(number), "messages": messages, "tools": [], "valid": True, "meta": {}}


MODEL = """
name: model
policy: {dtype: float32, scratch: {hidden_size: 64}}
data: {folder: taught, language: en}
environment: {name: my_world:Weather}
rollout: {system_prompt: prompt.txt, max_tokens: 1024}
wandb: {mode: disabled}
sft: {epochs: 3, batch_size: 2, learning_rate: 5.0e-3, deepspeed: null}
"""


@pytest.mark.slow(seconds=60)
def test_the_first_run_of_the_docs_works(tmp_path, monkeypatch):
    """Only two things differ from the docs: a tiny chat model, trained here, and the server's port."""
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
    files = {"my_world.py": world, "model.yaml": MODEL, "prompt.txt": default_prompt("en"), "mine.yaml": YAML}
    for split in ("rl", "test"):
        files[f"data/mine/{split}_queries.jsonl"] = LINES
    (tmp_path / "data" / "mine").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    write_jsonl(tmp_path / "taught" / "sft.jsonl", [lesson(CITIES[number % 8], number) for number in range(64)])
    monkeypatch.setenv("PYTHONPATH", path["PYTHONPATH"])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train_sft.py", "--config", "model.yaml"])
    train_sft.main()
    (tmp_path / "runs" / "model" / "sft").rename(tmp_path / "my-model")

    with running_server("mine.yaml", [], free_port()) as url:
        sets = ["--set", f"judge.train.base_url={url}", "--set", f"judge.eval.0.base_url={url}"]
        run(str(ROOT / "train_rl.py"), "--config", "mine.yaml", *sets)
        printed = run(str(ROOT / "evaluate.py"), "--config", "mine.yaml", *sets)

    summary = read(tmp_path / "runs" / "mine" / "summary.json")
    start, trained = summary["sft"], summary["rl"]
    assert summary["reference"] == "sft sampled" and "win rate against `sft sampled`" in printed
    sampled = {name: figure["mean"] for name, figure in start["sampled"].items() if name in ("valid_rate", "score")}
    assert min(sampled.values()) > 0 and start["sampled"]["win_rate"]["mean"] is None
    assert "quality" not in trained["sampled"] and "score" not in trained["sampled"]
    groups = list(read_jsonl(tmp_path / "runs" / "mine" / "rl" / "groups.jsonl"))
    conversations = [trajectory["messages"] for group in groups for trajectory in group["trajectories"]]
    assert {messages[0]["content"] for messages in conversations} == {default_prompt("en")}
    messages = [message for conversation in conversations for message in conversation]
    assert any("sunny" in message["content"] for message in messages if message["role"] == "tool")
    assert any(call["scores"] for group in groups for match in group["ranking"]["matches"] for call in match["calls"])
    curve = list(read_jsonl(tmp_path / "runs" / "mine" / "rl" / "curve.jsonl"))
    assert [point["step"] for point in curve] == [0, 1, 2]
    assert None not in [point["eval/sampled/score"] for point in curve]
    assert write_page(tmp_path / "runs" / "mine", tmp_path / "runs" / "mine").stat().st_size > 50_000


def test_own_baselines_must_name_one_query_each_and_missing_answers_are_reported(config, tmp_path, capsys):
    def baselines(*records):
        lines = [{"messages": [{"role": "assistant", "content": text}]} | fields for text, fields in records]
        write_jsonl(tmp_path / "data" / "test_baselines.jsonl", lines)
        return domain_of(config).read_test_set()[1]

    complete = [("<answer>a coat</answer>", {"query_id": str(number)}) for number in range(4)]
    assert all(baseline.answer == "a coat" for baseline in baselines(*complete).values())
    assert "have no answer" not in capsys.readouterr().out
    baselines(("a coat", {"query_id": "0"}), *complete[1:])
    assert "1 of 4 baselines have no answer; put it in <answer>" in capsys.readouterr().out
    for fields in ({}, {"query_id": 4}, {"query_id": ["4"]}):
        with pytest.raises(UserError, match="record 5: query_id must be the id of a test query"):
            baselines(*complete, ("x", fields))
    with pytest.raises(UserError, match="record 5: query 0 already has a baseline; delete one"):
        baselines(*complete, complete[0])
