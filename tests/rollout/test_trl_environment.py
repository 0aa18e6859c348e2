"""Classes written for TRL's environment_factory, as its documentation shows them, through ours."""

import pytest
from policies import Scripted, call, think

from arenarl.config.schema import EnvironmentConfig, RolloutConfig
from arenarl.domains.environments import environment_maker, make_environment
from arenarl.rollout.engine import Attempt, RolloutEngine
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, read_turns

MODULE = '''
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


class Nothing:
    pass


class Undocumented:
    def reset(self): pass
    def go(self, x): pass
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "trl_worlds.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return "trl_worlds"


def roll_out(tokenizer, name, *scripts, constraints=None):
    config = RolloutConfig(max_turns=4, max_tokens=400, max_turn_tokens=96)
    queries = [Query(str(number), "count", "x", "en", f"Task {number}.", constraints or {}) for number in range(len(scripts))]
    make = environment_maker(EnvironmentConfig(name=name), "en")
    engine = RolloutEngine(Scripted(tokenizer, {q.query: s for q, s in zip(queries, scripts, strict=True)}), tokenizer, make, config, False)
    return engine.roll_out([Attempt(query, 0.0, 1) for query in queries])


def test_the_class_of_trl_s_documentation_runs_unchanged(tokenizer, module):
    environment = make_environment(EnvironmentConfig(name=f"{module}:IncrementEnv"), "en")
    assert [tool["function"]["name"] for tool in environment.tools] == ["increment"]
    turns = [call("increment", step="2"), call("increment", step=3), call("increment", step=10), think("I am done.")]
    (trajectory,) = roll_out(tokenizer, f"{module}:IncrementEnv", turns, constraints={"start": 1})
    assert trajectory.messages[0]["content"].endswith("The counter is 1.")
    assert [turn.observations for turn in read_turns(trajectory.messages)] == [["3"], ["6"], ["Error: too large a step"], []]
    assert (trajectory.stop_reason, trajectory.meta["reward"]) == ("done", 6.0)


def test_done_and_reward_are_read_and_a_dead_server_is_no_observation(tokenizer, module):
    ended, dead = roll_out(
        tokenizer, f"{module}:Game", [call("guess", words=["a", "end"], loud=True)], [call("guess", words="gone"), call("guess", words=["gone"])]
    )
    assert (ended.stop_reason, ended.meta["reward"]) == ("done", 2.0) and read_turns(ended.messages)[0].observations == ["A END"]
    assert dead.is_void and "reward" not in dead.meta
    import trl_worlds

    assert [world.client for world in trl_worlds.Game.made] == [None] * len(trl_worlds.Game.made)


@pytest.mark.parametrize(("name", "said"), [("Nothing", "neither call and tools, nor reset"), ("Undocumented", "cannot be a tool")])
def test_a_class_of_neither_kind_is_refused_in_one_line(module, name, said):
    with pytest.raises(UserError, match=said):
        make_environment(EnvironmentConfig(name=f"{module}:{name}"), "en")
