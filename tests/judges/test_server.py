"""The LLM judge against the judge server, over a socket: the embedded judge's verdicts, and none invented."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from judge_servers import client_of, hostile_half, judge_of, serving
from parts import arena_of, examiner_of
from scripts import wait_until

from arenarl.config.schema import Config, GroupStageConfig, JudgeConfig, RolloutConfig
from arenarl.evaluation.evaluation import Panel, judge_trajectories
from arenarl.judges import local_server
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.judges.local_server import FAULTS, _accepts, free_port, running_server
from arenarl.judges.server import JudgeServer
from arenarl.system.errors import UserError
from arenarl.system.repository import ROOT
from arenarl.training.rewards import REWARDS
from arenarl.trajectory import RolloutGroup

EXACT = JudgeConfig(noise="none")


@pytest.fixture(scope="module")
def examiner():
    return examiner_of(Config())


@pytest.fixture
def serve(taught, examiner):
    """`serve(**options)` returns a context with the address of a judge server for `taught`, and the server's log."""

    def serve(judge=EXACT, middlewares=(), **options):
        log = []
        server = JudgeServer({one.query.query: one.query for one in taught}, examiner, judge, log=log.append, **options)
        app = server.app()
        app.middlewares.extend(middlewares)
        return serving(app), log

    return serve


def groups_of(taught, count, size=4):
    """Return groups with trajectories of other queries, so that they differ in quality."""
    firsts = range(0, count * size, size)
    return [
        RolloutGroup(taught[first].query, [one.trajectory for one in taught[first : first + size]]) for first in firsts
    ]


@pytest.mark.parametrize("view", [
    {"name_turns": True, "explain": True}, {"show_tool_results": False}, {"process_aware": False, "explain": True},
])  # fmt: skip
def test_without_noise_the_llm_judges_verdicts_equal_the_embedded_judges(taught, examiner, serve, tmp_path, view):
    embedded = EmbeddedJudge(replace(EXACT, **view), examiner, 0)
    context, _ = serve()

    async def check(llm):
        for one, other in zip(taught[::8], taught[1::8], strict=True):
            query, a, b = one.query, one.trajectory, other.trajectory
            verdict, true = await llm.compare(query, a, b), await embedded.compare(query, a, b)
            assert verdict.dimensions == true.dimensions and verdict.totals == pytest.approx(true.totals)
            assert verdict.pivotal_turns == true.pivotal_turns and bool(true.pivotal_turns) == ("name_turns" in view)
            assert (await llm.score(query, b)).dimensions == (await embedded.score(query, b)).dimensions
            assert await llm.choose(query, [a, b, a], 2) == await embedded.choose(query, [a, b, a], 2)
            assert await llm.score_overall(query, a) == pytest.approx(await embedded.score_overall(query, a))
            together = await embedded.score_together(query, [b, a, b])
            assert await llm.score_together(query, [b, a, b]) == pytest.approx(together)
            new = await llm.propose_rubrics(query, [a, b], ["path_breadth is at least 5"])
            checks = [await embedded.check_items(query, one, rubrics=list(new)) for one in (a, b)]
            for text, weight in new.items():  # the server sees other messages, so its draws differ
                assert checks[0][text] != checks[1][text] and weight == (-1.0 if "below" in text else 1.0)
                assert not text.startswith("path_breadth") or "5" not in text.split()
            checked = await llm.check_items(query, a, rubrics=list(new))
            assert {text: checked[text] for text in new} == {text: checks[0][text] for text in new}
            assert llm.weights(query) == embedded.weights(query)
            for name in embedded.weights(query):
                assert await llm.score_dimension(query, a, name) == await embedded.score_dimension(query, a, name)

    with context as url:
        asyncio.run(check(judge_of(url, client_of(tmp_path), **view)))


