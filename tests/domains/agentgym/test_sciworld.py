"""SciWorld: items are deterministic, the score is the game's, and no process outlives its environment."""

import asyncio
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter

import psutil
import pytest
from scripts import is_running, wait_until
from worlds import played

from arenarl.config.schema import DataConfig, EnvironmentConfig
from arenarl.domains.agentgym import sciworld, world
from arenarl.domains.agentgym.sciworld import COLUMNS, ITEMS, TASKS, Game, SciWorldDomain, SciWorldEnvironment, place_of
from arenarl.judges.judge import rubric_of
from arenarl.rollout.environment import ToolError
from arenarl.system.errors import UserError
from arenarl.trajectory import Query

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="no Java")
EASY = 3491  # find a non-living thing: seven actions
FAR = played("open door to hallway", "go to hallway")


def query_of(item):
    return Query(f"sciworld_{item}", "sciworld", "", "en", "", {"item": item})


def started():
    return SciWorldEnvironment.from_config(EnvironmentConfig(name="sciworld"), "en")


def domain_with(**data):
    return SciWorldDomain(EnvironmentConfig(name="sciworld"), DataConfig(sft_size=1, **data))


@pytest.fixture(scope="module")
def environment():
    environment = started()
    yield environment
    environment.close()


@pytest.fixture(scope="module")
def domain():
    return domain_with()


def take(environment, item, actions):
    """The steps of an item's actions."""

    async def run():
        await environment.reset(query_of(item))
        return [await environment.call("act", {"action": action}) for action in actions]

    return asyncio.run(run())


def children():
    return {child.pid for child in psutil.Process().children()}


@needs_java
def test_the_games_own_solution_solves_an_easy_item(environment, domain):
    query = domain.query({"item": EASY})
    trajectory = domain.solve(query, environment, random.Random(0), skill=1)
    assert (trajectory.stop_reason, environment.score(), len(trajectory.messages)) == ("done", 1.0, 15)
    assert trajectory.meta["reward"] == pytest.approx(1.0)
    assert "\n\nYour task is to find a(n) non-living thing." in trajectory.messages[0]["content"]
    truth = domain.examine(query, trajectory.messages)
    assert truth.figures() == {"success": 100, "subgoals": 100} and truth.passes() == {"success": True}
    assert truth.dimensions() == dict.fromkeys(rubric_of(query).names, 10)


@needs_java
def test_half_a_solution_slips_and_a_wrong_focus_score_lower(environment, domain):
    query = domain.query({"item": EASY})
    whole = domain.solve(query, environment, random.Random(0), skill=1).messages
    half = domain.examine(query, whole[:5])  # the query and two turns
    assert 0 < half.reached == half.kept < 100 and not half.passes()["success"]
    assert domain.examine(query, whole[:1]).figures() == {"success": 0, "subgoals": 0}
    clumsy = [domain.solve(query, environment, random.Random(seed), skill=0).messages for seed in range(4)]
    truths = [domain.examine(query, messages) for messages in clumsy]
    assert {truth.reached for truth in truths} == {100} and min(truth.useful / truth.actions for truth in truths) < 1
    asyncio.run(environment.reset(query_of(3761)))  # find a plant
    wrong = [*environment.world._solution(3761)[:4], "focus on agent"]
    assert [step.done for step in take(environment, 3761, wrong)] == [False] * 4 + [True] and environment.score() == -1
    lost = domain.examine(query_of(3761), played(*wrong))
    assert lost.reached > 0 == lost.kept and not lost.success


@needs_java
def test_an_unknown_action_an_invalid_call_and_a_hundred_moves(environment):
    unknown, blank, looked = take(environment, EASY, ["fly to the moon", "  ", "look around"])
    assert unknown.observation == blank.observation == "No known action matches that input." and not unknown.done
    assert "This room is called the bedroom." in looked.observation
    for name, arguments in (("act", {}), ("jump", {"action": "look around"}), ("act", {"action": "look " * 100})):
        with pytest.raises(ToolError):
            asyncio.run(environment.call(name, arguments))
    assert [step.done for step in take(environment, 21, ["wait"] * 10)] == [False] * 9 + [True]


@pytest.mark.slow(seconds=4)
@needs_java
def test_the_sciworld_package_has_the_tasks_and_variations_of_our_table(environment):
    server = environment.world.server
    for task in TASKS:
        server.load(task.name, 0, "", False)
        assert server.getTaskMaxVariations(task.name) == task.variations, task.name
        assert list(server.getVariationsTrain()) == list(task.part("train")), task.name
        assert list(server.getVariationsTest()) == list(task.part("test")), task.name


@pytest.mark.slow(seconds=8)
@needs_java
def test_a_used_and_a_new_game_show_the_same_observations_at_once(environment):
    chosen, other = [525, 4160], started()  # thermometer and paints, the first to show chance
    actions = {}
    for item in chosen:
        environment.world.reset(query_of(item))
        actions[item] = environment.world._solution(item)[:12]

    async def play(environment, order):
        observations = {}
        for item in order:
            observations[item] = [await environment.reset(query_of(item))]
            observations[item] += [await environment.call("act", {"action": action}) for action in actions[item]]
        return observations

    async def play_both():
        return await asyncio.gather(play(environment, chosen), play(other, chosen[::-1]))

    first, second = asyncio.run(play_both())
    assert first == second
    process = other.world.process.pid
    other.close()
    assert not psutil.pid_exists(process)


