"""Writing as a domain: the truth of the embedded tasks, the scripted writer and its data.

Queries with other constraints, such as your own, a benchmark's or published ones (`data.source`), have a rubric and no
truth.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from arenarl.domains.domain import Domain, teacher_skills
from arenarl.domains.writing.queries import SUBTASKS, make_queries
from arenarl.domains.writing.truth import examine, find_unmet, has_truth
from arenarl.domains.writing.writer import median, solve
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

    def splits(
        self, environment: Any, watch: Callable[[list], Iterable] = iter, client: Any = None
    ) -> Iterator[tuple[str, list[Any]]]:
        """Yield the splits by file name: test queries, stored baselines, RL queries, SFT trajectories.
        Each split is spread over the subtasks. `watch` wraps the queries that the writer answers, to show progress."""
        config, taken, seed = self.data, set(), f"writing{self.data.seed}"

        def draw(split: str, count: int) -> list[Query]:
            queries = []
            for index, subtask in enumerate(SUBTASKS):
                size = count // len(SUBTASKS) + (index < count % len(SUBTASKS))
                queries += make_queries(subtask, config.language, size, f"{seed}-{split}", taken)
            random.Random(f"{seed}-{split}").shuffle(queries)
            return queries

        test = draw("test", len(SUBTASKS) * config.test_per_subtask)
        rl, sft = draw("rl", config.rl_size), draw("sft", config.sft_size)
        yield "test_queries", test
        rng = random.Random(f"{seed}-baselines")
        baselines = [median(query, rng, config.baseline_skill, config.baseline_attempts) for query in watch(test)]
        yield "test_baselines", [baseline.to_record() for baseline in baselines]
        yield "rl_queries", rl
        rng = random.Random(f"{seed}-teacher")
        skills = teacher_skills(config, rng, len(sft))
        yield "sft", [solve(query, rng, skill).to_record() for query, skill in zip(watch(sft), skills, strict=True)]
