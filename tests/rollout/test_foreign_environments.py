"""Classes for TRL's environment_factory, as in its documentation, and OpenEnv 0.10 clients with a server in process."""

import gc
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import httpx
import numpy as np
import pytest
import torch
from policies import Scripted, call, observations_of, think
from pydantic import BaseModel, Field

from arenarl.config.schema import EnvironmentConfig, RolloutConfig
from arenarl.domains.environments import environment_maker, make_environment
from arenarl.rollout.engine import Attempt, RolloutEngine
from arenarl.rollout.environment import ToolError, check_call
from arenarl.rollout.foreign_environments import TRLEnvironment
from arenarl.system.errors import UserError
from arenarl.trajectory import Query


class IncrementEnv:
    def reset(self, **kwargs) -> str | None:
        self.counter = kwargs.get("start", 0)
        return f"The counter is {self.counter}."

    def increment(self, step: int) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        if step > 9:
            raise ValueError("too large a step")
        self.counter += step
        return self.counter

    def get_reward(self) -> float:
        return float(self.counter)


def documented(method):
    arguments = [name for name in method.__annotations__ if name != "return"]
    method.__doc__ = "Does it.\n\nArgs:\n" + "\n".join(f"    {name}: A value." for name in arguments)
    return method


class Game:
    made = []

    def __init__(self):
        self.client = object()
        Game.made.append(self)

    def reset(self):
        self.reward, self.done = 0.0, False

    @documented
    async def guess(self, words: list[str], loud: bool = False) -> str:
        if "gone" in words:
            raise ConnectionError("server down")
        self.done = np.bool_("end" in words)  # as from gymnasium's spaces
        self.reward += len(words)
        return " ".join(words).upper() if loud else " ".join(words)

    def close(self):
        self.client = None


class Rules(Exception):
    pass


class InvalidAddress(ConnectionError, ValueError):
    pass


CALL_ERRORS = [
    (Rules("not now"), "not now"), (ValueError(), "ValueError"), (KeyError("x"), "'x'"), (AssertionError("no"), "no"),
    (ZeroDivisionError("by 0"), "by 0"),
]  # fmt: skip
FAILURES = [httpx.ConnectError("refused"), RuntimeError("Server error"), InvalidAddress("where"), EOFError()]
ERRORS = [*(error for error, _ in CALL_ERRORS), *FAILURES]


class Raises:
    def reset(self):
        return [{"type": "text", "text": "What is it? "}, {"type": "text", "text": "Say."}]

    def get_reward(self):
        return None

    @documented
    def say(self, number: int) -> str:
        raise ERRORS[number]

    @documented
    async def say_later(self, number: int) -> str:
        raise ERRORS[number]


class Calls:
    def reset(self):
        pass

    @documented
    def call(self, number: str) -> str:
        return "It rings."


class Ours:
    tools = []

    def __init__(self, config=None, language="zh"):
        self.language = language

    def reset(self, query):
        pass

    def call(self, name, arguments):
        return "x"


@pytest.fixture
def name_of(monkeypatch):
    """Return a function that gives a class or function the import path of `World` here."""
    return lambda world: monkeypatch.setitem(globals(), "World", world) or f"{__name__}:World"


def roll_out(tokenizer, name, *scripts, constraints=(), server=None):
    """Roll out a trajectory for each script; `constraints` are those of the queries, in order."""
    config, constraints = RolloutConfig(max_turns=4, max_tokens=600, max_turn_tokens=200), iter(constraints)
    texts = [f"Task {number}." for number in range(len(scripts))]
    queries = [Query(text, "count", "x", "en", text, next(constraints, {})) for text in texts]
    make = environment_maker(EnvironmentConfig(name=name, server=server), "en")
    generator = Scripted(tokenizer, dict(zip(texts, scripts, strict=True)))
    engine = RolloutEngine(generator, tokenizer, make, config, schemas_in_prompt=False)
    return engine.roll_out([Attempt(query, 0.0, 1) for query in queries])


def test_the_class_of_trls_documentation_runs_unchanged(tokenizer):
    name = f"{__name__}:IncrementEnv"
    environment = make_environment(EnvironmentConfig(name=name), "en")
    assert [tool["function"]["name"] for tool in environment.tools] == ["increment"]
    turns = [call("increment", step="2"), call("increment", step=3), call("increment", step=10), think("I am done.")]
    (trajectory,) = roll_out(tokenizer, name, turns, constraints=[{"start": 1}])
    assert trajectory.messages[0]["content"].endswith("The counter is 1.")
    assert observations_of(trajectory) == [["3"], ["6"], ["Error: too large a step"], []]
    assert (trajectory.stop_reason, trajectory.meta["reward"]) == ("done", 6.0)


@pytest.mark.parametrize(("done", "is_over"), [
    (True, True), (np.True_, True), (np.array([True]), True), (torch.tensor(True), True),
    (False, False), (np.False_, False), (np.array([False]), False), (["first room"], False), (3, False), ("no", False),
])  # fmt: skip
def test_only_a_true_done_ends_a_trajectory(done, is_over):
    """A class may keep a list or a number of finished tasks under this name."""
    world = TRLEnvironment(IncrementEnv())
    world.inner.done = done
    assert world._step("seen").done is is_over


def test_done_and_reward_are_read_and_a_dead_server_makes_the_trajectory_void(tokenizer):
    wins = [call("guess", words=["a", "end"], loud=True)]
    dies = [call("guess", words="gone"), call("guess", words=["gone"])]
    ended, dead = roll_out(tokenizer, f"{__name__}:Game", wins, dies)
    assert (ended.stop_reason, ended.meta["reward"]) == ("done", 2.0) and observations_of(ended)[0] == ["A END"]
    assert dead.is_void and "reward" not in dead.meta
    gc.collect()  # a traceback may hold the engine
    assert [world.client for world in Game.made] == [None] * len(Game.made)