@pytest.mark.slow(seconds=6)
@needs_java
def test_a_killed_game_raises_and_leaves_no_process_and_the_truth_replays_in_a_new_one():
    from py4j.protocol import Py4JError

    before, environment, domain = children(), started(), domain_with()
    take(environment, EASY, ["look around"])
    os.kill(environment.world.process.pid, signal.SIGKILL)
    with pytest.raises(Py4JError):
        asyncio.run(environment.call("act", {"action": "look around"}))
    environment.close()
    environment.close()
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(environment.reset(query_of(EASY)))
    assert children() == before
    played_once, game = domain.examine(query_of(EASY), FAR), domain._game
    os.kill(game.process.pid, signal.SIGKILL)
    assert domain.examine(query_of(EASY), FAR) == played_once
    assert not psutil.pid_exists(game.process.pid)


@pytest.mark.slow(seconds=5)
@needs_java
def test_a_game_ends_when_the_process_that_started_it_is_killed():
    code = "from arenarl.domains.agentgym.sciworld import Game; print(Game().process.pid, flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes, text=True) as starter:
        game = int(starter.stdout.readline())
        starter.kill()
    wait_until(lambda: not is_running(game))


def test_items_are_variations_counted_through_the_tasks():
    assert ITEMS == 4639 and len(TASKS) == 23 and {task.subtask for task in TASKS} > set(COLUMNS)
    assert [place_of(item)[1] for item in (0, 29, 30, ITEMS - 1)] == [0, 29, 0, 9]
    for wrong in (-1, ITEMS):
        with pytest.raises(UserError, match=f"sciworld_{wrong} is not a valid item; .*sciworld_0 to sciworld_4638"):
            place_of(wrong)


def test_test_training_and_practice_items_are_disjoint_parts_of_the_game(domain):
    test, train = domain.items("test"), domain.items("train")
    practice = [constraints["item"] for constraints in itertools.islice(domain.practice(), 500)]
    assert Counter(map(domain.column, test)) == COLUMNS and len(train) == 2312
    assert all(place_of(item)[1] < place_of(item)[0].train for item in train)
    assert len({*test, *train, *practice}) == 200 + 2312 + 500


def official(domain):
    """Lists with the official sizes and columns that share the first 61 items."""
    columns = {column: [item for item in range(ITEMS) if domain.column(item) == column] for column in COLUMNS}
    test = [item for column, count in COLUMNS.items() for item in columns[column][:count]]
    return test, [*test[:61], *(item for item in range(ITEMS) if item not in test)][: sciworld.TRAIN_COUNT]


def write_lists(folder, test, train):
    for path, listed in (("eval/sciworld_test.json", test), ("sciworld_train.json", train)):
        (folder / path).parent.mkdir(exist_ok=True, parents=True)
        (folder / path).write_text(json.dumps([{"item_id": f"sciworld_{item}"} for item in listed]))


@pytest.mark.slow(seconds=4)
@needs_java
def test_success_unseen_leaves_out_test_items_of_the_official_training_list(tmp_path, domain):
    test, train = official(domain)
    write_lists(tmp_path, test, train)
    listed = domain_with(items=str(tmp_path))
    assert (listed.items("test"), listed.items("train")) == (tuple(test), tuple(train))
    examined = [listed.examine(query_of(item), []).figures() for item in (test[60], test[61])]
    seen, unseen = map(set, examined)
    assert seen == {"success", "subgoals"} and unseen == seen | {"success_unseen"}


def test_the_leak_of_the_official_lists_is_logged_and_accepted(tmp_path, domain, capsys):
    write_lists(tmp_path, *official(domain))
    next(domain_with(items=str(tmp_path), test_per_subtask=83, rl_size=sciworld.TRAIN_COUNT).splits(None))
    assert capsys.readouterr().out == "200 test, 2120 RL and 1 SFT items: test and RL share 61\n"


def test_too_large_an_sft_size_is_refused(domain):
    with pytest.raises(UserError, match="data.sft_size=1: SciWorld has only 1156 items outside training and tests"):
        list(domain.practice())


def test_missing_java_or_another_package_version_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="SciWorld needs Java"):
        Game.check_packages()
    monkeypatch.undo()
    sciworld.java_fault.cache_clear()
    (tmp_path / "java").write_text("#!/bin/sh\necho 'no libjava.so' >&2\nexit 1\n")
    (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(UserError, match="the java on the PATH does not run: no libjava.so"):
        Game.check_packages()
    sciworld.java_fault.cache_clear()
    monkeypatch.setattr(world, "version", lambda name: "1.2.2")
    monkeypatch.setattr(world, "need_package", world.need_package.__wrapped__)
    with pytest.raises(UserError, match="scienceworld is 1.2.2, not 1.2.3"):
        Game.check_packages()
