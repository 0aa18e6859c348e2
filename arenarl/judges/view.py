"""Views: the part of a trajectory that a judge sees (Sections 3.2 and 3.3, ArenaRL).

A view shows the answer; or thoughts, tool calls and answer; or the whole trajectory. The LLM judge renders its prompt
from views, the simulated judge examines views. Both read nothing else of a trajectory.
"""

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from arenarl.config.schema import JudgeConfig
from arenarl.domains.domain import ViewKind
from arenarl.trajectory import Trajectory, Turn, answer_of, messages_of, read_turns


@dataclass(frozen=True)
class View:
    """The visible part of one trajectory.

    `messages` are the trajectory's own for "results", otherwise rebuilt from the visible parts. `opening` is the first
    user message, with the query and the world's first observation. Every prompt shows it.
    """

    kind: ViewKind
    messages: list[dict[str, Any]]
    opening: str = ""

    def __hash__(self) -> int:
        """Hash the content, so that functions of a view can be cached."""
        return hash((self.kind, json.dumps(self.messages)))

    @cached_property
    def turns(self) -> list[Turn]:
        return read_turns(self.messages)

    @property
    def answer(self) -> str:
        return answer_of(self.messages)


def view_kind(judge: JudgeConfig, answer_only: bool = False) -> ViewKind:
    """Return the kind of view for one judge call. `answer_only` restricts this call to the answer."""
    if answer_only or not judge.process_aware:
        return "answer"
    return "results" if judge.show_tool_results else "calls"


def view_of(trajectory: Trajectory, kind: ViewKind) -> View:
    """Return the view of a trajectory. Its last turn holds the answer, if there is one."""
    opening = next((message["content"] for message in trajectory.messages if message["role"] == "user"), "")
    if kind == "results":
        return View(kind, trajectory.messages, opening)
    turns = read_turns(trajectory.messages)
    if kind == "answer":
        return View(kind, messages_of([Turn("", [], [], turns[-1].answer if turns else None)]), opening)
    return View(kind, messages_of(replace(turn, observations=[]) for turn in turns), opening)
