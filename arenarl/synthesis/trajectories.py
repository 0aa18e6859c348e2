"""Stage `trajectories`: a teacher model solves queries several times with the run's tools; a tournament of the judge
chooses one attempt (Section 5).

An SFT query keeps its best attempt, which is inspected and rewritten later. A test query keeps the attempt of median
rank among the attempts without a problem by the rules, as stored baseline. Attempts at one query differ by their seeds,
which are also part of the key of stored replies.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from arenarl.domains.domain import median_of
from arenarl.judges.judge import Judge, scores_and_detail
from arenarl.rollout.api_policy import ApiRolloutEngine
from arenarl.rollout.engine import Attempt
from arenarl.synthesis.rules import Problem
from arenarl.system.progress import Bar
from arenarl.system.seeds import stable_seed
from arenarl.tournament.play import play_tournament
from arenarl.trajectory import Query, Trajectory, with_system_prompt

Wanted = Literal["best", "median"]
_TOPOLOGIES = {"best": "seeded_single_elimination", "median": "round_robin"}  # only round_robin ranks the middle well


@dataclass(frozen=True)
class Teacher:
    """Solves queries with a strong model. `problems` are the rules that a stored baseline must pass."""

    engines: Mapping[str, ApiRolloutEngine]  # by language
    judge: Judge | None  # chooses among several attempts
    problems: Callable[[Query, Trajectory], list[Problem]]
    temperature: float
    seed: int

    def solve(self, queries: Sequence[Query], attempts: int, wanted: Wanted) -> list[Trajectory]:
        """Return the chosen attempt at each query, in order. It is invalid only if all attempts are."""
        planned = [
            Attempt(query, self.temperature, stable_seed(self.seed, query.query_id, number))
            for query in queries
            for number in range(attempts)
        ]
        trajectories = roll_out(self.engines, planned, f"{wanted} of {attempts} attempts")

        async def choose_all() -> list[Trajectory]:
            groups = (trajectories[index : index + attempts] for index in range(0, len(trajectories), attempts))
            choices = [self._choose(query, group, wanted) for query, group in zip(queries, groups, strict=True)]
            return await asyncio.gather(*choices)

        return asyncio.run(choose_all())

    async def _choose(self, query: Query, group: Sequence[Trajectory], wanted: Wanted) -> Trajectory:
        """Choose an attempt by its rank; without verdicts, choose the first valid attempt. If no attempt passes the
        rules, a baseline is the first valid attempt."""
        valid = [trajectory for trajectory in group if trajectory.valid]
        if wanted == "median":
            valid = [trajectory for trajectory in valid if not self.problems(query, trajectory)] or valid[:1]
        if len(valid) < 2 or self.judge is None:
            return (valid or group)[0]

        async def compare(i: int, j: int) -> tuple | None:
            return scores_and_detail(await self.judge.compare(query, valid[i], valid[j]))

        seed, entrants = stable_seed(self.seed, query.query_id), [repr(trajectory.messages) for trajectory in valid]
        ranking = await play_tournament(
            _TOPOLOGIES[wanted], len(valid), compare, seed, entrants=entrants, failures=TimeoutError
        )
        ranks = zip(valid, ranking.ranks_G, strict=True)
        quality = [(trajectory, -rank) for trajectory, rank in ranks if rank is not None]
        if not quality:
            return valid[0]
        if wanted == "median":
            return median_of(*zip(*quality, strict=True))
        return max(quality, key=lambda ranked: ranked[1])[0]


def roll_out(engines: Mapping[str, ApiRolloutEngine], attempts: Sequence[Attempt], title: str) -> list[Trajectory]:
    """Roll out each attempt with the engine of its language; return trajectories in order, without system prompt."""
    by_index: dict[int, Trajectory] = {}
    with Bar(title, len(attempts)) as bar:
        for language, engine in engines.items():
            indices = [index for index, attempt in enumerate(attempts) if attempt.query.language == language]
            rolled = engine.roll_out([attempts[index] for index in indices], lambda *_: bar.update())
            by_index |= zip(indices, rolled, strict=True)
    ordered = (trajectory for _, trajectory in sorted(by_index.items()))
    return [replace(trajectory, messages=with_system_prompt(trajectory.messages, None)) for trajectory in ordered]
