"""AgentGym-RL's worlds in the rollout engine: fifty at once, both forms of an action, and the truth."""

import random

import pytest
from parts import world_domain
from policies import Scripted, call

from arenarl.config.schema import RolloutConfig
from arenarl.domains.environments import environment_maker
from arenarl.rollout.engine import NO_ACTION, ONE_ACTION, Attempt, RolloutEngine
from arenarl.trajectory import read_turns

LIMITS = RolloutConfig(max_turns=20, max_tokens=16384, max_turn_tokens=256)


def actions_of(trajectory):
    return [turn.tool_calls[0].arguments["action"] for turn in read_turns(trajectory.messages)]


def roll_out(tokenizer, environment, scripts, queries, **options):
    """Roll out scripted policies; `scripts` maps a user message to turns."""
    make = environment_maker(environment, "en")
    engine = RolloutEngine(Scripted(tokenizer, scripts), tokenizer, make, LIMITS, schemas_in_prompt=False, **options)
    return engine.roll_out([Attempt(query, 0.0, 1) for query in queries])


@pytest.mark.parametrize("name", ["textcraft", "babyai"])
@pytest.mark.parametrize("form", ["tool_calls", "text"])
def test_fifty_rollouts_at_once_repeat_the_experts(name, form, tokenizer):
    world = world_domain(name)
    queries = [world.query({"item": item}) for item in world.items("train")[::8]]
    experts = {}  # keyed by the first message, because some items start alike
    for query in queries:
        trajectory = world.solve(query, world.world(), random.Random(query.query_id), 0.6)
        experts[trajectory.messages[0]["content"]] = query, trajectory
    experts = dict(list(experts.items())[:50])
    forms = {"tool_calls": lambda action: call("act", action=action), "text": "Thought:\nhm\n\nAction:\n{}".format}
    scripts = {text: list(map(forms[form], actions_of(expert))) for text, (_, expert) in experts.items()}
    rolled = roll_out(tokenizer, world.environment, scripts, [query for query, _ in experts.values()], actions=form)
    for trajectory, (query, expert) in zip(rolled, experts.values(), strict=True):
        seen, expected = ([turn.observations for turn in read_turns(each.messages)] for each in (trajectory, expert))
        assert seen == expected and trajectory.stop_reason == expert.stop_reason
        assert trajectory.meta["reward"] == pytest.approx(expert.meta["reward"])
        assert world.examine(query, trajectory.messages) == world.examine(query, expert.messages)


def test_turns_without_exactly_one_action_count_as_refused(tokenizer):
    world = world_domain("textcraft")
    query = world.query({"item": 0})
    expert = world.solve(query, world.world(), random.Random(0), 1.0)
    turns = [call("act", action=action) for action in actions_of(expert)]
    twice = turns[0] + "\n" + turns[0].partition("\n\n")[2]
    (trajectory,) = roll_out(tokenizer, world.environment, {"Craft": ["nothing", twice, *turns]}, [query])
    assert [turn.observations for turn in read_turns(trajectory.messages)][:2] == [[NO_ACTION], [ONE_ACTION] * 2]
    truth = world.examine(query, trajectory.messages)
    assert trajectory.stop_reason == "done" and truth.success
    assert (truth.actions, truth.useful, truth.refused) == (4, 2, 2)
