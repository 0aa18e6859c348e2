"""The choice among the teacher's attempts."""

import asyncio

import pytest
from groups import QUERY, attempt, truth_of

from arenarl.config.schema import JudgeConfig
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.synthesis.trajectories import Teacher

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
    assert asyncio.run(Teacher({}, judge, 1.0, 0)._choose(QUERY, GROUP, wanted)).answer == chosen
    judge.mute = {attempt.answer for attempt in GROUP}
    assert asyncio.run(Teacher({}, judge, 1.0, 0)._choose(QUERY, GROUP, wanted)).answer == "1.0"
