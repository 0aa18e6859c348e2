"""What a judge is shown of a trajectory, made in one place: the answer alone, with thoughts and tool calls, or with their results too.

The LLM's prompt is rendered from views, and the simulated judge examines them; neither gets the trajectory. So a verdict cannot depend on what
is not shown (3.2 and 3.3, ArenaRL).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from arenarl.config.schema import JudgeConfig
from arenarl.domains.domain import ViewKind
from arenarl.trajectory import Trajectory, Turn, answer_of, messages_of, read_turns


@dataclass(frozen=True)
class View:
    """`messages` of kind "results" are the trajectory's own; the others are made anew from what is shown.

    `opening` is the first user message: the query, and below it what a world showed first. It stands in every prompt.
    """

    kind: ViewKind
    messages: list[dict[str, Any]]
    opening: str = ""

    @cached_property
    def turns(self) -> list[Turn]:
        return read_turns(self.messages)

    @property
    def answer(self) -> str:
        return answer_of(self.messages)


def view_kind(judge: JudgeConfig, answer_only: bool = False) -> ViewKind:
    """The kind of view that a judge gets in a call; `answer_only` is the call's wish."""
    if answer_only or not judge.process_aware:
        return "answer"
    return "results" if judge.show_tool_results else "calls"


def view_of(trajectory: Trajectory, kind: ViewKind) -> View:
    """The view of a trajectory. Its last turn holds the answer, if it has one."""
    opening = next((message["content"] for message in trajectory.messages if message["role"] == "user"), "")
    if kind == "results":
        return View(kind, trajectory.messages, opening)
    turns = read_turns(trajectory.messages)
    if kind == "answer":
        return View(kind, messages_of([Turn("", [], [], turns[-1].answer if turns else None)]), opening)
    return View(kind, messages_of(replace(turn, observations=[]) for turn in turns), opening)
