"""The checks before work starts: what they report and refuse, with a real judge server on localhost."""

import re
from collections import namedtuple

import pytest
from judge_servers import client_of, serving
from parts import examiner_of

from arenarl.config.load import load_config
from arenarl.config.schema import Config, JudgeConfig
from arenarl.domains.domain import make_domain
from arenarl.judges.factory import make_judge
from arenarl.judges.judge import make_examiner
from arenarl.judges.local_server import free_port
from arenarl.judges.server import JudgeServer
from arenarl.plan import readiness
from arenarl.plan.readiness import check_judges, check_readiness
from arenarl.rollout.engine import RolloutEngine
from arenarl.rollout.policy import Limit
from arenarl.system.errors import UserError
from arenarl.system.repository import CONFIGS

Usage, LIMIT = namedtuple("Usage", "free"), Limit(2048, "that the model reads")


class Prompts:
    """An engine whose prompts have one token per character of the query."""

    require_room = RolloutEngine.require_room

    def __init__(self, config, limit):
        self.config, self.limit = config, limit

    def prompt_ids(self, query):
        return [0] * len(query.query)


@pytest.fixture
def check(tmp_path, taught):
    def check(*overrides, url=None, limit=LIMIT, stage="rl"):
        judge = ["name=llm", "model=simulated", f"base_url={url}", "api_key_variable=null", "patience_s=0.5"]
        places = ("judge.train", "judge.eval.0") if url else ()
        data = f"data.folder={tmp_path}"  # no stored baselines, although a quickstart may have made some in this clone
        overrides = [data, *overrides, *(f"{place}.{key}" for place in places for key in (*judge, "timeout_s=30"))]
        config, client = load_config(CONFIGS / "quickstart.yaml", overrides), client_of(tmp_path) if url else None
        domain, queries = make_domain(config.environment, config.data), [one.query for one in taught]
        check_readiness(config, tmp_path, queries, Prompts(config.rollout, limit))
        configs = {"judge.train": config.judge.train} | config.judge.watching | config.judge.evaluating
        judges = {key: make_judge(judge, domain, make_examiner(domain), client) for key, judge in configs.items()}
        check_judges(config, stage, judges, domain, queries, client)

    return check


def server_of(taught, **options):
    queries = {one.query.query: one.query for one in taught}
    return JudgeServer(queries, examiner_of(Config()), JudgeConfig(), **options).app()


def test_it_reports_prompts_plan_disk_and_every_llm_judge_also_the_watching_one(check, taught, capsys):
    with serving(server_of(taught)) as url:
        check(url=url)
    prompts, plan, disk, train, *evaluate = capsys.readouterr().out.splitlines()
    longest = max(len(one.query.query) for one in taught)
    assert prompts == (
        f"prompts: at most {longest} tokens, with rollout.max_tokens {longest + 512} of the 2,048 that the model reads"
    )
    assert plan.startswith("plan for 1 GPU of 80 GB: fits") and disk.startswith("disk: checkpoints take up to 0.0 of ")
    assert train.startswith("judge.train: a verdict of simulated in ")
    assert len(evaluate) == 2  # a pair, and an answer alone, because no baselines are stored
    assert all(line.startswith("judge.eval.0: a verdict of simulated in ") for line in evaluate)
    with serving(server_of(taught)) as url:
        check("judge.watch.name=llm", "judge.watch.model=simulated",
              f"judge.watch.base_url={url}", "judge.watch.api_key_variable=null",
              "judge.watch_share=0.5", url=url)  # fmt: skip
    assert "judge.watch: a verdict of simulated in " in capsys.readouterr().out


@pytest.mark.parametrize("stage", ["rl", "evaluate"])
def test_without_stored_baselines_a_judge_must_score_alone_too(check, taught, capsys, tmp_path, stage):
    with serving(server_of(taught)) as url:
        check(url=url, stage=stage)
        assert capsys.readouterr().out.count("judge.eval.0: a verdict") == 2
        (tmp_path / "test_baselines.jsonl").write_text("")
        check(url=url, stage=stage)
        assert capsys.readouterr().out.count("judge.eval.0: a verdict") == 1


def test_a_judge_that_cannot_be_reached_is_a_one_line_error_though_its_replies_are_stored(check, taught, monkeypatch):
    """A judge that is down now may have replied to an earlier check."""
    with serving(server_of(taught)) as url:
        check(url=url)
    with pytest.raises(UserError, match="no usable reply from"):
        check(url=url)
    with pytest.raises(UserError, match="no usable reply from http://127.0.0.1:.* for 0.5 s"):
        check(url=f"http://127.0.0.1:{free_port()}/v1")
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(UserError, match="add 127.0.0.1 to NO_PROXY"):
        check(url=f"http://127.0.0.1:{free_port()}/v1")


def test_the_embedded_judge_and_the_plan_of_an_unknown_kind_of_model_are_not_checked(check, capsys, taught, tmp_path):
    check()
    assert len(capsys.readouterr().out.splitlines()) == 3
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    with serving(server_of(taught)) as url:
        check(f"rl.init={tmp_path}", url=url, limit=None)
    prompts, unknown, train, *_ = capsys.readouterr().out.splitlines()
    assert prompts == "prompts: not checked, as the model's config names no longest sequence"
    assert unknown.startswith("plan and disk: not checked: ")
    assert train.startswith("judge.train: a verdict")


def test_an_llm_without_a_readable_reply_is_a_one_line_error_also_behind_tools(check, taught):
    with (
        serving(server_of(taught, faults=1.0, kinds=["truncated"])) as url,
        pytest.raises(UserError, match="judge.train: simulated gave no readable verdict"),
    ):
        check(url=url)
    with serving(server_of(taught)) as url:
        address = f"base_url: 'http://127.0.0.1:{free_port()}/v1', api_key_variable: null, patience_s: 0.5"
        with pytest.raises(UserError, match="no usable reply from|environment.tickets: m gave no readable reply: "):
            check(f"environment.tickets={{name: llm, model: m, {address}}}", url=url)


