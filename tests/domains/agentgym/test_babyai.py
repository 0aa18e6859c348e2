"""BabyAI: minigrid's levels as they are, the text says what the grid holds, an expert that meets every mission,
a truth by replay."""

import hashlib
import random
import re
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parts import domain_of

from arenarl.config.schema import Config, DataConfig, EnvironmentConfig
from arenarl.domains.agentgym import babyai_game as game
from arenarl.domains.agentgym.babyai import OFFICIAL_LEVELS, BabyAIEnvironment
from arenarl.domains.agentgym.babyai_mission import phases
from arenarl.domains.rubrics import domain_rubric

CONFIG = Config(environment=EnvironmentConfig(name="babyai", domain="babyai"), data=DataConfig(language="en"))
DOMAIN = domain_of(CONFIG)
BALL = 45 * 40 + 2 - 1  # a red ball among distractors
OPEN_DOOR = 58 * 40 + 30 - 1  # open a blue door


def started(item):
    world = BabyAIEnvironment.from_config(CONFIG.environment, "en")
    return world, world.reset(DOMAIN.query({"item": item}))


def act(world, action):
    return world.call("act", {"action": action})


def actions_in(observation):
    return re.findall(r'"([^"]+)"', observation.rsplit("\nAvailable actions: ", 1)[1])


def acted(actions):
    calls = ({"type": "function", "function": {"name": "act", "arguments": {"action": action}}} for action in actions)
    return [{"role": "assistant", "reasoning_content": "", "content": "", "tool_calls": [call]} for call in calls]


def test_levels_are_those_of_the_package_with_the_gymnasium_that_agentgym_used():
    """Of two items a level: mission, grid and the agent's pose, hashed;
    recorded from minigrid 2.3.1 under gymnasium 0.29.1."""
    facts = []
    for level in OFFICIAL_LEVELS:
        for seed in (45, 46):
            one, _ = game.start_level(seed * 40 + level - 1)
            facts.append(f"{one.mission}{one.grid.encode().tobytes().hex()}{game.pose_of(one)}")
    assert hashlib.sha256("".join(facts).encode()).hexdigest()[:16] == "80d217a0bf957185"
    assert len(game.LEVELS) == 40 and all(game.start_level(index)[0].mission for index in range(40))


def test_practice_leaves_out_what_begins_as_a_test_or_an_rl_item(monkeypatch):
    # the smallest room under seed 1160, and under 45: a test item
    assert game.opening(46403)[1] == game.opening(1803)[1]
    monkeypatch.setattr("arenarl.domains.agentgym.babyai.PRACTICE", 1160)
    domain = domain_of(Config(environment=CONFIG.environment, data=DataConfig(language="en", subtasks=["GoTo"])))
    practice = [one["item"] for one in islice(domain.practice(), 40)]
    assert practice[:4] == [46400, 46401, 46402, 46404]
    taken = {game.opening(item)[1] for split in ("test", "train") for item in domain.items(split)}
    assert taken.isdisjoint(game.opening(item)[1] for item in practice)


def test_what_the_text_says_is_where_the_grid_has_it():
    for item in DOMAIN.items("test"):
        world, rng = started(item)[0], random.Random(item)
        for _ in range(6):
            level, view = world._level, world._view
            for thing in view.things:
                there = level.grid.get(*thing.cell)
                words = [there.color, there.type]
                if there.type == "door":
                    words.insert(1, "locked" if there.is_locked else "open" if there.is_open else "closed")
                assert thing.name == " ".join(words)
                assert f" {thing.ahead} ahead" in view.describe() or thing.kind == "wall"
            if act(world, rng.choice(list(view.actions))).done:
                break


def test_an_action_leads_where_it_says():
    for item in DOMAIN.items("test")[:55]:
        world, seen = started(item)
        for action in actions_in(seen):
            if found := re.fullmatch(r"(?:go to|pickup) (.*) \d+", action):
                world.reset(DOMAIN.query({"item": item}))
                act(world, action)
                level = world._level
                ahead = level.grid.get(*level.front_pos)
                held = level.carrying if action.startswith("pickup") else ahead
                assert {held.color, held.type} <= set(found.group(1).split())


