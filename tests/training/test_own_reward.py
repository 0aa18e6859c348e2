"""A reward of one's own: what it is asked, and what of its answers is trained on."""

import re

import pytest
from groups import QUERY, attempt, truth_of
from parts import arena_of

from arenarl.config.schema import Config, JudgeConfig, RewardConfig
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.system.errors import UserError
from arenarl.system.repository import ROOT
from arenarl.trajectory import RolloutGroup

GROUP = [attempt(8.0), attempt(2.0), attempt(5.0, "max_turns"), attempt(5.0, "tool_crash")]


class Silent(EmbeddedJudge):
    """Has a verdict on the best alone."""

    async def score(self, query, trajectory, answer_only=False, repeat=0):
        return await super().score(query, trajectory, answer_only, repeat) if trajectory.answer == "8.0" else None


@pytest.fixture
def reward(tmp_path, monkeypatch):
    """The outcome of `GROUP` by a function with this body."""

    def reward(body, group=GROUP, signature="async def own(query, trajectories, judge)"):
        name = f"own_reward_{abs(hash((tmp_path, body, signature)))}"
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / f"{name}.py").write_text(f"import asyncio, math, numpy as np\n{signature}:\n    {body}\n")
        config = Config(reward=RewardConfig(name=f"{name}:own"))
        return arena_of(config, Silent(JudgeConfig(noise="none"), truth_of, 0)).reward_groups(
            [RolloutGroup(QUERY, group)]
        )[0]

    return reward


def test_void_trajectories_are_not_shown_and_have_no_reward(reward):
    outcome = reward("return [float(len(trajectories)), None, -1]", signature="def own(query, trajectories, judge)")
    assert outcome.rewards_G == [3.0, None, -1.0, None] and outcome.ranks_G == [0.0, None, 1.0, None]
    assert reward("return np.arange(len(trajectories)) / 2").rewards_G == [0.0, 0.5, 1.0, None]
    assert reward("raise RuntimeError", group=GROUP[3:]).rewards_G == [None]  # nobody to ask it about


class Mute(EmbeddedJudge):
    """Says nothing of the answer 9.0 beside another."""

    async def compare(self, query, first, second, repeat=0):
        return None if "9.0" in (first.answer, second.answer) else await super().compare(query, first, second, repeat)


def test_the_documents_tournament_ranks_those_that_have_a_rank(tmp_path, monkeypatch):
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "methods.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "of_the_docs.py").write_text(
        next(example for example in examples if "async def ranked(" in example), encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    group = [attempt(quality) for quality in (5.0, 9.0, 2.0, 8.0)] + [attempt(5.0, "max_turns")]
    for one in group:
        one.meta = {"tool_calls": 0}
    arena = arena_of(
        Config(reward=RewardConfig(name="of_the_docs:ranked")), Mute(JudgeConfig(noise="none"), truth_of, 0)
    )
    middle, silent, low, best, invalid = arena.reward_groups([RolloutGroup(QUERY, group)])[0].rewards_G
    assert silent is None and (best, invalid) == (1.0, 0.0) and 1 > middle > low > 0


def test_the_calls_of_the_judge_are_counted(reward):
    outcome = reward(
        "return [v and v.totals[0] for v in await asyncio.gather(*(judge.score(query, one) for one in trajectories))]"
    )
    assert outcome.rewards_G[0] > 0 and outcome.rewards_G[1:] == [None] * 3
    assert (outcome.judge_calls, outcome.failed_calls) == (3, 2)
    assert reward("return [len(judge.weights(query))] * 3").judge_calls == 0


@pytest.mark.parametrize("wrong", [
    "[1.0]", "[1, 2, math.nan]", "[1, 2, math.inf]", "[True, False, True]", "['1', 2, 3]", "None", "3", "'abc'",
    "[[1]] * 3", "{0: 1.0, 1: .5, 2: 0.0}", "{1.0, .5, .2}", "b'abc'", "{0: 1, 1: 2, 2: 3}.keys()",
])  # fmt: skip
def test_anything_but_a_number_each_ends_the_run_in_one_line(reward, wrong):
    with pytest.raises(
        UserError, match="must return a finite number or None for each of the 3 trajectories; for query q it returned"
    ) as caught:
        reward(f"return {wrong}")
    assert "\n" not in str(caught.value)


def test_what_it_raises_keeps_its_traceback(reward):
    with pytest.raises(ZeroDivisionError):
        reward("return 1 / 0")


@pytest.mark.parametrize(("signature", "words"), [
    ("def own(query)", "does not fit .*too many positional arguments.*; a reward is a function of"),
    ("def other(query, trajectories, judge)", "cannot be imported .*name a function as package.module:function"),
    ("own = 3\nif True", "does not fit .*not a callable"),
])  # fmt: skip
def test_what_cannot_be_a_reward_is_refused_before_any_work(reward, signature, words):
    with pytest.raises(UserError, match=words):
        reward("pass", signature=signature)
