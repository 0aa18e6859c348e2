"""A user's own queries, without constraints and baselines: no truth, and LLM judges."""

import asyncio
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
from groups import attempt
from judge_servers import client_of, serving
from parts import domain_of, examiner_of, trainer_judge_of, training_queries_of
from scripts import ROOT

from arenarl.config.load import load_config
from arenarl.config.schema import JudgeConfig, RLConfig
from arenarl.domains.rubrics import domain_rubric
from arenarl.judges.factory import refuse_without_truth
from arenarl.judges.judge import true_quality
from arenarl.judges.llm import LLMJudge
from arenarl.judges.server import JudgeServer
from arenarl.plan.estimate import count_test_queries, print_estimate
from arenarl.system.errors import UserError
from arenarl.training.metrics import group_records, outcome_metrics
from arenarl.training.preflight import _check_answers, preflight_sft
from arenarl.training.rewards.group import GroupOutcome
from arenarl.training.sft_data import warn_of_untaught
from arenarl.trajectory import RolloutGroup, read_jsonl, write_jsonl

CITIES = ["Xian", "Chengdu", "Wuhan", "Beijing", "Lhasa", "Dalian", "Hefei", "Harbin"]


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for split, cities in (("rl", CITIES[:4]), ("test", CITIES[4:])):
        kind = {"domain": "travel", "subtask": "packing", "language": "en"}
        texts = [f"What do I pack for {city}?" for city in cities]
        queries = [kind | {"query": text, "query_id": str(number)} for number, text in enumerate(texts)]
        write_jsonl(tmp_path / "data" / f"{split}_queries.jsonl", queries)
    return load_config(ROOT / "configs" / "quickstart.yaml", ["data.folder=data", "rl.groups=4"])


def test_queries_are_your_own_unless_the_folder_has_a_manifest_of_prepared_data(config, tmp_path):
    assert domain_of(config).has_own_queries
    for manifest, is_own in (('{"name": "another program"}', True), ('{"splits": {}}', False)):
        (tmp_path / "data" / "manifest.json").write_text(manifest)
        assert domain_of(config).has_own_queries == is_own


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


def test_the_rubrics_of_all_languages_are_read_at_once_and_a_test_sets_have_the_same_dimensions(config, tmp_path):
    """The statistics number the dimensions, so another order would mix them up in silence."""
    rubrics = tmp_path / "configs" / "rubrics"
    rubrics.mkdir(parents=True)
    config.environment.domain = "cooking"
    for split in ("rl", "test"):
        path = tmp_path / "data" / f"{split}_queries.jsonl"
        records = [record | {"domain": "cooking"} for record in read_jsonl(path)]
        write_jsonl(path, [*records[1:], records[0] | {"language": "zh"}])

    def read(split, **texts):
        for language, dimensions in texts.items():
            (rubrics / f"cooking_{language}.yaml").write_text(f"answer: {{weight: 1, dimensions: {dimensions}}}")
        domain_rubric.cache_clear()
        return domain_of(config).read_split(split)

    assert len(read("test", en="{hot: It is hot, quick: It is quick}")) == 4  # English replaces the missing language
    assert len(read("test", zh="{hot: 热, quick: 快}")) == 4
    for other in ("{hot: 热}", "{quick: 快, hot: 热}"):
        with pytest.raises(UserError, match=r"test_queries.jsonl: the rubrics .* dimensions \(en: hot, quick; zh: "):
            read("test", zh=other)
        assert len(read("rl", zh=other)) == 4
    for split in ("rl", "test"):
        with pytest.raises(UserError, match="cooking_zh.yaml is not a rubric"):
            read(split, zh="{}")


@pytest.mark.parametrize(("answered", "outcome"), [(0, "refused"), (1, "refused"), (2, "counted"), (4, "")])
def test_sft_trajectories_without_an_answer_are_refused_or_counted(config, tmp_path, capsys, answered, outcome):
    path, world = tmp_path / "data" / "sft.jsonl", replace(config.environment, name="textcraft")
    turns = [f"<answer>\n{k}\n</answer>" if k < answered else "It is 3." for k in range(4)]
    user = {"role": "user", "content": "?"}
    write_jsonl(path, ({"messages": [user, {"role": "assistant", "content": turn}]} for turn in turns))
    what = f"sft.jsonl: {4 - answered} of 4 trajectories end without <answer>"
    if outcome == "refused":
        with pytest.raises(UserError, match=what):
            _check_answers(config, path)
    else:
        _check_answers(config, path)
        assert (what in capsys.readouterr().out) == (outcome == "counted")
    config.environment = world  # it ends its trajectories itself
    _check_answers(config, path)


def test_rl_keys_that_the_queries_cannot_meet_are_refused_before_sft(config, tmp_path):
    answer = {"role": "assistant", "content": "<answer>\nWarm clothes.\n</answer>"}
    write_jsonl(tmp_path / "data" / "sft.jsonl", [{"messages": [{"role": "user", "content": "?"}, answer]}])

    def check():
        assert preflight_sft(config, Namespace(check=True), lambda *_: {}) is None

    check()
    for change, words in ({"groups": 5}, "fewer than rl.groups=5"), ({"subtasks": ["hiking"]}, "no query of hiking"):
        config.rl = replace(config.rl, **change)
        with pytest.raises(UserError, match=words):
            check()
    config.rl, config.name = RLConfig(), "sft-alone"  # is not refused, although rl.groups is 8 by default
    check()


def test_own_queries_are_read_with_their_subtask_and_the_plan_needs_baselines(config, capsys):
    texts = [query.query for query in training_queries_of(config)]
    assert texts == [f"What do I pack for {city}?" for city in CITIES[:4]]
    domain = domain_of(config)
    queries, baselines = domain.read_test_set()
    assert len(domain.spread_over_subtasks(queries, 3)) == 3 and baselines == {} and count_test_queries(config) == 4
    config.judge.train = JudgeConfig(name="llm", model="m")
    print_estimate(config, "rl")
    assert "estimate for rl: none, because no baselines are stored" in capsys.readouterr().out
    config.rl.groups = 5
    with pytest.raises(UserError, match="rl_queries.jsonl has 4 queries of packing, fewer than rl.groups=5"):
        training_queries_of(config)
    path = Path(config.data.folder) / "rl_queries.jsonl"
    write_jsonl(path, [record | {"subtask": "M-Day"} for record in read_jsonl(path)])
    with pytest.raises(UserError, match="has 0 queries of other subtasks than M-Day, held out, fewer than rl.groups=5"):
        training_queries_of(config)


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


def test_a_tool_in_neither_sft_nor_prompt_is_reported(sft_path, compact, capsys):
    called = [tool for tool in compact.tools if tool["function"]["name"] in sft_path.read_text()]
    warn_of_untaught(sft_path, called)
    assert capsys.readouterr().out == ""
    warn_of_untaught(sft_path, [*called, {"function": {"name": "is_holiday"}}])
    warning = "never calls is_holiday, so the policy will not; if it should, set environment.schemas_in_prompt=true"
    assert warning in capsys.readouterr().out


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
