"""Classes written for TRL's environment_factory, as its documentation shows them, and clients of OpenEnv's 0.10, with a
server in this process, through ours."""

import gc
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest
from policies import Scripted, call, think
from pydantic import BaseModel, Field

from arenarl.config.schema import EnvironmentConfig, RolloutConfig
from arenarl.domains.environments import environment_maker, make_environment
from arenarl.rollout.engine import Attempt, RolloutEngine
from arenarl.rollout.environment import ToolError, check_call
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, read_turns

MODULE = '''
import functools
import httpx

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
    method.__doc__ = "Does it.\\n\\nArgs:\\n" + "\\n".join(f"    {name}: A value." for name in arguments)
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
        self.done = "end" in words
        self.reward += len(words)
        return " ".join(words).upper() if loud else " ".join(words)

    def close(self):
        self.client = None

class Rules(Exception): pass
class InvalidAddress(ConnectionError, ValueError): pass
ERRORS = {
    "rules": Rules("not now"), "value": ValueError(), "key": KeyError("x"), "assert": AssertionError("no"),
    "divide": ZeroDivisionError("by 0"), "http": httpx.ConnectError("refused"), "runtime": RuntimeError("Server error"),
    "os": InvalidAddress("where"), "eof": EOFError(),
}

class Raises:
    def reset(self): return [{"type": "text", "text": "What is it? "}, {"type": "text", "text": "Say."}]
    def get_reward(self): return None

    @documented
    def say(self, what: str) -> str:
        raise ERRORS[what]

    @documented
    async def say_later(self, what: str) -> str:
        raise ERRORS[what]

class Calls:
    def reset(self): pass

    @documented
    def call(self, number: str) -> str:
        return "It rings."

class Ours:
    tools = []
    def __init__(self, config=None, language=None): self.language = language
    def reset(self, query): pass
    def call(self, name, arguments): return "x"

class Unprepared(Ours):
    def __init__(self): pass

def factory(): return Calls()
brief = lambda: Calls()
part = functools.partial(Calls)
constant = 7

class Nothing: pass
class Undocumented:
    def reset(self): pass
    def go(self, x): pass
class NoTools:
    def __init__(self, config, language): pass
    def reset(self, query): pass
    def call(self, name, arguments): return "x"
class NoReset:
    tools = []
    def call(self, name, arguments): return "x"
class NoQuery(NoReset):
    def reset(self): pass
class NoName(NoReset):
    def reset(self, query): pass
    def call(self, arguments): return "x"
class Wants(Calls):
    def __init__(self, size): pass
class Unreachable(Ours):
    def __init__(self, config, language): raise ConnectionError("no server at 127.0.0.1:9")
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "trl_worlds.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return "trl_worlds"


def roll_out(tokenizer, name, *scripts, constraints=(), server=None):
    """A trajectory for each script, with constraints of its own if there are as many."""
    config, constraints = RolloutConfig(max_turns=4, max_tokens=600, max_turn_tokens=200), iter(constraints)
    texts = [f"Task {number}." for number in range(len(scripts))]
    queries = [Query(text, "count", "x", "en", text, next(constraints, {})) for text in texts]
    make = environment_maker(EnvironmentConfig(name=name, server=server), "en")
    generator = Scripted(tokenizer, dict(zip(texts, scripts, strict=True)))
    engine = RolloutEngine(generator, tokenizer, make, config, schemas_in_prompt=False)
    return engine.roll_out([Attempt(query, 0.0, 1) for query in queries])


def seen(trajectory):
    return [turn.observations for turn in read_turns(trajectory.messages)]


def test_the_class_of_trl_s_documentation_runs_unchanged(tokenizer, module):
    environment = make_environment(EnvironmentConfig(name=f"{module}:IncrementEnv"), "en")
    assert [tool["function"]["name"] for tool in environment.tools] == ["increment"]
    turns = [call("increment", step="2"), call("increment", step=3), call("increment", step=10), think("I am done.")]
    (trajectory,) = roll_out(tokenizer, f"{module}:IncrementEnv", turns, constraints=[{"start": 1}])
    assert trajectory.messages[0]["content"].endswith("The counter is 1.")
    assert seen(trajectory) == [["3"], ["6"], ["Error: too large a step"], []]
    assert (trajectory.stop_reason, trajectory.meta["reward"]) == ("done", 6.0)


def test_done_and_reward_are_read_and_a_dead_server_is_no_observation(tokenizer, module):
    wins = [call("guess", words=["a", "end"], loud=True)]
    dies = [call("guess", words="gone"), call("guess", words=["gone"])]
    ended, dead = roll_out(tokenizer, f"{module}:Game", wins, dies)
    assert (ended.stop_reason, ended.meta["reward"]) == ("done", 2.0) and seen(ended)[0] == ["A END"]
    assert dead.is_void and "reward" not in dead.meta
    gc.collect()  # a traceback may hold the engine
    import trl_worlds

    assert [world.client for world in trl_worlds.Game.made] == [None] * len(trl_worlds.Game.made)


OF_THE_CALL = {"rules": "not now", "value": "ValueError", "key": "'x'", "assert": "no", "divide": "by 0"}


@pytest.mark.parametrize("tool", ["say", "say_later"])
def test_the_policy_sees_that_a_call_was_wrong_and_is_not_charged_with_what_failed_beside_it(
    tokenizer, module, tool, capfd
):
    words = [*OF_THE_CALL, "http", "runtime", "os", "eof"]
    scripts = [[call(tool, what=word), think("I am done.")] for word in words]
    for word, trajectory in zip(words, roll_out(tokenizer, f"{module}:Raises", *scripts), strict=True):
        assert trajectory.is_void == (word not in OF_THE_CALL)
        if not trajectory.is_void:
            assert seen(trajectory)[0] == [f"Error: {OF_THE_CALL[word]}"]
            assert trajectory.messages[0]["content"].endswith("What is it? Say.") and trajectory.meta["reward"] is None


@pytest.mark.parametrize("name", ["Calls", "factory", "brief", "part"])
def test_whatever_makes_a_world_of_trl_s_may_be_named_and_call_may_be_a_tool(module, name):
    environment = make_environment(EnvironmentConfig(name=f"{module}:{name}"), "en")
    assert [tool["function"]["name"] for tool in environment.tools] == ["call"]


@pytest.mark.parametrize("name", ["Ours", "Unprepared"])
def test_a_world_with_call_and_tools_is_ours_whether_it_takes_the_config_or_nothing(module, name):
    environment = make_environment(EnvironmentConfig(name=f"{module}:{name}"), "zh")
    assert type(environment).__name__ == name and getattr(environment, "language", "zh") == "zh"


@pytest.mark.parametrize(("name", "said"), [
    ("Nothing", "Nothing has neither call and tools, nor reset"), ("Undocumented", "Undocumented cannot be a tool"),
    ("NoTools", "NoTools takes .*, but has no tools"),
    ("NoReset", "NoReset has call and tools, as our worlds do, but has no reset"),
    ("NoQuery", r"NoQuery.reset does not take \(query\)"), ("NoName", r"NoName.call does not take \(name, arguments\)"),
    ("Wants", "Wants must be a class or a function of"), ("constant", "constant must be a class or a function of"),
    ("Unreachable", "the first instance could not be made: ConnectionError: no server at"),
])  # fmt: skip
def test_what_is_no_world_is_refused_in_one_line(tokenizer, module, name, said):
    with pytest.raises(UserError, match=said):
        roll_out(tokenizer, f"{module}:{name}", [])


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


CLIENT, SERVER = f"{__name__}:CounterClient", "http://127.0.0.1:8000"
GOALS = [{"goal": 2}, {"goal": 3}, {"goal": 4}]


def play(tokenizer, *turns, server=SERVER):
    return roll_out(tokenizer, CLIENT, *[turns] * 3, constraints=GOALS, server=server)


def act(by):
    return call("act", by=by)


def test_an_openenv_client_plays_with_a_session_a_trajectory(tokenizer):
    first, second, third = play(tokenizer, act("1"), act(7), act(1), act(1))
    assert first.messages[0]["content"] == "Task 0.\n\nAt 0, goal 2."
    misfit = "Error: by does not fit: 7 is greater than the maximum of 3."
    assert seen(first) == [["At 1."], [misfit], ["At 2."]]
    ends = [(one.stop_reason, one.meta["reward"]) for one in (first, second, third)]
    assert ends == [("done", 1.0), ("done", 1.0), ("horizon", 0.0)]
    assert len(CounterClient.sessions) == 3 and not any(session.is_open for session in CounterClient.sessions)


def test_an_action_that_the_world_refuses_is_an_observation_and_a_lost_session_is_none(tokenizer):
    first, *_ = play(tokenizer, act(-3), act(2), act(1), act(1))
    assert seen(first) == [["Error: Below the floor."], ["At 2."]] and first.meta["reward"] == 1.0
    assert all(one.is_void for one in play(tokenizer, act(-2)))


def test_a_server_that_is_down_or_not_named(tokenizer, monkeypatch, capfd):
    monkeypatch.setattr(CounterClient, "is_down", True)
    assert all(one.is_void for one in play(tokenizer, act(1)))
    with pytest.raises(UserError, match="set environment.server"):
        play(tokenizer, server=None)


def test_the_tool_is_what_the_action_says_of_itself():
    def made(name):
        return environment_maker(EnvironmentConfig(name=f"{__name__}:{name}", server=SERVER), "en")()

    move, tree = made("CounterClient"), made("TreeClient")
    assert move.tools[0]["function"]["description"] == "Moves the counter."
    assert check_call(tree.tools, "act", {"word": "a", "child": {"word": "b"}}) == {"word": "a", "child": {"word": "b"}}
    with pytest.raises(ToolError, match="child.word"):
        check_call(tree.tools, "act", {"word": "a", "child": {"word": 1, "child": None}})
    with pytest.raises(UserError, match="GenericClient does not say which action it takes"):
        made("GenericClient")
