"""Open-Travel as a domain (Section 5.1): subtasks, truth, scripted teacher and data of the embedded world."""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from arenarl.domains.domain import Domain, Split, Watch
from arenarl.domains.travel.constraints import FORMS
from arenarl.domains.travel.contradictions import contradictions_of
from arenarl.domains.travel.queries import HELD_OUT, SUBTASKS, make_queries
from arenarl.domains.travel.teacher import Teacher
from arenarl.domains.travel.tools import TravelEnvironment
from arenarl.domains.travel.truth import TravelTruth, examine, has_truth
from arenarl.domains.travel.view_truth import examine_view
from arenarl.domains.travel.world import World, build_world
from arenarl.trajectory import Query, Trajectory

HERE = Path(__file__).parent


class TravelDomain(Domain):
    name = "travel"
    subtasks = SUBTASKS
    held_out = (HELD_OUT,)
    sources = tuple(HERE.parent / f"{file}.py" for file in ("domain", "rubrics", "stated_facts", "bm25"))
    sources += tuple(sorted(HERE.glob("*.py")))

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

    def splits(self, environment: TravelEnvironment, watch: Watch = iter, client: Any = None) -> Iterator[Split]:
        """Yield the splits of queries that the module `queries` draws and the teacher solves."""
        make = partial(make_queries, self.world, language=self.data.language, taken=set())
        return self._draw_splits(environment, watch, make)
