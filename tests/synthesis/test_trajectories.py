"""The choice among the teacher's attempts."""

import asyncio

import pytest
from groups import QUERY, attempt, truth_of

from arenarl.config.schema import JudgeConfig
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.synthesis.rules import Problem
from arenarl.synthesis.trajectories import Teacher

FAULT = Problem("facts", 1, "It is invented.")
GROUP = [attempt(quality) for quality in (1.0, 2.0, 3.0, 4.0, 5.0, 9.0)]


class Silent(EmbeddedJudge):
    """Gives no verdict on these answers, like an LLM on a filtered or too long text."""

    mute = {"9.0"}

    async def compare(self, query, first, second, repeat=0):
        is_mute = self.mute & {first.answer, second.answer}
        return None if is_mute else await super().compare(query, first, second, repeat)


@pytest.mark.parametrize(("wanted", "chosen"), [("best", "5.0"), ("median", "3.0")])
def test_an_attempt_without_verdicts_is_not_chosen(wanted, chosen):
    judge = Silent(JudgeConfig(noise="none"), truth_of, 0)
    assert choose(judge, wanted) == chosen
    judge.mute = {attempt.answer for attempt in GROUP}
    assert choose(judge, wanted) == "1.0"


def choose(judge, wanted, faulty=()):
    """Return the chosen answer of GROUP; answers in `faulty` break a rule."""
    teacher = Teacher({}, judge, lambda query, attempt: [FAULT] * (attempt.answer in faulty), 1.0, 0)
    return asyncio.run(teacher._choose(QUERY, GROUP, wanted)).answer


def test_a_baseline_is_the_median_of_the_attempts_that_pass_the_rules():
    judge = EmbeddedJudge(JudgeConfig(noise="none"), truth_of, 0)
    every = {attempt.answer for attempt in GROUP}
    cases = {(): "4.0", ("4.0", "5.0"): "3.0", tuple(every - {"9.0"}): "9.0", tuple(every): "1.0"}
    for faulty, chosen in cases.items():
        assert choose(judge, "median", faulty) == chosen and choose(judge, "best", faulty) == "9.0"
