"""AgentGym-RL's worlds through the rollout engine: fifty at once, both forms of an action, horizons,
and a truth that agrees with the world."""

import random

import pytest
from parts import domain_of
from policies import Scripted, call

from arenarl.config.schema import Config, DataConfig, EnvironmentConfig, RolloutConfig
from arenarl.domains.environments import environment_maker
from arenarl.rollout.engine import NO_ACTION, ONE_ACTION, Attempt, RolloutEngine
from arenarl.trajectory import read_turns

LIMITS = RolloutConfig(max_turns=20, max_tokens=16384, max_turn_tokens=256)


def domain(world):
    return domain_of(Config(environment=EnvironmentConfig(name=world, domain=world), data=DataConfig(language="en")))


def actions_of(trajectory):
    return [turn.tool_calls[0].arguments["action"] for turn in read_turns(trajectory.messages)]


def roll_out(tokenizer, one, scripts, queries, **options):
    """`scripts`: turns by the user's message."""
    make = environment_maker(one.environment, "en")
    engine = RolloutEngine(Scripted(tokenizer, scripts), tokenizer, make, LIMITS, schemas_in_prompt=False, **options)
    return engine.roll_out([Attempt(query, 0.0, 1) for query in queries])


@pytest.mark.parametrize("name", ["textcraft", "babyai"])
@pytest.mark.parametrize("form", ["tool_calls", "text"])
def test_fifty_at_once_go_as_the_expert_went(name, form, tokenizer):
    one = domain(name)
    queries = [one.query({"item": item}) for item in one.items("train")[::8]]
    solved = [one.solve(query, one.world(), random.Random(query.query_id), 0.6) for query in queries]
    first = {trajectory.messages[0]["content"]: at for at, trajectory in enumerate(solved)}  # some look alike at first
    queries, solved = [[each[at] for at in list(first.values())[:50]] for each in (queries, solved)]
    write = {"tool_calls": lambda action: call("act", action=action), "text": "Thought:\nhm\n\nAction:\n{}".format}[
        form
    ]
    scripts = {each.messages[0]["content"]: list(map(write, actions_of(each))) for each in solved}
    rolled = roll_out(tokenizer, one, scripts, queries, actions=form)
    for query, trajectory, expert in zip(queries, rolled, solved, strict=True):
        seen, expected = ([turn.observations for turn in read_turns(each.messages)] for each in (trajectory, expert))
        assert seen == expected and trajectory.stop_reason == expert.stop_reason
        assert trajectory.meta["reward"] == pytest.approx(expert.meta["reward"])
        assert one.examine(query, trajectory.messages) == one.examine(query, expert.messages)


def test_turns_without_one_action_are_refused_ones(tokenizer):
    one = domain("textcraft")
    query = one.query({"item": 0})
    expert = one.solve(query, one.world(), random.Random(0), 1.0)
    turns = [call("act", action=action) for action in actions_of(expert)]
    twice = turns[0] + "\n" + turns[0].partition("\n\n")[2]
    (trajectory,) = roll_out(tokenizer, one, {"Craft": ["nothing", twice, *turns]}, [query])
    assert [turn.observations for turn in read_turns(trajectory.messages)][:2] == [[NO_ACTION], [ONE_ACTION] * 2]
    truth = one.examine(query, trajectory.messages)
    assert trajectory.stop_reason == "done" and truth.success
    assert (truth.actions, truth.useful, truth.refused) == (4, 2, 2)
