"""The stages on the local server: their files, the cost of a second start, and their errors."""

import json
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builds import SMALL, build_yaml, served_build
from scripts import BEING_WRITTEN, locked_by_another

from arenarl.domains.domain import make_domain
from arenarl.domains.travel.queries import SUBTASKS
from arenarl.llm.client import RunStopped
from arenarl.llm.reply_store import ReplyStore
from arenarl.synthesis import stages
from arenarl.synthesis.build import Build, tokens_of
from arenarl.synthesis.estimates import of_queries
from arenarl.synthesis.grounding import ungrounded
from arenarl.synthesis.inspection import Inspected, first_faulty_turn
from arenarl.synthesis.rules import Problem
from arenarl.synthesis.stages import STAGES, run
from arenarl.system.errors import UserError
from arenarl.system.repository import ROOT
from arenarl.trajectory import SPLIT_FILES, Trajectory, language_of, read_jsonl, read_queries, read_turns


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def files_of(folder):
    return {name: (folder / f"{name}.jsonl").read_text() for name in SPLIT_FILES}


def spent(config):
    return ReplyStore(Path(config.judge.store)).spent(f"{config.run_name}/build")


def test_a_build_leaves_the_files_of_the_scripts_and_rewrites_from_the_fault_on(tmp_path, capsys):
    with served_build(tmp_path) as (_, _, config):
        with locked_by_another(config.run_dir / "build"), pytest.raises(UserError, match=BEING_WRITTEN):
            run(config, list(STAGES))  # else both would pay for the calls under way
        run(config, list(STAGES))
        log = capsys.readouterr().out
        built, domain = tmp_path / "built", make_domain(config.environment, config.data)
        test, baselines = domain.read_test_set()
        rl, sft = read_queries(built / "rl_queries.jsonl"), list(read_jsonl(built / "sft.jsonl"))
        assert 3 <= len(test) == len(baselines) <= 5 and len(rl) == 5 and 5 <= len(sft) <= 8
        assert all(baseline.valid for baseline in baselines.values())
        assert not any(ungrounded(query, baselines[query.query_id]) for query in test)
        texts = [query.query for query in (*test, *rl)] + [record["messages"][0]["content"] for record in sft]
        assert len(set(texts)) == len(texts) and all(record["messages"][0]["role"] == "user" for record in sft)
        assert sum(domain.has_truth(query) for query in (*test, *rl)) == len(test) + len(rl)
        assert all(record["valid"] and read_turns(record["messages"])[-1].answer for record in sft)
        assert domain.has_own_queries  # data/prepare.py must not overwrite them
        assert all(f"{name}: about" in log for name in STAGES) and "cost" in log
        card = (built / "README.md").read_text()
        assert all(part in card for part in ("simulated-teacher", "round", "shared names", "test_baselines.jsonl"))
    # a trajectory that was rewritten once keeps the turns before the fault, without a system prompt
    build = tmp_path / "runs" / "data-local" / "build"
    first = {record["query_id"]: Trajectory.from_record(record) for record in read_jsonl(build / "trajectories.jsonl")}
    cases = [Inspected.from_record(record) for record in read_jsonl(build / "inspected.jsonl")]
    rewritten = [case for case in cases if len(case.rounds) == 2]
    assert rewritten
    for case in rewritten:
        kept = case.trajectory.meta["rewritten_from"] - 1
        before, after = (read_turns(each.messages) for each in (first[case.query.query_id], case.trajectory))
        assert kept == min(problem.turn or len(before) for problem in case.rounds[0]) - 1
        assert after[:kept] == before[:kept]
    assert not any(message["role"] == "system" for case in cases for message in case.trajectory.messages)


