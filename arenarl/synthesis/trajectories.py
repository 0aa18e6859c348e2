"""Stage `trajectories`: a strong model solves queries with the run's own tools, several times each; a tournament of the
judge chooses (Section 5).

Of an SFT query the best attempt is kept, of a test query that of median rank, its stored baseline. Attempts at one
query differ by their seed, under which the store keeps their replies.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from arenarl.domains.domain import median_of
from arenarl.judges.judge import Judge, scores_and_detail
from arenarl.rollout.api_policy import ApiRolloutEngine
from arenarl.rollout.engine import Attempt
from arenarl.system.progress import Bar
from arenarl.system.seeds import stable_seed
from arenarl.tournament.play import play_tournament
from arenarl.trajectory import Query, Trajectory, told

Wanted = Literal["best", "median"]
_TOPOLOGIES = {"best": "seeded_single_elimination", "median": "round_robin"}  # the second ranks the middle too


@dataclass(frozen=True)
class Teacher:
    """Solves queries: with an engine for each language, at a temperature,
    and with a judge where there are several attempts to choose from."""

    engines: Mapping[str, ApiRolloutEngine]
    judge: Judge | None
    temperature: float
    seed: int

    def solve(self, queries: Sequence[Query], attempts: int, wanted: Wanted) -> list[Trajectory]:
        """The chosen attempt at each query, in their order; an invalid one where all are, of which inspection tells."""
        seeds = [
            (query, stable_seed(self.seed, query.query_id, number)) for query in queries for number in range(attempts)
        ]
        made = roll_out(
            self.engines,
            [Attempt(query, self.temperature, seed) for query, seed in seeds],
            f"{wanted} of {attempts} attempts",
        )
        groups = [made[index * attempts : (index + 1) * attempts] for index in range(len(queries))]

        async def choose_all() -> list[Trajectory]:
            return await asyncio.gather(
                *(self._choose(query, group, wanted) for query, group in zip(queries, groups, strict=True))
            )

        return asyncio.run(choose_all())

    async def _choose(self, query: Query, group: Sequence[Trajectory], wanted: Wanted) -> Trajectory:
        """By rank, of those that have one; where no verdict could be had, the first valid one."""
        valid = [trajectory for trajectory in group if trajectory.valid]
        if len(valid) < 2 or self.judge is None:
            return (valid or group)[0]

        async def compare(i: int, j: int) -> tuple | None:
            return scores_and_detail(await self.judge.compare(query, valid[i], valid[j]))

        same = [repr(trajectory.messages) for trajectory in valid]
        ranking = await play_tournament(
            _TOPOLOGIES[wanted], len(valid), compare, stable_seed(self.seed, query.query_id), entrants=same
        )
        ranked = [
            (trajectory, -rank) for trajectory, rank in zip(valid, ranking.ranks_G, strict=True) if rank is not None
        ]
        if not ranked:
            return valid[0]
        known, quality = zip(*ranked, strict=True)
        return median_of(known, quality) if wanted == "median" else known[quality.index(max(quality))]


def roll_out(engines: Mapping[str, ApiRolloutEngine], attempts: Sequence[Attempt], title: str) -> list[Trajectory]:
    """The trajectories in the order of the attempts, each by the engine of its query's language, without what the model
    was told before the query."""
    made: dict[int, Trajectory] = {}
    with Bar(title, len(attempts)) as bar:
        for language, engine in engines.items():
            places = [index for index, attempt in enumerate(attempts) if attempt.query.language == language]
            made |= zip(
                places, engine.roll_out([attempts[index] for index in places], lambda *_: bar.update()), strict=True
            )
    return [replace(trajectory, messages=told(trajectory.messages, None)) for _, trajectory in sorted(made.items())]