def test_a_mission_goes_as_the_text_has_it():
    world, seen = started(BALL)
    assert seen.startswith("Your goal: go to the red ball\nYou see: ") and "You carry nothing." in seen
    assert actions_in(seen)[:2] == ["turn left", "turn right"] and actions_in(seen)[-1] == "check available actions"
    refused = act(world, "go to purple dragon 1")
    assert refused.observation.startswith("There is no such action here.\nAvailable actions: [") and world.is_refused
    assert not refused.done and refused.reward == 0
    assert act(world, "drop").observation.startswith("You carry nothing.\n") and world.is_refused
    told = act(world, "Check available actions").observation
    assert told.startswith("You can: turn left, turn right, ") and not world.is_refused
    for _ in range(20):
        step = act(world, world.best()[1])
        if step.done:
            break
    assert "The goal is met." in step.observation and 0.5 < step.reward < 1


def test_to_toggle_and_walk_on_does_not_open_a_door_as_a_mission_wants_it():
    """As in AgentGym: of the game's own actions that an action is, the last one's reward counts."""
    world, _ = started(OPEN_DOOR)
    assert [type(one).__name__ for one in phases(world._level.instrs)[0]] == ["OpenInstr"]
    plan = []
    while "toggle" not in plan:
        plan.append(world.best()[1])
        step = act(world, plan[-1])
    assert step.done
    query = DOMAIN.query({"item": OPEN_DOOR})
    door = next(action for action in plan if "door" in action).removeprefix("go to ")
    walked = DOMAIN.examine(query, acted([f"toggle and go through {door}"]))
    assert not walked.success and walked.reached < walked.needed
    assert DOMAIN.examine(query, acted(plan)).success


def test_to_wait_where_a_goal_was_met_too_late_is_not_worth_more_than_to_meet_it():
    world, _ = started(1803)
    late = [*["turn left"] * 8, "go to red box 1"]
    met, *waited = [act(world, action) for action in [*late, *["check available actions"] * 11]][8:]
    assert met.reward == 0.4375 and not met.done and "The goal is met." in met.observation
    assert {step.reward for step in waited} == {0}
    assert act(world, "turn left").reward == -0.4375  # a trajectory is worth what its last action is


@pytest.mark.parametrize("skill", [1.0, 0.2])
def test_the_expert_meets_the_missions_and_the_truth_agrees(skill):
    queries = [DOMAIN.query({"item": item}) for item in DOMAIN.items("test")]
    solved = [DOMAIN.solve(query, BabyAIEnvironment(), random.Random(query.query_id), skill) for query in queries]
    truths = [DOMAIN.examine(query, trajectory.messages) for query, trajectory in zip(queries, solved, strict=True)]
    assert [truth.success for truth in truths] == [trajectory.stop_reason == "done" for trajectory in solved]
    for trajectory, truth in zip(solved, truths, strict=True):
        assert trajectory.valid and (trajectory.meta["reward"] > 0.5) >= truth.success
    assert sum(truth.success for truth in truths) >= (89 if skill == 1 else 70)
    assert tuple(truths[0].dimensions()) == domain_rubric("babyai", "en").names


def test_subgoals_count_what_was_found_and_faced_without_success():
    query = DOMAIN.query({"item": OPEN_DOOR})
    nothing = DOMAIN.examine(query, acted(["turn left"] * 4))
    assert not nothing.success and (nothing.useful, nothing.reached, nothing.needed) == (3, 0, 2)
    door = started(OPEN_DOOR)[0].best()[1]
    faced = DOMAIN.examine(query, acted([door, "fly"]))
    assert not faced.success and (faced.reached, faced.actions, faced.useful, faced.refused) == (1, 2, 1, 1)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(OFFICIAL_LEVELS), st.integers(0, 2**32), st.lists(st.text(max_size=8), max_size=3))
def test_whatever_is_done_a_replay_finds_the_same(level, choices, words):
    query, rng = DOMAIN.query({"item": choices % 100 * 40 + level - 1}), random.Random(choices)
    world, actions = BabyAIEnvironment(), list(words)
    world.reset(query)
    for _ in range(12):
        actions.append(rng.choice([*world._view.actions, *world._view.refusals]))
        if act(world, actions[-1]).done:
            break
    truth = DOMAIN.examine(query, acted(actions))
    assert truth == DOMAIN.examine(query, acted(actions))
    assert 0 <= truth.kept <= truth.reached <= truth.needed
    assert truth.useful + truth.refused <= truth.actions == len(actions)
    assert truth.reached == truth.needed or not truth.success
