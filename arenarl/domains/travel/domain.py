"""Open-Travel as a domain: the embedded world's truth, the paper's five subtasks,
the scripted teacher and its data (Section 5.1)."""

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from arenarl.domains.domain import Domain
from arenarl.domains.travel.constraints import FORMS
from arenarl.domains.travel.contradictions import contradictions_of
from arenarl.domains.travel.queries import SUBTASKS
from arenarl.domains.travel.teacher import HELD_OUT, Teacher, travel_splits
from arenarl.domains.travel.tools import TravelEnvironment
from arenarl.domains.travel.truth import TravelTruth, examine, has_truth
from arenarl.domains.travel.view_truth import examine_view
from arenarl.domains.travel.world import World, build_world
from arenarl.trajectory import Query, Trajectory

if TYPE_CHECKING:
    from arenarl.llm.client import LLMClient

HERE = Path(__file__).parent


class TravelDomain(Domain):
    name = "travel"
    subtasks = SUBTASKS
    held_out = (HELD_OUT,)
    sources = (
        *(HERE.parent / f"{name}.py" for name in ("domain", "rubrics", "stated_facts")),
        *sorted(HERE.glob("*.py")),
    )

    @property
    def world(self) -> World:
        return build_world(self.environment.world_seed)

    def has_truth(self, query: Query) -> bool:
        return has_truth(self.world, query)

    def examine(self, query: Query, messages: list[dict[str, Any]]) -> TravelTruth:
        return examine(self.world, query, messages)

    def examine_view(self, query: Query, messages: list[dict[str, Any]]) -> TravelTruth:
        return examine_view(self.world, query, messages)

    def constraints_of(self, subtask: str) -> type[BaseModel] | None:
        return FORMS.get(subtask)

    def contradictions(self, query: Query, trajectory: Trajectory) -> list[str]:
        return contradictions_of(query, trajectory.answer)

    def solve(self, query: Query, environment: TravelEnvironment, rng: random.Random, skill: float) -> Trajectory:
        return Teacher(self.world, environment).solve(query, rng, skill)

    def splits(
        self,
        environment: TravelEnvironment,
        watch: Callable[[list], Iterable] = iter,
        client: "LLMClient | None" = None,
    ) -> Iterator[tuple[str, list[Any]]]:
        return travel_splits(self.world, environment, self.data, watch)
