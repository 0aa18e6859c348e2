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
from arenarl.trajectory import Query, Trajectory, with_system_prompt

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
        tries = [
            Attempt(query, self.temperature, stable_seed(self.seed, query.query_id, number))
            for query in queries
            for number in range(attempts)
        ]
        made = roll_out(self.engines, tries, f"{wanted} of {attempts} attempts")

        async def choose_all() -> list[Trajectory]:
            groups = (made[index : index + attempts] for index in range(0, len(made), attempts))
            choices = [self._choose(query, group, wanted) for query, group in zip(queries, groups, strict=True)]
            return await asyncio.gather(*choices)

        return asyncio.run(choose_all())

    async def _choose(self, query: Query, group: Sequence[Trajectory], wanted: Wanted) -> Trajectory:
        """By rank, of those that have one; where no verdict could be had, the first valid one."""
        valid = [trajectory for trajectory in group if trajectory.valid]
        if len(valid) < 2 or self.judge is None:
            return (valid or group)[0]

        async def compare(i: int, j: int) -> tuple | None:
            return scores_and_detail(await self.judge.compare(query, valid[i], valid[j]))

        seed, same = stable_seed(self.seed, query.query_id), [repr(trajectory.messages) for trajectory in valid]
        ranking = await play_tournament(_TOPOLOGIES[wanted], len(valid), compare, seed, entrants=same)
        ranks = zip(valid, ranking.ranks_G, strict=True)
        quality = [(trajectory, -rank) for trajectory, rank in ranks if rank is not None]
        if not quality:
            return valid[0]
        if wanted == "median":
            return median_of(*zip(*quality, strict=True))
        return max(quality, key=lambda ranked: ranked[1])[0]


def roll_out(engines: Mapping[str, ApiRolloutEngine], attempts: Sequence[Attempt], title: str) -> list[Trajectory]:
    """The trajectories in the order of the attempts, each by the engine of its query's language, without what the model
    was told before the query."""
    made: dict[int, Trajectory] = {}
    with Bar(title, len(attempts)) as bar:
        for language, engine in engines.items():
            places = [index for index, attempt in enumerate(attempts) if attempt.query.language == language]
            rolled = engine.roll_out([attempts[index] for index in places], lambda *_: bar.update())
            made |= zip(places, rolled, strict=True)
    return [
        replace(trajectory, messages=with_system_prompt(trajectory.messages, None))
        for _, trajectory in sorted(made.items())
    ]
