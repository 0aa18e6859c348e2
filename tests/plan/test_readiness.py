"""`train_rl.py --check` without a GPU: what it reports and refuses, with a real judge server on localhost."""

import re
from collections import namedtuple

import pytest
from judge_servers import client_of, serving
from parts import examiner_of

from arenarl.config.load import load_config
from arenarl.config.schema import Config, JudgeConfig
from arenarl.judges.local_server import free_port
from arenarl.judges.server import JudgeServer
from arenarl.plan import readiness
from arenarl.plan.readiness import check_readiness
from arenarl.system.errors import UserError
from arenarl.system.repository import CONFIGS

Usage = namedtuple("Usage", "free")


class Prompts:
    """An engine whose prompts have one token per character of the query."""

    def prompt_ids(self, query):
        return [0] * len(query.query)


@pytest.fixture
def check(tmp_path, taught):
    def check(*overrides, url=None):
        judge = ["name=llm", "model=simulated", f"base_url={url}", "api_key_variable=null", "patience_s=0.5"]
        places = ("judge.train", "judge.eval.0") if url else ()
        overrides = [*overrides, *(f"{place}.{key}" for place in places for key in (*judge, "timeout_s=2"))]
        config, client = load_config(CONFIGS / "quickstart.yaml", overrides), client_of(tmp_path) if url else None
        check_readiness(config, tmp_path, [one.query for one in taught], Prompts(), client)

    return check


def server_of(taught, **options):
    queries = {one.query.query: one.query for one in taught}
    return JudgeServer(queries, examiner_of(Config()), JudgeConfig(), **options).app()


def test_it_reports_prompts_plan_disk_and_every_llm_judge(check, taught, capsys):
    with serving(server_of(taught)) as url:
        check(url=url)
    prompts, plan, disk, train, evaluate = capsys.readouterr().out.splitlines()
    longest = max(len(one.query.query) for one in taught)
    assert prompts == (
        f"prompts: at most {longest} tokens, with rollout.max_tokens {longest + 512} of the 2,048 that the model reads"
    )
    assert plan.startswith("plan for 1 GPU of 80 GB: fits") and disk.startswith("disk: checkpoints take up to 0.0 of ")
    assert train.startswith("judge.train: a verdict of simulated in ")
    assert evaluate.startswith("judge.eval.0: a verdict of simulated in ")


def test_a_watching_judge_is_checked_too(check, taught, capsys):
    with serving(server_of(taught)) as url:
        check("judge.watch.name=llm", "judge.watch.model=simulated",
              f"judge.watch.base_url={url}", "judge.watch.api_key_variable=null",
              "judge.watch_share=0.5", url=url)  # fmt: skip
    assert "judge.watch: a verdict of simulated in " in capsys.readouterr().out


def test_the_check_never_reads_replies_from_the_store(check, taught):
    """A judge that is down now may have replied to an earlier check."""
    with serving(server_of(taught)) as url:
        check(url=url)
    with pytest.raises(UserError, match="no usable reply from"):
        check(url=url)


def test_the_embedded_judge_is_not_checked(check, capsys):
    check()
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_missing_judge_is_a_one_line_error(check):
    with pytest.raises(UserError, match="no usable reply from http://127.0.0.1:.* for 0.5 s"):
        check(url=f"http://127.0.0.1:{free_port()}/v1")


def test_a_judge_without_a_readable_reply_is_a_one_line_error(check, taught):
    with (
        serving(server_of(taught, faults=1.0, kinds=["truncated"])) as url,
        pytest.raises(UserError, match="judge.train: simulated gave no readable verdict"),
    ):
        check(url=url)


def test_a_trajectory_longer_than_the_model_reads_is_refused(check):
    with pytest.raises(UserError, match="are more than the 2,048 that the model reads; set rollout.max_tokens to 1"):
        check("rollout.max_tokens=2048")


def test_a_disk_that_is_too_small_is_refused(check, monkeypatch):
    monkeypatch.setattr(readiness.shutil, "disk_usage", lambda path: Usage(1_000_000))
    with pytest.raises(UserError, match="checkpoints take up to .* GB, and 0.0 GB are free"):
        check()


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


def test_for_an_unknown_kind_of_model_only_the_judges_are_checked(check, taught, tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    with serving(server_of(taught)) as url:
        check(f"rl.init={tmp_path}", url=url)
    unknown, train, _ = capsys.readouterr().out.splitlines()
    assert unknown.startswith("lengths, plan and disk: not checked: ")
    assert train.startswith("judge.train: a verdict")