@pytest.mark.parametrize(("overrides", "free", "problem"), [
    (["rollout.max_tokens=2048"], 10**12, "are more than the 2,048 that the model reads; set rollout.max_tokens to 1"),
    ([], 10**6, "checkpoints take up to .* GB, and 0.0 GB are free"),
])  # fmt: skip
def test_too_long_a_trajectory_and_too_small_a_disk_are_refused(check, monkeypatch, overrides, free, problem):
    monkeypatch.setattr(readiness.shutil, "disk_usage", lambda path: Usage(free))
    with pytest.raises(UserError, match=problem):
        check(*overrides)


def test_room_for_checkpoints_excludes_frozen_weights_and_present_checkpoints(check, tmp_path, monkeypatch, capsys):
    def takes(*overrides):
        check(*overrides)
        return float(re.search(r"checkpoints take up to ([\d.]+) of", capsys.readouterr().out)[1])

    monkeypatch.setattr(readiness.shutil, "disk_usage", lambda path: Usage(10**12))
    model = ["policy.model=Qwen/Qwen3-8B", "policy.dtype=bfloat16", "rl.init=Qwen/Qwen3-8B", "rollout.max_tokens=1000"]
    whole, adapter = takes(*model), takes(*model, "policy.lora_rank=32")
    assert whole == pytest.approx(3 * 3 * 16.4 + 16.4, rel=0.01) and 16.4 < adapter < 20
    for step in (20, 40):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "whole.json").touch()
    assert takes(*model) == pytest.approx(3 * 16.4 + 16.4, rel=0.01)


OWN = """
from arenarl.domains.domain import Domain, Truth
from arenarl.domains.rubrics import domain_rubric
from arenarl.domains.travel.domain import TravelDomain
from arenarl.judges.judge import Judge, Verdict

RUBRIC = domain_rubric("travel", "en")

class Sound(Judge):
    def __init__(self, config): pass
    async def compare(self, query, first, second, repeat=0):
        return Verdict((dict.fromkeys(RUBRIC.names, 5.0),) * 2, RUBRIC.total)

class Misspelt(Sound):
    async def compare(self, query, first, second, repeat=0):
        return Verdict(({"path_bredth": 5.0},) * 2, RUBRIC.total)

class Failing(Sound):
    async def compare(self, query, first, second, repeat=0):
        return self.missing

class Score:
    def __init__(self, value, name="path_breadth"):
        self.scores = dict.fromkeys(RUBRIC.names, 5.0) | {name: value}

def domain_of(value, name="path_breadth"):
    class Own(TravelDomain):
        def examine(self, query, messages):
            truth = Truth()
            truth.dimensions = lambda: Score(value, name).scores
            return truth
    return Own

High, Text, Unknown = domain_of(10.5), domain_of("7"), domain_of(5.0, "path_bredth")

class Raising(TravelDomain):
    def examine(self, query, messages):
        return {}["x"]

class Unstorable(TravelDomain):
    def examine(self, query, messages):
        truth = super().examine(query, messages)
        truth.findings = lambda: {"places": {"a park"}}
        return truth

class NoTruth(TravelDomain):
    def examine(self, query, messages):
        return 7.0

class Nameless(Domain): pass

class NoDomain:
    def __init__(self, environment, data): pass
"""


@pytest.mark.parametrize(("overrides", "problem"), [
    (["judge.train.name=own_parts:Sound"], None),
    (["judge.train.name=own_parts:Sound", "reward.name=pointwise_answer"], "judge.train.name=.* has no method score"),
    (["judge.eval.0.name=own_parts:Misspelt"], "judge.eval.0.name=.*'path_bredth'.*did you mean path_breadth"),
    (["judge.train.name=own_parts:Failing"], "compare gave no verdict on an invented answer: AttributeError"),
    (["judge.watch.name=own_parts:Sound", "judge.watch_share=0.5"], "judge.watch.name=.* has no method score"),
    (["environment.domain=own_parts:High"], r"scores path_breadth 10.5 .*from 0 to 10"),
    (["environment.domain=own_parts:Text"], "scores path_breadth '7'"),
    (["environment.domain=own_parts:Unknown"], "must score the rubric's dimensions"),
    (["environment.domain=own_parts:Raising"], "its truth about an invented answer .* KeyError"),
    (["environment.domain=own_parts:Unstorable"], "its truth about an invented answer .* not JSON serializable"),
    (["environment.domain=own_parts:NoTruth"], "must return a Truth"),
    (["environment.domain=own_parts:Nameless"], "set its attribute name"),
    (["environment.domain=own_parts:NoDomain"], "must be a subclass of"),
    (["environment.domain=own_parts:Sound"], "must be a subclass of"),
])  # fmt: skip
def test_own_judges_and_domains_are_tried_before_work_starts(check, tmp_path, monkeypatch, overrides, problem):
    (tmp_path / "own_parts.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    if problem is None:
        return check(*overrides)
    with pytest.raises(UserError, match=problem) as refused:
        check(*overrides)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("reward", ["pointwise_trajectory", "pointwise_explicit", "ruler", "tournament_grpo"])
def test_an_llm_judge_is_asked_for_what_the_reward_asks_for(check, taught, reward, capsys):
    with serving(server_of(taught)) as url:
        check(f"reward.name={reward}", "rollout.group_size=5", url=url)
    assert capsys.readouterr().out.count("judge.train: a verdict") == 1