@pytest.mark.slow(seconds=12)
def test_a_build_resumes_after_each_kind_of_stop_without_paying_twice(tmp_path, capsys, monkeypatch):
    """A stage too early, a spent budget, lost records, an interrupted split, a missing key, frozen test queries."""
    monkeypatch.setenv("TEACHER_KEY", "a-key-of-the-teacher")
    with served_build(tmp_path) as (_, _, config):
        config.build.teacher.api_key_variable = "TEACHER_KEY"
        with pytest.raises(UserError, match="stage queries is not done"):
            run(config, ["trajectories"])
        assert spent(config).calls == 0

        config.judge.max_cost = 0.02
        for _ in range(2):  # the second run pays for nothing
            with pytest.raises(RunStopped, match="judge.max_cost=0.02 is used up"):
                run(config, list(STAGES))
            stopped = spent(config)
        assert stopped.cost < 0.06 and not (tmp_path / "built" / "sft.jsonl").exists()
        config.judge.max_cost = None
        for name in STAGES:
            run(config, [name])
        before, paid = files_of(tmp_path / "built"), spent(config)
        assert paid.cost > stopped.cost

        capsys.readouterr()
        run(config, list(STAGES))
        assert capsys.readouterr().out.count("done already") == len(STAGES)
        for name in STAGES:  # as if each stage had been killed before its end
            (tmp_path / "runs" / "data-local" / "build" / f"{name}.json").unlink()
        run(config, list(STAGES))
        assert files_of(tmp_path / "built") == before and spent(config) == paid

        shutil.rmtree(tmp_path / "built")
        write = stages.write_jsonl
        for written in range(len(SPLIT_FILES)):
            left = iter([None] * written)

            def interrupted(path, records, left=left):
                if next(left, KeyboardInterrupt):
                    raise KeyboardInterrupt
                write(path, records)

            monkeypatch.setattr(stages, "write_jsonl", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run(config, ["split"])
        monkeypatch.setattr(stages, "write_jsonl", write)
        monkeypatch.delenv("TEACHER_KEY")
        with pytest.raises(UserError, match="set the environment variable TEACHER_KEY"):
            run(config, list(STAGES))
        run(config, ["split"])  # needs no key
        assert files_of(tmp_path / "built") == before
        config.build.teacher.api_key_variable, config.data.seed = None, 1
        with pytest.raises(UserError, match="test_queries.jsonl is frozen"):
            run(config, list(STAGES))
        assert files_of(tmp_path / "built") == before


def test_a_stage_runs_again_after_an_edit_of_the_users_prompts_or_code(tmp_path, capsys, own_modules):
    own_modules({"own.py": "class Judge:\n    pass\n"})
    mine = tmp_path / "prompts" / "build_en.yaml"
    mine.parent.mkdir()

    def is_done(config):
        capsys.readouterr()
        run(config, ["queries"])
        return "queries: done already" in capsys.readouterr().out

    overrides = "judge.train={name: own:Judge, model: null, base_url: null}", f"prompts.folder={mine.parent}"
    with served_build(tmp_path, *overrides) as (_, _, config):
        mine.write_text('again: "Once more: {error}"\n')
        assert [is_done(config), is_done(config)] == [False, True]
        mine.write_text('again: "Please repeat: {error}"\n')
        assert [is_done(config), is_done(config)] == [False, True]
        own_modules({"own.py": "class Judge:\n    edited = True\n"})
        assert [is_done(config), is_done(config)] == [False, True]


@pytest.mark.slow(seconds=5)
def test_server_faults_change_no_quota_of_two_languages(tmp_path):
    both, seeds = tmp_path / "both.jsonl", ROOT / "data" / "seeds"
    both.write_text("".join((seeds / f"travel_{name}.jsonl").read_text(encoding="utf-8") for name in ("en", "zh")))
    overrides = ("build.languages=[en, zh]", f"build.seeds={both}", "data.test_per_subtask=2")
    options = {"mistakes": 0.0, "inspector_error": 0.0, "kinds": ("rate_limit", "error_500", "cut", "prose")}
    drawn = []
    for name, faults in (("sound", 0.0), ("faulty", 0.2)):
        (tmp_path / name).mkdir()
        with served_build(tmp_path / name, f"name={name}", *overrides, faults=faults, **options) as (server, _, config):
            test = run(config, ["queries"]).split_of["test"]
        options["pool"] = server.roles.pool
        cells = {(query.subtask, query.language) for query in test}
        assert cells == {(subtask, language) for subtask in SUBTASKS for language in ("en", "zh")}
        assert all(language_of(query.query) == query.language for query in test)
        drawn.append(len(list(read_jsonl(tmp_path / "runs" / name / "build" / "queries.jsonl"))))
    assert drawn[0] == drawn[1] > 0


def test_a_chinese_character_counts_as_more_tokens_than_a_latin_letter():
    """Else the estimate of a Chinese build's cost would be a third of the real one."""
    assert tokens_of([{"content": "园" * 300}]) > 2 * tokens_of([{"content": "p" * 300}]) > 150


def test_test_seeds_take_the_place_of_the_test_split_in_the_estimate(tmp_path):
    tests = tmp_path / "tests.jsonl"
    tests.write_text('{"query": "Find a quiet park in Chengdu.", "subtask": "Search"}\n', encoding="utf-8")
    counts = []
    for path in ("null", tests):
        overrides = "data.test_per_subtask=1000", f"build.test_seeds={path}"
        _, config = build_yaml(tmp_path, "http://127.0.0.1:1/v1", *overrides)
        build = Build(config, asks_models=False)
        generated, refined = (sum(calls.count for calls in of_queries(build) if calls.llm in llms)
                              for llms in (build.build.generators, [build.build.refiner]))  # fmt: skip
        quotas = [build.quotas[name].total() for name in ("sft", "rl") + ("test",) * (path == "null")]
        assert refined == sum(quotas) + (path == tests)
        counts.append(generated)
    assert counts[0] > 400 > counts[1]


def test_a_problem_without_a_turn_hides_no_faulty_turn():
    for turns, first in (([2, 0], 2), ([0, 3, 2], 2), ([0, 0], 0), ([1], 1)):
        assert first_faulty_turn([Problem("content", turn, "wrong") for turn in turns]) == first


EMBEDDED_JUDGE = "judge.train={name: embedded, model: null, base_url: null}"


@pytest.mark.parametrize(("overrides", "message"), [
    (["build.seeds=null"], "build.seeds is not set"), (["build.seeds=nowhere.jsonl"], "nowhere.jsonl cannot be read"),
    (["build.teacher={name: embedded, model: null, base_url: null}"], "build.teacher names no model"),
    ([EMBEDDED_JUDGE], "build.attempts=2: judge.train must choose among attempts"),
    ([EMBEDDED_JUDGE, "build.attempts=1"], "data.baseline_attempts=3: judge.train must choose among attempts"),
    (["build.languages=[zh]"], "a seed is in en, but build.languages is zh"),
    (["build.languages=[zh]", f"build.seeds={ROOT}/data/seeds/travel_zh.jsonl",
      f"build.test_seeds={ROOT}/data/seeds/travel_en.jsonl"], "travel_en.jsonl: a seed is in en"),
    (["build.subtasks=[Search]"], "line 1: the subtask Direction is not in build.subtasks; choose from Search"),
])  # fmt: skip
def test_wrong_settings_are_refused_in_one_line_before_any_call(tmp_path, overrides, message):
    with served_build(tmp_path, *overrides) as (_, _, config):
        with pytest.raises(UserError) as refused:
            run(config, list(STAGES))
        assert message in str(refused.value) and "\n" not in str(refused.value)


def test_data_that_was_not_built_here_is_left_alone(tmp_path):
    with served_build(tmp_path) as (_, _, config):
        (tmp_path / "built").mkdir()
        (tmp_path / "built" / "rl_queries.jsonl").write_text("{}\n")
        with pytest.raises(UserError, match="holds data that was not built here"):
            run(config, list(STAGES))


@pytest.mark.slow(seconds=14)
def test_a_build_killed_at_a_random_moment_loses_no_paid_reply(tmp_path):
    """The server counts its replies; the store lacks only those that were under way when the process died."""
    replies, wanted = [], random.Random(0).randint(20, 100)
    log = {"delay_s": 0.01, "log": lambda line: replies.append(line["text"] is not None)}
    with served_build(tmp_path, **log) as (_, path, config):
        overrides = [f"data.folder={tmp_path}/built", f"judge.store={config.judge.store}", "judge.concurrency=4"]
        command = [sys.executable, str(ROOT / "data" / "build.py"), "--config", str(path)]
        command += [word for override in (*SMALL, *overrides) for word in ("--set", override)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, **quiet) as process:
            while len(replies) < wanted and process.poll() is None:
                time.sleep(0.01)
            assert process.poll() is None
            process.kill()
        (kept,) = sqlite3.connect(config.judge.store).execute("SELECT count(*) FROM replies").fetchone()
        assert 0 <= sum(replies) - kept <= 8  # four calls are under way at the kill
        run(config, list(STAGES))
        assert json.loads((tmp_path / "built" / "build.json").read_text()).keys() == set(SPLIT_FILES)
