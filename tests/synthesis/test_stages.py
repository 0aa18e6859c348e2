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


@pytest.mark.slow(seconds=5)
def test_a_second_start_costs_nothing_and_changes_nothing(tmp_path, capsys):
    with served_build(tmp_path) as (_, _, config):
        run(config, list(STAGES))
        before, paid = files_of(tmp_path / "built"), spent(config)
        run(config, list(STAGES))
        assert capsys.readouterr().out.count("done already") == len(STAGES) and spent(config) == paid
        for name in STAGES:  # as if each had been killed before its end
            (tmp_path / "runs" / "data-local" / "build" / f"{name}.json").unlink()
        run(config, list(STAGES))
        assert files_of(tmp_path / "built") == before and spent(config) == paid


@pytest.mark.slow(seconds=5)
def test_a_stage_at_a_time_and_none_before_its_turn(tmp_path):
    with served_build(tmp_path) as (_, _, config):
        with pytest.raises(UserError, match="stage queries is to be run first"):
            run(config, ["trajectories"])
        assert spent(config).calls == 0
        for name in STAGES:
            run(config, [name])
        whole = files_of(tmp_path / "built")
        assert all(whole.values())


@pytest.mark.slow(seconds=5)
def test_splits_alone_want_no_key(tmp_path, monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", "a-key-of-the-teacher")
    with served_build(tmp_path) as (_, _, config):
        config.build.teacher.api_key_variable = "TEACHER_KEY"
        run(config, list(STAGES))
        before = files_of(tmp_path / "built")
        (tmp_path / "built" / "sft.jsonl").unlink()
        monkeypatch.delenv("TEACHER_KEY")
        with pytest.raises(UserError, match="set the environment variable TEACHER_KEY"):
            run(config, list(STAGES))
        run(config, ["split"])
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


@pytest.mark.slow(seconds=8)
def test_two_languages_have_their_own_quotas(tmp_path):
    both = tmp_path / "both.jsonl"
    both.write_text(
        "".join(
            (ROOT / "data" / "seeds" / f"travel_{language}.jsonl").read_text(encoding="utf-8")
            for language in ("en", "zh")
        )
    )
    overrides = (
        "build.languages=[en, zh]",
        f"build.seeds={both}",
        "data.test_per_subtask=2",
        "data.baseline_attempts=1",
    )
    with served_build(tmp_path, *overrides, mistakes=0.0, inspector_error=0.0) as (_, _, config):
        run(config, list(STAGES))
    queries = read_queries(tmp_path / "built" / "test_queries.jsonl")
    assert {(query.subtask, query.language) for query in queries} == {
        (subtask, language) for subtask in SUBTASKS for language in ("en", "zh")
    }
    assert all(language_of(query.query) == query.language for query in queries)


@pytest.mark.slow(seconds=8)
def test_faults_of_the_server_change_no_split(tmp_path):
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    with served_build(tmp_path / "one", "name=one", mistakes=0.0, inspector_error=0.0) as (_, _, config):
        run(config, list(STAGES))
    kinds = ("rate_limit", "error_500", "cut", "prose")
    with served_build(tmp_path / "two", "name=two", mistakes=0.0, inspector_error=0.0, faults=0.2, kinds=kinds) as (
        _,
        _,
        config,
    ):
        run(config, ["queries"])
    whole, disturbed = (
        list(read_jsonl(tmp_path / "runs" / name / "build" / "queries.jsonl")) for name in ("one", "two")
    )
    assert len(whole) == len(disturbed) > 0


@pytest.mark.slow(seconds=5)
def test_inspection_without_mistakes_passes_all_as_they_are(tmp_path):
    with served_build(tmp_path, mistakes=0.0, inspector_error=0.0) as (_, _, config):
        run(config, ["queries", "trajectories", "inspect"])
    cases = [
        Inspected.from_record(record)
        for record in read_jsonl(tmp_path / "runs" / "data-local" / "build" / "inspected.jsonl")
    ]
    faults = [
        problem for case in cases for found in case.rounds for problem in found if problem.rule not in ("constraints",)
    ]
    assert cases and not faults


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
        before, after = (
            read_turns(trajectory.messages) for trajectory in (first[case.query.query_id], case.trajectory)
        )
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


@pytest.mark.slow(seconds=8)
def test_the_frozen_test_set_is_not_replaced(tmp_path):
    with served_build(tmp_path) as (_, path, config):
        run(config, list(STAGES))
        before = files_of(tmp_path / "built")
        config.data.seed = 1
        with pytest.raises(UserError, match="test_queries.jsonl is frozen"):
            run(config, list(STAGES))
        assert files_of(tmp_path / "built") == before


OWN_STAND_IN = "judge.train={name: embedded, model: null, base_url: null}"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("build.seeds=null", "build.seeds is not set"),
        ("build.seeds=nowhere.jsonl", "nowhere.jsonl cannot be read"),
        ("build.teacher={name: embedded}", "build.teacher names no model"),
        (OWN_STAND_IN, "build.attempts=2: judge.train chooses among them"),
        ([OWN_STAND_IN, "build.attempts=1"], "data.baseline_attempts=3: judge.train chooses among them"),
        ("build.languages=[zh]", "a seed is in en, and build.languages is zh"),
        (
            [
                "build.languages=[zh]",
                f"build.seeds={ROOT}/data/seeds/travel_zh.jsonl",
                f"build.test_seeds={ROOT}/data/seeds/travel_en.jsonl",
            ],
            "travel_en.jsonl: a seed is in en",
        ),
        ("build.subtasks=[Search]", "line 1: the subtask Direction is none of Search"),
    ],
)
def test_what_cannot_work_is_one_line_before_any_call(tmp_path, override, said):
    with served_build(tmp_path, *([override] if isinstance(override, str) else override)) as (_, _, config):
        with pytest.raises(UserError) as refused:
            run(config, list(STAGES))
        assert said in str(refused.value) and "\n" not in str(refused.value)


def test_data_of_others_is_left_alone(tmp_path):
    with served_build(tmp_path) as (_, _, config):
        (tmp_path / "built").mkdir()
        (tmp_path / "built" / "rl_queries.jsonl").write_text("{}\n")
        with pytest.raises(UserError, match="holds data that was not built here"):
            run(config, list(STAGES))


@pytest.mark.slow(seconds=40)
def test_killed_at_any_moment_a_build_loses_no_paid_reply(tmp_path):
    """The server counts what it replied; the store has it all but what was on its way when a process died."""
    replies = []
    with served_build(tmp_path, delay_s=0.01, log=lambda line: replies.append(line["text"] is not None)) as (
        _,
        path,
        config,
    ):
        command = [sys.executable, str(ROOT / "data" / "build.py"), "--config", str(path)]
        overrides = [
            *SMALL,
            f"data.folder={tmp_path}/built",
            f"judge.store={config.judge.store}",
            "judge.concurrency=4",
        ]
        command += [word for override in overrides for word in ("--set", override)]
        rng, kills = random.Random(0), 0
        for seconds in (6.5, 7.5, 8.5, 10.0):
            process = subprocess.Popen(
                command,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            time.sleep(seconds + rng.random())
            kills += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait()
        subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, timeout=300)
        kept = sqlite3.connect(config.judge.store).execute("SELECT count(*) FROM replies").fetchone()[0]
        assert kills and 0 <= sum(replies) - kept <= 4 * kills
        assert json.loads((tmp_path / "built" / "build.json").read_text()).keys() == set(SPLIT_FILES)
