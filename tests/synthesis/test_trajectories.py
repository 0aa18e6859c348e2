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
EVERY = [attempt.answer for attempt in GROUP]


@pytest.mark.parametrize(("faulty", "mute", "best", "median"), [
    ([], [], "9.0", "4.0"), (["4.0", "5.0"], [], "9.0", "3.0"), (EVERY[:-1], [], "9.0", "9.0"),
    (EVERY, [], "9.0", "1.0"), ([], ["9.0"], "5.0", "3.0"), ([], EVERY, "1.0", "1.0"),
])  # fmt: skip
def test_a_baseline_is_the_median_attempt_that_passes_the_rules_and_has_verdicts(faulty, mute, best, median):
    """The judge gives no verdict on the mute answers, like an LLM on a filtered or too long text."""

    class Silent(EmbeddedJudge):
        async def compare(self, query, first, second, repeat=0):
            is_mute = {first.answer, second.answer} & {*mute}
            return None if is_mute else await super().compare(query, first, second, repeat)

    judge = Silent(JudgeConfig(noise="none"), truth_of, 0)
    teacher = Teacher({}, judge, lambda query, attempt: [FAULT] * (attempt.answer in faulty), 1.0, 0)
    for wanted, chosen in (("best", best), ("median", median)):
        assert asyncio.run(teacher._choose(QUERY, GROUP, wanted)).answer == chosen
