"""OpenEnv's clients through ours: the shape of its 0.10 clients, with a server in this process."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest
from policies import Scripted, call
from pydantic import BaseModel, Field

from arenarl.config.schema import EnvironmentConfig, RolloutConfig
from arenarl.domains.environments import environment_maker
from arenarl.rollout.engine import Attempt, RolloutEngine
from arenarl.rollout.environment import ToolError, check_call
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, read_turns

Act, Obs = TypeVar("Act"), TypeVar("Obs")


class EnvClient(Generic[Act, Obs]):
    """What a client inherits there; it connects when it is first asked, and each has a session."""

    def __init__(self, base_url=None):
        self.base_url, self.is_open = base_url, False


class Move(BaseModel):
    """
    Moves the counter.

    By as much as it says.
    """

    by: int = Field(ge=-3, le=3)
    metadata: dict[str, Any] = {}


class Seen(BaseModel):
    text: str = ""
    done: bool = False
    reward: float | None = None
    metadata: dict[str, Any] = {}


@dataclass
class Result:
    observation: Seen
    reward: float | None = None
    done: bool = False


class CounterClient(EnvClient[Move, Seen]):
    is_down, sessions = False, []

    async def reset(self, goal=3):
        if self.is_down:
            raise ConnectionError("failed to connect")
        self.is_open, self.value, self.goal = True, 0, goal
        self.sessions.append(self)
        return Result(Seen(text=f"At 0, goal {goal}."))

    async def step(self, action):
        if action.by == -3:  # as the client says of an action at which the world raised
            raise RuntimeError("Server error: Below the floor. (code: EXECUTION_ERROR)")
        if action.by == -2:
            raise RuntimeError("Server error: No session. (code: SESSION_ERROR)")
        self.value += action.by
        is_there = self.value == self.goal
        return Result(Seen(text=f"At {self.value}.", done=is_there), float(is_there), is_there)

    async def close(self):
        self.is_open = False


class Tree(BaseModel):
    """Grows."""

    word: str
    child: "Tree | None" = None


class TreeClient(EnvClient[Tree, Seen]):
    """Its action holds others of its kind."""


class GenericClient(EnvClient[dict[str, Any], dict[str, Any]]):
    """Takes what it likes."""


NAME = f"{__name__}:CounterClient"


def roll_out(tokenizer, turns, server="http://127.0.0.1:8000"):
    make = environment_maker(EnvironmentConfig(name=NAME, server=server), "en")
    limits = RolloutConfig(max_turns=4, max_tokens=600, max_turn_tokens=200)
    engine = RolloutEngine(Scripted(tokenizer, {"Task": turns}), tokenizer, make, limits, schemas_in_prompt=False)
    queries = [Query(str(number), "count", "x", "en", "Task.", {"goal": 2 + number}) for number in range(3)]
    return engine.roll_out([Attempt(query, 0.0, 1) for query in queries])


def test_an_openenv_client_plays_with_a_session_a_trajectory(tokenizer):
    turns = [call("act", by="1"), call("act", by=7), call("act", by=1), call("act", by=1)]
    first, second, third = roll_out(tokenizer, turns)
    assert first.messages[0]["content"] == "Task.\n\nAt 0, goal 2."
    assert [turn.observations for turn in read_turns(first.messages)] == [
        ["At 1."], ["Error: by does not fit: 7 is greater than the maximum of 3."], ["At 2."],
    ]  # fmt: skip
    assert [(one.stop_reason, one.meta["reward"]) for one in (first, second, third)] == [
        ("done", 1.0),
        ("done", 1.0),
        ("horizon", 0.0),
    ]
    assert len(CounterClient.sessions) == 3 and not any(session.is_open for session in CounterClient.sessions)


def test_an_action_that_the_world_refuses_is_an_observation_and_a_lost_session_is_none(tokenizer):
    first, *_ = roll_out(tokenizer, [call("act", by=-3), call("act", by=2), call("act", by=1), call("act", by=1)])
    assert [turn.observations for turn in read_turns(first.messages)] == [
        ["Error: Below the floor."],
        ["At 2."],
    ] and first.meta["reward"] == 1.0
    assert all(one.is_void for one in roll_out(tokenizer, [call("act", by=-2)]))


def test_a_server_that_is_down_or_not_named(tokenizer, monkeypatch, capfd):
    monkeypatch.setattr(CounterClient, "is_down", True)
    assert all(one.is_void for one in roll_out(tokenizer, [call("act", by=1)]))
    with pytest.raises(UserError, match="set environment.server"):
        roll_out(tokenizer, [], server=None)


def test_the_tool_is_what_the_action_says_of_itself():
    def made(name):
        return environment_maker(EnvironmentConfig(name=f"{__name__}:{name}", server="http://127.0.0.1:8000"), "en")()

    move, tree = made("CounterClient"), made("TreeClient")
    assert move.tools[0]["function"]["description"] == "Moves the counter."
    assert check_call(tree.tools, "act", {"word": "a", "child": {"word": "b"}}) == {"word": "a", "child": {"word": "b"}}
    with pytest.raises(ToolError, match="child.word"):
        check_call(tree.tools, "act", {"word": "a", "child": {"word": 1, "child": None}})
    with pytest.raises(UserError, match="GenericClient does not say which action it takes"):
        made("GenericClient")
