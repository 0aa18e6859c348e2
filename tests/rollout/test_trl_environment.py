"""Classes written for TRL's environment_factory, as its documentation shows them, through ours."""

import gc

import pytest
from policies import Scripted, call, think

from arenarl.config.schema import EnvironmentConfig, RolloutConfig
from arenarl.domains.environments import environment_maker, make_environment
from arenarl.rollout.engine import Attempt, RolloutEngine
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


class Game:
    made = []

    def __init__(self):
        self.client = object()
        Game.made.append(self)

    def reset(self):
        self.reward, self.done = 0.0, False

    async def guess(self, words: list[str], loud: bool = False) -> str:
        """
        Guess words.

        Args:
            words: Some words.
            loud: Whether to shout.
        """
        if "gone" in words:
            raise ConnectionError("server down")
        self.done = "end" in words
        self.reward += len(words)
        return " ".join(words).upper() if loud else " ".join(words)

    def close(self):
        self.client = None


class Rules(Exception):
    pass


class Raises:
    def reset(self):
        return [{"type": "text", "text": "What is it? "}, {"type": "text", "text": "Say."}]

    def get_reward(self):
        return None

    def say(self, what: str) -> str:
        """
        Say it.

        Args:
            what: A word.
        """
        raise {
            "rules": Rules("not now"), "value": ValueError(), "key": KeyError("x"), "assert": AssertionError("no"),
            "divide": ZeroDivisionError("by 0"), "http": httpx.ConnectError("refused"), "runtime": RuntimeError("Server error"),
            "os": InvalidAddress("where"), "eof": EOFError(),
        }[what]

    async def say_later(self, what: str) -> str:
        """
        Say it.

        Args:
            what: A word.
        """
        return self.say(what)


class InvalidAddress(ConnectionError, ValueError):
    pass


class Calls:
    def reset(self): pass

    def call(self, number: str) -> str:
        """
        Calls somebody.

        Args:
            number: Whom.
        """
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


class Nothing:
    pass


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


constant = 7


class Unreachable(Ours):
    def __init__(self, config, language): raise ConnectionError("no server at 127.0.0.1:9")
'''  # noqa: E501


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "trl_worlds.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return "trl_worlds"


def roll_out(tokenizer, name, *scripts, constraints=None):
    config = RolloutConfig(max_turns=4, max_tokens=400, max_turn_tokens=96)
    queries = [
        Query(str(number), "count", "x", "en", f"Task {number}.", constraints or {}) for number in range(len(scripts))
    ]
    make = environment_maker(EnvironmentConfig(name=name), "en")
    engine = RolloutEngine(
        Scripted(tokenizer, {q.query: s for q, s in zip(queries, scripts, strict=True)}), tokenizer, make, config, False
    )
    return engine.roll_out([Attempt(query, 0.0, 1) for query in queries])


def test_the_class_of_trl_s_documentation_runs_unchanged(tokenizer, module):
    environment = make_environment(EnvironmentConfig(name=f"{module}:IncrementEnv"), "en")
    assert [tool["function"]["name"] for tool in environment.tools] == ["increment"]
    turns = [call("increment", step="2"), call("increment", step=3), call("increment", step=10), think("I am done.")]
    (trajectory,) = roll_out(tokenizer, f"{module}:IncrementEnv", turns, constraints={"start": 1})
    assert trajectory.messages[0]["content"].endswith("The counter is 1.")
    assert [turn.observations for turn in read_turns(trajectory.messages)] == [
        ["3"],
        ["6"],
        ["Error: too large a step"],
        [],
    ]
    assert (trajectory.stop_reason, trajectory.meta["reward"]) == ("done", 6.0)


def test_done_and_reward_are_read_and_a_dead_server_is_no_observation(tokenizer, module):
    ended, dead = roll_out(
        tokenizer,
        f"{module}:Game",
        [call("guess", words=["a", "end"], loud=True)],
        [call("guess", words="gone"), call("guess", words=["gone"])],
    )
    assert (ended.stop_reason, ended.meta["reward"]) == ("done", 2.0) and read_turns(ended.messages)[
        0
    ].observations == ["A END"]
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
    trajectories = roll_out(
        tokenizer, f"{module}:Raises", *([call(tool, what=word), think("I am done.")] for word in words)
    )
    for word, trajectory in zip(words, trajectories, strict=True):
        assert trajectory.is_void == (word not in OF_THE_CALL)
        if not trajectory.is_void:
            assert read_turns(trajectory.messages)[0].observations == [f"Error: {OF_THE_CALL[word]}"]
            assert trajectory.messages[0]["content"].endswith("What is it? Say.") and trajectory.meta["reward"] is None


@pytest.mark.parametrize("name", ["Calls", "factory", "brief", "part"])
def test_whatever_makes_a_world_of_trl_s_may_be_named_and_call_may_be_a_tool(module, name):
    environment = make_environment(EnvironmentConfig(name=f"{module}:{name}"), "en")
    assert [tool["function"]["name"] for tool in environment.tools] == ["call"]


def test_a_world_with_call_and_tools_is_ours_whether_it_takes_the_config_or_nothing(module):
    ours, unprepared = (
        make_environment(EnvironmentConfig(name=f"{module}:{name}"), "zh") for name in ("Ours", "Unprepared")
    )
    assert type(ours).__name__ == "Ours" and ours.language == "zh" and type(unprepared).__name__ == "Unprepared"


@pytest.mark.parametrize(("name", "said"), [
    ("Nothing", "Nothing has neither call and tools, nor reset"), ("Undocumented", "Undocumented cannot be a tool"),
    ("NoTools", "NoTools takes .*, but has no tools"),
    ("NoReset", "NoReset has call and tools, as our worlds do, but has no reset"),
    ("NoQuery", r"NoQuery.reset takes no \(query\)"), ("NoName", r"NoName.call takes no \(name, arguments\)"),
    ("Wants", "Wants must be a class or a function of"), ("constant", "constant must be a class or a function of"),
    ("Unreachable", "the first instance could not be made: ConnectionError: no server at"),
])  # fmt: skip
def test_what_is_no_world_is_refused_in_one_line(tokenizer, module, name, said):
    with pytest.raises(UserError, match=said):
        roll_out(tokenizer, f"{module}:{name}", [])
