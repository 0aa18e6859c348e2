"""Play-offs: a tournament per test query between all policies' trajectories, with the stored baseline as the anchor.

It runs after the evaluation, for the report only: no figure uses it. The seeding matches are the evaluation's matches
against the baseline, whose verdicts are reused; `evaluate.bracket` continues with a bracket. Invalid trajectories are
not judged, and identical ones enter once. Not in the paper.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from arenarl.evaluation.evaluation import Case
from arenarl.judges.judge import Judge, scores_and_detail
from arenarl.system.seeds import stable_seed
from arenarl.tournament.play import play_tournament
from arenarl.tournament.ranking import Ranking, group_entrants, rank_trajectories
from arenarl.tournament.schedules import Standing
from arenarl.trajectory import Query, Trajectory

BASELINE = "baseline"


def play_offs(
    queries: Sequence[Query],
    baselines: dict[str, Trajectory],
    cases: dict[str, Sequence[Case]],
    judges: Sequence[Judge],
    bracket: bool,
    seed: int,
    has_stand_ins: bool = False,
) -> list[dict[str, Any]]:
    """Return the lines of runs/<run>/evaluate/tournaments.jsonl, one per query and judge.

    Args:
        cases: entrant's name -> its cases, in the order of `queries`.
        bracket: with the first judge, play a seeded single elimination; otherwise play only the seeding matches.
        has_stand_ins: the baselines are another policy's trajectories; an invalid one ranks last.
    """

    async def play(query: Query, k: int) -> dict[str, Any]:
        """Play the tournament of a query by judge `k`. Trajectory 0 is the baseline, trajectory i is of case i - 1."""
        topology = "seeded_single_elimination" if bracket and k == 0 else "anchor"
        baseline, of_query = baselines[query.query_id], by_query[query.query_id]
        trajectories = [baseline, *(case.trajectory for case in of_query)]
        entrants = [repr(trajectory.messages) for trajectory in trajectories]
        # a stored baseline is judged even if it is invalid, as in the win rate
        is_judged = not baseline.is_void and (baseline.valid or not has_stand_ins)
        valid_G = [is_judged, *(case.trajectory.valid for case in of_query)]

        async def compare(i: int, j: int) -> tuple | None:
            if j == 0:
                return scores_and_detail(of_query[i - 1].calls[k][0])
            if i == 0:
                return scores_and_detail(of_query[j - 1].calls[k][1])
            return scores_and_detail(await judges[k].compare(query, trajectories[i], trajectories[j]))

        if is_judged or topology != "anchor":
            ranking = await play_tournament(
                topology, len(trajectories), compare, stable_seed(seed, query.query_id),
                entrants=entrants, valid_G=valid_G, failures=TimeoutError,
            )  # fmt: skip
        else:  # no matches: all valid trajectories share the first rank
            members = group_entrants(len(trajectories), entrants, valid_G)
            ties = [Standing((0.0,), None)] * len(members)
            ranking = Ranking(*rank_trajectories(len(trajectories), members, ties), [])
        line = {"query_id": query.query_id, "judge": k, "topology": topology, "entrants": [BASELINE, *cases]}
        return line | asdict(ranking)

    async def play_all() -> list[dict[str, Any]]:
        return await asyncio.gather(*(play(query, k) for query in queries for k in range(len(judges))))

    ids = [query.query_id for query in queries]
    by_query = dict(zip(ids, zip(*cases.values(), strict=True), strict=True))
    return asyncio.run(play_all())