@pytest.mark.parametrize("tool", ["say", "say_later"])
def test_the_policy_sees_errors_of_its_call_and_other_failures_make_the_trajectory_void(tokenizer, tool, capfd):
    scripts = [[call(tool, number=number), think("I am done.")] for number in range(len(ERRORS))]
    trajectories = roll_out(tokenizer, f"{__name__}:Raises", *scripts)
    assert [trajectory.is_void for trajectory in trajectories] == [error in FAILURES for error in ERRORS]
    for (_, words), trajectory in zip(CALL_ERRORS, trajectories, strict=False):
        assert observations_of(trajectory)[0] == [f"Error: {words}"]
        assert trajectory.messages[0]["content"].endswith("What is it? Say.") and trajectory.meta["reward"] is None


def test_a_class_of_trl_or_ours_or_a_function_that_makes_it_can_be_named(name_of):
    for world in (Calls, lambda: Calls(), partial(Calls)):
        environment = make_environment(EnvironmentConfig(name=name_of(world)), "en")
        assert [tool["function"]["name"] for tool in environment.tools] == ["call"]
    for world in (Ours, type("Unprepared", (Ours,), {"__init__": lambda self: Ours.__init__(self)})):
        environment = make_environment(EnvironmentConfig(name=name_of(world)), "zh")
        assert type(environment) is world and environment.language == "zh"


CALL = {"call": Ours.call}


@pytest.mark.parametrize(("members", "message"), [
    ({}, "World has neither call and tools, nor reset"),
    ({"reset": Calls.reset, "go": lambda self, x: None}, "World cannot be a tool"),
    (CALL | {"reset": Ours.reset, "__init__": Ours.__init__}, "World takes .*, but has no tools"),
    (CALL | {"tools": []}, "World has call and tools, as our worlds do, but has no reset"),
    (CALL | {"tools": [], "reset": Calls.reset}, r"World.reset does not take \(query\)"),
    ({"tools": [], "reset": Ours.reset, "call": lambda self, arguments: "x"}, r"does not take \(name, arguments\)"),
    ({"reset": Calls.reset, "__init__": lambda self, size: None}, "World must be a class or a function of"),
    (None, "World must be a class or a function of"),
    (CALL | {"tools": [], "reset": Ours.reset, "__init__": lambda self, config, language: 1 / 0},
     "the first instance could not be made: ZeroDivisionError: division by zero"),
], ids=range(9))  # fmt: skip
def test_an_invalid_world_is_refused(tokenizer, name_of, members, message):
    world = 7 if members is None else type("World", (), dict(members))
    with pytest.raises(UserError, match=message):
        roll_out(tokenizer, name_of(world), [])


Act, Obs = TypeVar("Act"), TypeVar("Obs")


class EnvClient(Generic[Act, Obs]):
    """The base class of OpenEnv's clients. A client connects at its first request and has a session of its own."""

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
        if action.by == -3:  # the client's exception if the world raises
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
    """A client with a recursive action."""


class GenericClient(EnvClient[dict[str, Any], dict[str, Any]]):
    """A client that declares no action type."""


CLIENT, SERVER = f"{__name__}:CounterClient", "http://127.0.0.1:8000"
GOALS = [{"goal": 2}, {"goal": 3}, {"goal": 4}]


def play(tokenizer, *turns, server=SERVER):
    return roll_out(tokenizer, CLIENT, *[turns] * 3, constraints=GOALS, server=server)


def act(by):
    return call("act", by=by)


def test_an_openenv_client_has_a_session_for_each_trajectory(tokenizer):
    first, second, third = play(tokenizer, act("1"), act(7), act(1), act(1))
    assert first.messages[0]["content"] == "Task 0.\n\nAt 0, goal 2."
    misfit = "Error: by does not fit: 7 is greater than the maximum of 3."
    assert observations_of(first) == [["At 1."], [misfit], ["At 2."]]
    ends = [(trajectory.stop_reason, trajectory.meta["reward"]) for trajectory in (first, second, third)]
    assert ends == [("done", 1.0), ("done", 1.0), ("horizon", 0.0)]
    assert len(CounterClient.sessions) == 3 and not any(session.is_open for session in CounterClient.sessions)


def test_a_refused_action_is_an_observation_and_a_lost_session_or_server_makes_the_trajectory_void(
    tokenizer, monkeypatch, capfd
):
    first, *_ = play(tokenizer, act(-3), act(2), act(1), act(1))
    assert observations_of(first) == [["Error: Below the floor."], ["At 2."]] and first.meta["reward"] == 1.0
    assert all(trajectory.is_void for trajectory in play(tokenizer, act(-2)))
    monkeypatch.setattr(CounterClient, "is_down", True)
    assert all(trajectory.is_void for trajectory in play(tokenizer, act(1)))
    with pytest.raises(UserError, match="set environment.server"):
        play(tokenizer, server=None)


def test_the_action_type_defines_the_tool():
    def made(name):
        return environment_maker(EnvironmentConfig(name=f"{__name__}:{name}", server=SERVER), "en")()

    move, tree = made("CounterClient"), made("TreeClient")
    assert move.tools[0]["function"]["description"] == "Moves the counter."
    assert check_call(tree.tools, "act", {"word": "a", "child": {"word": "b"}}) == {"word": "a", "child": {"word": "b"}}
    with pytest.raises(ToolError, match="child.word"):
        check_call(tree.tools, "act", {"word": "a", "child": {"word": 1, "child": None}})
    with pytest.raises(UserError, match="GenericClient does not declare its action's type"):
        made("GenericClient")
