"""Writing as a domain: the truth of the embedded tasks, the scripted writer and its data.

Queries with other constraints, such as your own, a benchmark's or published ones (`data.source`), have a rubric and no
truth.
"""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from arenarl.domains.domain import Domain, Split, Watch
from arenarl.domains.writing.queries import SUBTASKS, make_queries
from arenarl.domains.writing.truth import examine, find_unmet, has_truth
from arenarl.domains.writing.writer import solve
from arenarl.trajectory import Query, Trajectory

HERE = Path(__file__).parent


class WritingDomain(Domain):
    name = "writing"
    subtasks = SUBTASKS
    sources = (HERE.parent / "domain.py", HERE.parent / "rubrics.py", *sorted(HERE.glob("*.py")))
    has_truth, examine = staticmethod(has_truth), staticmethod(examine)

    def contradictions(self, query: Query, trajectory: Trajectory) -> list[str]:
        return find_unmet(query, trajectory.messages) if has_truth(query) else []

    def solve(self, query: Query, environment: Any, rng: random.Random, skill: float) -> Trajectory:
        return solve(query, rng, skill)

    def splits(self, environment: Any, watch: Watch = iter, client: Any = None) -> Iterator[Split]:
        """Yield the splits of queries that the module `queries` draws and the teacher solves."""
        make = partial(make_queries, language=self.data.language, taken=set())
        return self._draw_splits(environment, watch, make)
