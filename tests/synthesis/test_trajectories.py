"""Which of the teacher's attempts is taken."""

import asyncio

import pytest
from groups import QUERY, attempt, truth_of

from arenarl.config.schema import JudgeConfig
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.synthesis.trajectories import Teacher

GROUP = [attempt(quality) for quality in (1.0, 2.0, 3.0, 4.0, 5.0, 9.0)]


class Silent(EmbeddedJudge):
    """Has no verdict where one of these answers is shown, as of a text that is filtered, or too long for it."""

    mute = {"9.0"}

    async def compare(self, query, first, second, repeat=0):
        return (
            None if self.mute & {first.answer, second.answer} else await super().compare(query, first, second, repeat)
        )


@pytest.mark.parametrize(("wanted", "taken"), [("best", "5.0"), ("median", "3.0")])
def test_an_attempt_that_cannot_be_judged_leaves_the_choice_among_the_others(wanted, taken):
    judge = Silent(JudgeConfig(noise="none"), truth_of, 0)
    assert asyncio.run(Teacher({}, judge, 1.0, 0)._choose(QUERY, GROUP, wanted)).answer == taken
    judge.mute = {one.answer for one in GROUP}
    assert asyncio.run(Teacher({}, judge, 1.0, 0)._choose(QUERY, GROUP, wanted)).answer == "1.0"
