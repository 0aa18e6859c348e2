"""A user's own reward function: its arguments, and checks of its return values."""

import re

import pytest
from groups import QUERY, attempt, truth_of
from parts import arena_of

from arenarl.config.schema import Config, JudgeConfig, RewardConfig
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.judges.factory import AlternatingJudge
from arenarl.system.errors import UserError
from arenarl.system.repository import ROOT
from arenarl.trajectory import RolloutGroup

EXACT = JudgeConfig(noise="none")
GROUP = [attempt(8.0), attempt(2.0), attempt(5.0, "max_turns"), attempt(5.0, "tool_crash")]


class Silent(EmbeddedJudge):
    """Gives a verdict only on the best trajectory."""

    async def score(self, query, trajectory, answer_only=False, repeat=0):
        return await super().score(query, trajectory, answer_only, repeat) if trajectory.answer == "8.0" else None


@pytest.fixture
def reward(tmp_path, monkeypatch):
    """Return the outcome of `GROUP` by a function with this body."""

    def reward(body, group=GROUP, signature="async def own(query, trajectories, judge)", wrap=lambda judge: judge):
        name = f"own_reward_{abs(hash((tmp_path, body, signature)))}"
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / f"{name}.py").write_text(f"import asyncio, math, numpy as np\n{signature}:\n    {body}\n")
        arena = arena_of(Config(reward=RewardConfig(name=f"{name}:own")), wrap(Silent(EXACT, truth_of, 0)))
        return arena.reward_groups([RolloutGroup(QUERY, group)])[0]

    return reward


def test_void_trajectories_are_not_passed_and_have_no_reward(reward):
    outcome = reward("return [float(len(trajectories)), None, -1]", signature="def own(query, trajectories, judge)")
    assert outcome.rewards_G == [3.0, None, -1.0, None] and outcome.ranks_G == [0.0, None, 1.0, None]
    assert reward("return np.arange(len(trajectories)) / 2").rewards_G == [0.0, 0.5, 1.0, None]
    assert reward("raise RuntimeError", group=GROUP[3:]).rewards_G == [None]  # not called without trajectories


def test_the_tournament_in_the_docs_skips_trajectories_without_a_rank(tmp_path, monkeypatch):
    class Mute(EmbeddedJudge):
        """Gives no verdict on a pair with the answer 9.0."""

        async def compare(self, query, first, second, repeat=0):
            is_mute = "9.0" in (first.answer, second.answer)
            return None if is_mute else await super().compare(query, first, second, repeat)

    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "methods.md").read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [example for example in examples if "async def ranked(" in example]
    (tmp_path / "of_the_docs.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    group = [attempt(quality) for quality in (5.0, 9.0, 2.0, 8.0)] + [attempt(5.0, "max_turns")]
    for trajectory in group:
        trajectory.meta = {"tool_calls": 0}
    arena = arena_of(Config(reward=RewardConfig(name="of_the_docs:ranked")), Mute(EXACT, truth_of, 0))
    middle, silent, low, best, invalid = arena.reward_groups([RolloutGroup(QUERY, group)])[0].rewards_G
    assert silent is None and (best, invalid) == (1.0, 0.0) and 1 > middle > low > 0


@pytest.mark.parametrize("wrap", [lambda judge: judge, lambda judge: AlternatingJudge([judge, judge], seed=0)])
def test_judge_calls_are_counted_and_exceptions_keep_their_traceback(reward, wrap):
    outcome = reward(
        "return [v and v.totals[0] for v in await asyncio.gather(*(judge.score(query, one) for one in trajectories))]",
        wrap=wrap,
    )
    assert outcome.rewards_G[0] > 0 and outcome.rewards_G[1:] == [None] * 3
    assert (outcome.judge_calls, outcome.failed_calls) == (3, 2)
    assert reward("return [len(judge.weights(query))] * 3", wrap=wrap).judge_calls == 0
    with pytest.raises(ZeroDivisionError):
        reward("return 1 / 0")


@pytest.mark.parametrize("wrong", [
    "[1.0]", "[1, 2, math.nan]", "[1, 2, math.inf]", "[1, 2, -1e30]", "[True, False, True]", "['1', 2, 3]", "None",
    "3", "'abc'",
    "[[1]] * 3", "{0: 1.0, 1: .5, 2: 0.0}", "{1.0, .5, .2}", "b'abc'", "{0: 1, 1: 2, 2: 3}.keys()",
])  # fmt: skip
def test_a_wrong_return_value_stops_the_run_with_one_line(reward, wrong):
    words = r"must return a number within ±1e\+15, or None, for each of the 3 trajectories; for query q it returned"
    with pytest.raises(UserError, match=words) as caught:
        reward(f"return {wrong}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("signature", "words"), [
    ("def own(query)", "does not fit .*too many positional arguments.*; a reward is a function of"),
    ("def other(query, trajectories, judge)", "cannot be imported .*name a function as package.module:function"),
    ("own = 3\nif True", "does not fit .*not a callable"),
])  # fmt: skip
def test_unusable_functions_are_refused_before_any_work(reward, signature, words):
    with pytest.raises(UserError, match=words):
        reward("pass", signature=signature)
