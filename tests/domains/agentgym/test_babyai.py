"""BabyAI: minigrid's unchanged levels, observations that match the grid, the expert, the truth by replay."""

import hashlib
import random
import re
from itertools import islice

import pytest
from parts import world_domain
from worlds import played

from arenarl.domains.agentgym import babyai_game as game
from arenarl.domains.agentgym.babyai import OFFICIAL_LEVELS, BabyAIEnvironment
from arenarl.domains.agentgym.babyai_mission import phases
from arenarl.domains.rubrics import domain_rubric

DOMAIN = world_domain("babyai")
BALL = 45 * 40 + 2 - 1  # a red ball among distractors
OPEN_DOOR = 58 * 40 + 30 - 1  # open a blue door


def started(item):
    world = BabyAIEnvironment.from_config(DOMAIN.environment, "en")
    return world, world.reset(DOMAIN.query({"item": item}))


def act(world, action):
    return world.call("act", {"action": action})


def actions_in(observation):
    return re.findall(r'"([^"]+)"', observation.rsplit("\nAvailable actions: ", 1)[1])


def test_levels_equal_those_of_the_gymnasium_that_agentgym_used():
    """Mission, grid and pose of two items a level have the hash recorded from minigrid 2.3.1 with gymnasium 0.29.1."""
    levels = [game.start_level(seed * 40 + number - 1)[0] for number in OFFICIAL_LEVELS for seed in (45, 46)]
    facts = [f"{level.mission}{level.grid.encode().tobytes().hex()}{game.pose_of(level)}" for level in levels]
    assert hashlib.sha256("".join(facts).encode()).hexdigest()[:16] == "80d217a0bf957185"
    assert len(game.LEVELS) == 40 and all(game.start_level(index)[0].mission for index in range(40))


def test_practice_leaves_out_items_with_the_start_of_a_test_or_an_rl_item(monkeypatch):
    # the smallest room has the same start with seed 1160 and with seed 45, a test item
    assert game.opening(46403)[1] == game.opening(1803)[1]
    monkeypatch.setattr("arenarl.domains.agentgym.babyai.PRACTICE", 1160)
    domain = world_domain("babyai", subtasks=["GoTo"])
    practice = [constraints["item"] for constraints in islice(domain.practice(), 40)]
    assert practice[:4] == [46400, 46401, 46402, 46404]
    used = {game.opening(item)[1] for split in ("test", "train") for item in domain.items(split)}
    assert used.isdisjoint(game.opening(item)[1] for item in practice)


def test_the_text_matches_the_grid():
    for item in DOMAIN.items("test"):
        world, rng = started(item)[0], random.Random(item)
        for _ in range(6):
            level, view = world._level, world._view
            for thing in view.things:
                cell = level.grid.get(*thing.cell)
                words = [cell.color, cell.type]
                if cell.type == "door":
                    words.insert(1, "locked" if cell.is_locked else "open" if cell.is_open else "closed")
                assert thing.name == " ".join(words)
                assert f" {thing.ahead} ahead" in view.describe() or thing.kind == "wall"
            if act(world, rng.choice(list(view.actions))).done:
                break


def test_an_action_leads_where_it_says():
    for item in DOMAIN.items("test")[:55]:
        world, seen = started(item)
        for action in actions_in(seen):
            if match := re.fullmatch(r"(?:go to|pickup) (.*) \d+", action):
                world.reset(DOMAIN.query({"item": item}))
                act(world, action)
                level = world._level
                thing = level.carrying if action.startswith("pickup") else level.grid.get(*level.front_pos)
                assert {thing.color, thing.type} <= set(match.group(1).split())


def test_a_mission_is_played_to_its_goal():
    world, seen = started(BALL)
    assert seen.startswith("Your goal: go to the red ball\nYou see: ") and "You carry nothing." in seen
    assert actions_in(seen)[:2] == ["turn left", "turn right"] and actions_in(seen)[-1] == "check available actions"
    refused = act(world, "go to purple dragon 1")
    assert refused.observation.startswith("There is no such action here.\nAvailable actions: [") and world.is_refused
    assert not refused.done and refused.reward == 0
    assert act(world, "drop").observation.startswith("You carry nothing.\n") and world.is_refused
    listed = act(world, "Check available actions").observation
    assert listed.startswith("You can: turn left, turn right, ") and not world.is_refused
    step = refused
    while not step.done:
        step = act(world, world.best_action()[1])
    assert "The goal is met." in step.observation and 0.5 < step.reward < 1


def test_equal_signatures_have_equal_futures():
    """Credit per turn compares turns in equal states. Item 247 is "go to the green box and go to the ball": one way to
    its second room passes the box, on which the count of open subgoals does not depend."""
    ways = (
        ["go to yellow closed door 1", "turn right", "toggle and go through yellow closed door 2"],
        ["turn left", "toggle and go through yellow closed door 1"],
    )
    worlds = [started(247)[0] for _ in ways]
    for world, way in zip(worlds, ways, strict=True):
        for action in way:
            act(world, action)
    one, other = worlds
    assert (one.state, one.subgoals_left) == (other.state, other.subgoals_left) and one.signature != other.signature
    for item in (247, 47, 87):
        effects = {}
        for walk in range(12):
            rng, (world, _) = random.Random(walk), started(item)
            for _ in range(10):
                names = [name for name in world._view.actions if name.startswith(("go to", "turn", "toggle and"))]
                key, step = (world.signature, name := rng.choice(names)), act(world, name)
                effect = step.observation, step.done, world.signature
                assert effects.setdefault(key, effect) == effect
                if step.done:
                    break


def test_toggling_and_walking_through_does_not_count_as_opening_a_door_but_facing_it_as_a_subgoal():
    """As in AgentGym: only the reward of an action's last game action counts."""
    world, _ = started(OPEN_DOOR)
    query, door = DOMAIN.query({"item": OPEN_DOOR}), world.best_action()[1]
    assert [type(instruction).__name__ for instruction in phases(world._level.instrs)[0]] == ["OpenInstr"]
    plan = []
    while "toggle" not in plan:
        plan.append(world.best_action()[1])
        step = act(world, plan[-1])
    assert step.done and DOMAIN.examine(query, played(*plan)).success
    walked = DOMAIN.examine(query, played(f"toggle and go through {door.removeprefix('go to ')}"))
    assert not walked.success and walked.reached < walked.needed
    nothing = DOMAIN.examine(query, played(*["turn left"] * 4))
    assert not nothing.success and (nothing.useful, nothing.reached, nothing.needed) == (3, 0, 2)
    faced = DOMAIN.examine(query, played(door, "fly"))
    assert not faced.success and (faced.reached, faced.actions, faced.useful, faced.refused) == (1, 2, 1, 1)


def test_waiting_after_a_late_goal_earns_nothing_and_moving_on_loses_it():
    world, _ = started(1803)
    late = [*["turn left"] * 8, "go to red box 1"]
    met, *waited = [act(world, action) for action in [*late, *["check available actions"] * 11]][8:]
    assert met.reward == 0.4375 and not met.done and "The goal is met." in met.observation
    assert {step.reward for step in waited} == {0}
    assert act(world, "turn left").reward == -0.4375  # a trajectory's reward is that of its last action


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
