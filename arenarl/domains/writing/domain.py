"""Writing as a domain: the truth of the embedded tasks, the scripted writer and its data.

Queries without such constraints (one's own, a benchmark's) have a rubric and no truth;
published ones (`data.source`) likewise.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from arenarl.domains.domain import Domain
from arenarl.domains.writing.queries import SUBTASKS
from arenarl.domains.writing.truth import WritingTruth, examine, has_truth, unmet
from arenarl.domains.writing.writer import solve, writing_splits
from arenarl.trajectory import Query, Trajectory

HERE = Path(__file__).parent


class WritingDomain(Domain):
    name = "writing"
    subtasks = SUBTASKS
    sources = (HERE.parent / "domain.py", HERE.parent / "rubrics.py", *sorted(HERE.glob("*.py")))

    def has_truth(self, query: Query) -> bool:
        return has_truth(query)

    def examine(self, query: Query, messages: list[dict[str, Any]]) -> WritingTruth:
        return examine(query, messages)

    def contradictions(self, query: Query, trajectory: Trajectory) -> list[str]:
        return unmet(query, trajectory.messages) if has_truth(query) else []

    def solve(self, query: Query, environment: Any, rng: random.Random, skill: float) -> Trajectory:
        return solve(query, rng, skill)

    def splits(
        self, environment: Any, watch: Callable[[list], Iterable] = iter, client: Any = None
    ) -> Iterator[tuple[str, list[Any]]]:
        return writing_splits(self.data, watch)
