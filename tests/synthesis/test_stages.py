"""The stages on the local server: what they leave, what a second start costs, what stops them."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builds import SMALL, served_build

from arenarl.domains.domain import make_domain
from arenarl.domains.travel.queries import SUBTASKS
from arenarl.llm.client import RunStopped
from arenarl.llm.reply_store import ReplyStore
from arenarl.synthesis import stages
from arenarl.synthesis.inspection import Inspected, first_faulty_turn
from arenarl.synthesis.rules import Problem
from arenarl.synthesis.stages import SPLIT_FILES, STAGES, run
from arenarl.system.errors import UserError
from arenarl.system.repository import ROOT
from arenarl.trajectory import Trajectory, language_of, read_jsonl, read_queries, read_turns


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def files_of(folder):
    return {name: (folder / f"{name}.jsonl").read_text() for name in SPLIT_FILES}


def spent(config):
    return ReplyStore(Path(config.judge.store)).spent(f"{config.run_name}/build")


def test_a_build_leaves_what_the_scripts_read(tmp_path, capsys):
    with served_build(tmp_path) as (_, _, config):
        run(config, list(STAGES))
        said = capsys.readouterr().out
        built, domain = tmp_path / "built", make_domain(config.environment, config.data)
        test, baselines = domain.read_test_set()
        rl, sft = read_queries(built / "rl_queries.jsonl"), list(read_jsonl(built / "sft.jsonl"))
        assert len(test) == len(baselines) == 5 and len(rl) == 5 and 5 <= len(sft) <= 8
        assert all(baseline.valid for baseline in baselines.values())
        texts = [query.query for query in (*test, *rl)] + [record["messages"][0]["content"] for record in sft]
        assert len(set(texts)) == len(texts) and all(record["messages"][0]["role"] == "user" for record in sft)
        assert sum(domain.has_truth(query) for query in (*test, *rl)) == len(test) + len(rl)
        assert all(record["valid"] and read_turns(record["messages"])[-1].answer for record in sft)
        assert domain.has_own_queries  # data/prepare.py leaves them alone
        assert all(f"{name}: about" in said for name in STAGES) and "cost" in said
        card = (built / "README.md").read_text()
        assert all(part in card for part in ("simulated-teacher", "round", "shared names", "test_baselines.jsonl"))


@pytest.mark.slow(seconds=9)
def test_stages_run_in_turn_a_second_start_costs_nothing_and_the_frozen_test_set_stays(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", "a-key-of-the-teacher")
    with served_build(tmp_path) as (_, _, config):
        config.build.teacher.api_key_variable = "TEACHER_KEY"
        with pytest.raises(UserError, match="stage queries is to be run first"):
            run(config, ["trajectories"])
        assert spent(config).calls == 0
        for name in STAGES:
            run(config, [name])
        before, paid = files_of(tmp_path / "built"), spent(config)
        capsys.readouterr()
        run(config, list(STAGES))
        assert capsys.readouterr().out.count("done already") == len(STAGES) and spent(config) == paid
        for name in STAGES:  # as if each had been killed before its end
            (tmp_path / "runs" / "data-local" / "build" / f"{name}.json").unlink()
        run(config, list(STAGES))
        assert files_of(tmp_path / "built") == before and spent(config) == paid
        (tmp_path / "built" / "sft.jsonl").unlink()
        monkeypatch.delenv("TEACHER_KEY")
        with pytest.raises(UserError, match="set the environment variable TEACHER_KEY"):
            run(config, list(STAGES))
        run(config, ["split"])  # which wants no key
        config.build.teacher.api_key_variable, config.data.seed = None, 1
        with pytest.raises(UserError, match="test_queries.jsonl is frozen"):
            run(config, list(STAGES))
        assert files_of(tmp_path / "built") == before


@pytest.mark.slow(seconds=6)
def test_the_budget_holds_and_a_higher_one_goes_on(tmp_path):
    with served_build(tmp_path) as (_, _, config):
        config.judge.max_cost = 0.02
        with pytest.raises(RunStopped, match="judge.max_cost=0.02 is used up"):
            run(config, list(STAGES))
        stopped = spent(config)
        # calls that were under way still ended
        assert stopped.cost < 0.06 and not (tmp_path / "built" / "sft.jsonl").exists()
        with pytest.raises(RunStopped):
            run(config, list(STAGES))
        assert spent(config) == stopped
        config.judge.max_cost = None
        run(config, list(STAGES))
        assert spent(config).cost > stopped.cost and (tmp_path / "built" / "sft.jsonl").exists()


@pytest.mark.slow(seconds=4)
def test_two_languages_have_their_own_quotas(tmp_path):
    both, seeds = tmp_path / "both.jsonl", ROOT / "data" / "seeds"
    both.write_text("".join((seeds / f"travel_{name}.jsonl").read_text(encoding="utf-8") for name in ("en", "zh")))
    overrides = ("build.languages=[en, zh]", f"build.seeds={both}", "data.test_per_subtask=2")
    with served_build(tmp_path, *overrides, mistakes=0.0, inspector_error=0.0) as (_, _, config):
        queries = run(config, ["queries"]).split_of["test"]
    cells = {(query.subtask, query.language) for query in queries}
    assert cells == {(subtask, language) for subtask in SUBTASKS for language in ("en", "zh")}
    assert all(language_of(query.query) == query.language for query in queries)


@pytest.mark.slow(seconds=5)
def test_faults_of_the_server_change_no_split(tmp_path):
    drawn = []
    for name, faults in (("one", 0.0), ("two", 0.2)):
        (tmp_path / name).mkdir()
        sound = {"mistakes": 0.0, "inspector_error": 0.0, "kinds": ("rate_limit", "error_500", "cut", "prose")}
        with served_build(tmp_path / name, f"name={name}", faults=faults, **sound) as (_, _, config):
            run(config, ["queries"])
        drawn.append(len(list(read_jsonl(tmp_path / "runs" / name / "build" / "queries.jsonl"))))
    assert drawn[0] == drawn[1] > 0


def test_a_problem_of_no_turn_in_particular_hides_no_faulty_turn():
    for turns, first in (([2, 0], 2), ([0, 3, 2], 2), ([0, 0], 0), ([1], 1)):
        assert first_faulty_turn([Problem("content", turn, "wrong") for turn in turns]) == first


@pytest.mark.slow(seconds=5)
def test_what_was_rewritten_keeps_the_turns_before_the_fault(tmp_path):
    with served_build(tmp_path, mistakes=0.5, inspector_error=0.0) as (_, _, config):
        run(config, ["queries", "trajectories", "inspect"])
    build = tmp_path / "runs" / "data-local" / "build"
    first = {record["query_id"]: Trajectory.from_record(record) for record in read_jsonl(build / "trajectories.jsonl")}
    cases = [Inspected.from_record(record) for record in read_jsonl(build / "inspected.jsonl")]
    once = [case for case in cases if len(case.rounds) == 2]
    assert once
    for case in once:
        kept = case.trajectory.meta["rewritten_from"] - 1
        before, after = (read_turns(one.messages) for one in (first[case.query.query_id], case.trajectory))
        assert kept == min(problem.turn or len(before) for problem in case.rounds[0]) - 1
        assert after[:kept] == before[:kept]
    assert not any(message["role"] == "system" for case in cases for message in case.trajectory.messages)


@pytest.mark.slow(seconds=8)
def test_a_build_that_ends_while_it_writes_its_splits_goes_on(tmp_path, monkeypatch):
    write = stages.write_jsonl
    with served_build(tmp_path) as (_, _, config):
        run(config, [name for name in STAGES if name != "split"])
        for last in range(len(SPLIT_FILES)):
            left = iter([None] * last)

            def interrupted(path, records, left=left):
                if next(left, KeyboardInterrupt):
                    raise KeyboardInterrupt
                write(path, records)

            monkeypatch.setattr(stages, "write_jsonl", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run(config, ["split"])
        monkeypatch.setattr(stages, "write_jsonl", write)
        run(config, ["split"])
        test, baselines = make_domain(config.environment, config.data).read_test_set()
        assert len(test) == len(baselines) == 5 and all(files_of(tmp_path / "built").values())


OWN_STAND_IN = "judge.train={name: embedded, model: null, base_url: null}"


@pytest.mark.parametrize(("overrides", "said"), [
    (["build.seeds=null"], "build.seeds is not set"), (["build.seeds=nowhere.jsonl"], "nowhere.jsonl cannot be read"),
    (["build.teacher={name: embedded}"], "build.teacher names no model"),
    ([OWN_STAND_IN], "build.attempts=2: judge.train chooses among them"),
    ([OWN_STAND_IN, "build.attempts=1"], "data.baseline_attempts=3: judge.train chooses among them"),
    (["build.languages=[zh]"], "a seed is in en, and build.languages is zh"),
    (["build.languages=[zh]", f"build.seeds={ROOT}/data/seeds/travel_zh.jsonl",
      f"build.test_seeds={ROOT}/data/seeds/travel_en.jsonl"], "travel_en.jsonl: a seed is in en"),
    (["build.subtasks=[Search]"], "line 1: the subtask Direction is none of Search"),
])  # fmt: skip
def test_what_cannot_work_is_one_line_before_any_call(tmp_path, overrides, said):
    with served_build(tmp_path, *overrides) as (_, _, config):
        with pytest.raises(UserError) as refused:
            run(config, list(STAGES))
        assert said in str(refused.value) and "\n" not in str(refused.value)


def test_data_of_others_is_left_alone(tmp_path):
    with served_build(tmp_path) as (_, _, config):
        (tmp_path / "built").mkdir()
        (tmp_path / "built" / "rl_queries.jsonl").write_text("{}\n")
        with pytest.raises(UserError, match="holds data that was not built here"):
            run(config, list(STAGES))


@pytest.mark.slow(seconds=25)
def test_killed_at_any_moment_a_build_loses_no_paid_reply(tmp_path):
    """The server counts what it replied; the store has it all but what was on its way when a process died."""
    replies, rng, kills = [], random.Random(0), 0
    log = {"delay_s": 0.01, "log": lambda line: replies.append(line["text"] is not None)}
    with served_build(tmp_path, **log) as (_, path, config):
        overrides = [f"data.folder={tmp_path}/built", f"judge.store={config.judge.store}", "judge.concurrency=4"]
        command = [sys.executable, str(ROOT / "data" / "build.py"), "--config", str(path)]
        command += [word for override in (*SMALL, *overrides) for word in ("--set", override)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        for seconds in (6.5, 8.5):
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            process = subprocess.Popen(command, env=environment, **quiet)
            time.sleep(seconds + rng.random())
            kills += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait()
        subprocess.run(command, env=environment, check=True, timeout=300)
        kept = sqlite3.connect(config.judge.store).execute("SELECT count(*) FROM replies").fetchone()[0]
        # four calls are under way at a kill; a loaded machine sends a call again after its timeout
        assert kills and 0 <= sum(replies) - kept <= 8 * kills
        assert json.loads((tmp_path / "built" / "build.json").read_text()).keys() == set(SPLIT_FILES)
