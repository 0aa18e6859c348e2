"""A trajectory written anew from its first faulty turn on:
turns before are kept, all tool calls are really made again (Section 5, stage III).

The rewriter is told what was found, beside what every policy is; the trajectory itself shows nothing of that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arenarl.rollout.api_policy import ApiProgress, ApiRolloutEngine
from arenarl.rollout.engine import Attempt
from arenarl.synthesis.prompts import rewrite_system
from arenarl.trajectory import Trajectory


@dataclass(frozen=True)
class Rewrite(Attempt):
    """An attempt that begins with turns of another, as messages, and what was found wrong with the next."""

    kept: tuple[dict[str, Any], ...] = ()
    problems: tuple[str, ...] = ()


class RewritingEngine(ApiRolloutEngine):
    """Rolls out rewrites: a kept turn stands for the model's reply, so that its calls are made as any other's."""

    async def _take_turn(
        self, progress: ApiProgress, attempt: Rewrite, turn_number: int, budget: int, must_answer: bool
    ) -> bool:
        if turn_number < len(attempt.kept):
            self.repeat_turn(progress, attempt.kept[turn_number], turn_number)
            return True
        if turn_number == len(attempt.kept):
            told = {
                "role": "system",
                "content": rewrite_system(self.system or "", attempt.query.language, attempt.problems),
            }
            progress.sent[: progress.sent[0]["role"] == "system"] = [told]
            progress.meta["rewritten_from"] = turn_number + 1
        return await super()._take_turn(progress, attempt, turn_number, budget, must_answer)


def kept_turns(trajectory: Trajectory, turn: int) -> tuple[dict[str, Any], ...]:
    """The assistant messages before turn `turn`, counted from 1;
    0 and what lies beyond the end stand for the last turn."""
    turns: Sequence[dict[str, Any]] = [message for message in trajectory.messages if message["role"] == "assistant"]
    return tuple(turns[: (turn or len(turns)) - 1 if turn <= len(turns) else len(turns) - 1])