@pytest.mark.parametrize("method", sorted(set(REWARDS) - {"correctness", "correctness_or_tournament", "environment"}))
def test_every_reward_works_with_an_llm_judge_and_is_free_the_second_time(taught, examiner, serve, tmp_path, method):
    config = Config(rollout=RolloutConfig(group_size=4), group_stage=GroupStageConfig(repeats=2))
    config.reward.name = method
    groups = groups_of(taught, 3)
    context, log = serve(JudgeConfig())
    with context as url:
        judge = judge_of(url, client_of(tmp_path), temperature=0.7)
        first = arena_of(config, judge).reward_groups(groups)
        calls = len(log)
        again = arena_of(config, judge_of(url, client_of(tmp_path), temperature=0.7)).reward_groups(groups)
    assert calls == len(log) > 0
    assert [outcome.rewards_G for outcome in first] == [outcome.rewards_G for outcome in again]
    assert all(None not in outcome.rewards_G for outcome in first)
    differ = [len(set(outcome.rewards_G)) > 1 for outcome in first]
    assert all(differ) or method == "rubric_checklist" and any(differ)  # a short checklist may leave equal rewards


def test_with_half_of_the_replies_hostile_a_verdict_is_true_or_missing_and_counted(taught, examiner, serve, tmp_path):
    """In a tournament, with pointwise scores, and in evaluation."""
    size = 8
    config = Config(rollout=RolloutConfig(group_size=4))
    context, log = serve(middlewares=[hostile_half])
    used, failed = [], 0
    client = client_of(tmp_path, max_failure_share=1.0)
    with context as url:
        judge = judge_of(url, client, patience_s=0.5)
        for outcome in arena_of(config, judge).reward_groups(groups_of(taught, size // 2)):
            calls = [call for match in outcome.ranking.matches for call in match.calls]
            used += [tuple(call.detail) for call in calls if call.scores]
            failed += sum(call.scores is None for call in calls)
        config.reward.name = "pointwise_trajectory"
        for outcome in arena_of(config, judge).reward_groups(groups_of(taught[size * 2 :], size // 2)):
            failed += outcome.failed_calls
            assert outcome.failed_calls == sum(reward is None for reward in outcome.rewards_G)
        queries = [one.query for one in taught[:size]]
        trajectories = [one.trajectory for one in taught[size : 2 * size]]
        stored = (one.trajectory for one in taught[2 * size : 3 * size])
        baselines = dict(zip((query.query_id for query in queries), stored, strict=True))
        for case in judge_trajectories(queries, trajectories, baselines, Panel([judge], examiner)):
            verdicts = [verdict for pair in case.calls for verdict in pair]
            used += [verdict.dimensions for verdict in verdicts if verdict]
            failed += verdicts.count(None)
            assert np.isnan(case.outcomes).all() == (None in verdicts)
    sent = [tuple(line["reply"].values()) for line in log if line["reply"]]
    assert used and all(dimensions in sent for dimensions in used)
    assert failed == client.take_usage()[0].failed > size and client.stop_reason is None


@pytest.mark.parametrize("kind", FAULTS)
def test_with_one_fault_in_every_reply_only_prose_gives_a_verdict(taught, serve, tmp_path, kind):
    query, group = taught[0].query, [other.trajectory for other in taught[:3]]
    context, log = serve(faults=1.0, kinds=[kind], hang_s=0.4)
    with context as url:
        client = client_of(tmp_path, max_failure_share=1.0)
        judge = judge_of(url, client, timeout_s=0.2 if kind == "hang" else 60.0, patience_s=0.5)
        replies = [asyncio.run(judge.compare(query, *group[:2])), asyncio.run(judge.score_together(query, group))]
        replies.append(asyncio.run(judge.check_items(query, group[0])))
    assert [reply is None for reply in replies] == [kind != "prose"] * 3 and client.take_usage()[0].verdicts == 3
    assert all(line["fault"] == kind for line in log)


def test_equal_prompts_get_equal_replies_only_at_temperature_0(taught, serve, tmp_path):
    one, other = taught[0], taught[1]
    context, _ = serve(JudgeConfig())
    with context as url:
        client = client_of(tmp_path)

        def dimensions(temperature, repeat):
            judge = judge_of(url, client, temperature=temperature)
            return asyncio.run(judge.compare(one.query, one.trajectory, other.trajectory, repeat)).dimensions

        assert dimensions(0.0, 0) == dimensions(0.0, 1) != dimensions(0.7, 0) != dimensions(0.7, 1)


SERVER = """
import socket, sys
from arenarl.system.errors import run_cli

def main():
    with socket.create_server(("127.0.0.1", int(sys.argv[-1]))) as server:
        while True:
            server.accept()[0].close()

run_cli(main)
"""


@pytest.mark.parametrize(("option", "error"), [
    ("--port=99999", "port 99999 cannot be used: .*; choose another --port"),
    ("--log=nowhere/log.jsonl", "--log nowhere/log.jsonl cannot be written: No such file"),
])  # fmt: skip
def test_a_port_or_a_log_that_cannot_be_used_is_named(monkeypatch, tmp_path, option, error):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["server", "--config", str(ROOT / "configs/quickstart.yaml"), option])
    with pytest.raises(UserError, match=error):
        local_server.serve(lambda config, **options: JudgeServer({}, None, EXACT, **options), "A server.", 1)


def test_no_other_server_takes_the_place_of_a_studys_own():
    """Another server's replies, with other faults and errors, would be measured."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is in use"), running_server("x", (), port):
            pass


def test_a_server_that_could_not_take_its_port_ends_the_study_that_got_anothers_replies(monkeypatch):
    """As if another server had taken the port while this one was starting."""
    answers = iter([False, True])
    monkeypatch.setattr(local_server, "_accepts", lambda port: next(answers))
    ended = subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"])
    monkeypatch.setattr(local_server.subprocess, "Popen", lambda *_, **__: ended)
    with pytest.raises(UserError, match="the server small_server ended with exit code 2"):
        with running_server("x", (), 1, module="small_server"):
            ended.wait()


@pytest.mark.slow(seconds=4)
def test_a_server_ends_with_a_killed_study(tmp_path):
    (tmp_path / "small_server.py").write_text(SERVER)
    port, paths = free_port(), os.pathsep.join([str(tmp_path), str(ROOT)])
    study = "import time; from arenarl.judges.local_server import running_server\nwith running_server"
    study += f"('x', (), {port}, module='small_server'): print('up', flush=True); time.sleep(600)"
    environment = os.environ | {"PYTHONPATH": paths}
    with subprocess.Popen([sys.executable, "-c", study], env=environment, stdout=subprocess.PIPE) as running:
        assert running.stdout.readline() == b"up\n"
        running.kill()
    wait_until(lambda: not _accepts(port))


def test_an_unknown_prompt_and_a_wrong_key_are_refused(serve, taught, tmp_path):
    context, _ = serve()
    with context as url:
        with urlopen(f"{url}/models") as models:
            assert [model["id"] for model in json.load(models)["data"]] == ["simulated-travel-judge"]
        hi = {"role": "user", "content": "hi"}
        for messages in ([hi], [{"role": "system", "content": "x"}, hi]):
            body = json.dumps({"model": "m", "messages": messages}).encode()
            with pytest.raises(HTTPError, match="400") as refusal:
                urlopen(Request(f"{url}/chat/completions", body, {"Content-Type": "application/json"}))
            assert b"unknown prompt" in refusal.value.read()
    one = taught[0]
    context, log = serve(key="sk-right")
    with context as url:
        for key, has_verdict in (("sk-wrong", False), ("sk-right", True)):
            client = client_of(tmp_path / key, keys={"K": key})
            verdict = asyncio.run(judge_of(url, client, api_key_variable="K").score(one.query, one.trajectory))
            assert (verdict is not None) == has_verdict == (client.stop_reason is None)
    assert len(log) == 1
