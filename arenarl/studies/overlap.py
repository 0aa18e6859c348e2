"""How much of a step's judging can go on while the step generates and computes log-probabilities,
and how much really did.

Measured against what the dependency graph allows, with judge calls of a known length and so many at once. A call can
start once both its trajectories have ended, if it is sure to be made (`sure_calls`); else once its group is complete,
and what it waits for in the tournament is over. From the times at which the trajectories really ended follows the least
time at which all judging can be over, whatever the scheduler (`least_end_s`). With E, when the step asks for its
rewards:

    total      = least time that judging takes if all of it begins at E
    least wait = least time that it goes on after E, beginning as early as the graph allows
    wait       = seconds that the step really waited, from E on

`judge_hidden_possible` = (total - least wait) / total: the share of the judging that can be hidden at all.
`judge_hidden_share` = (total - wait) / (total - least wait): how much of that really was. Both errors are on the strict
side: what HTTP and our own overhead take counts as wait, and the least times may be out of any scheduler's reach.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from operator import itemgetter

from aiohttp import ClientSession, ClientTimeout, TCPConnector

from arenarl.judges.judge import Verdict
from arenarl.studies.bench_tournament import GRACE_S
from arenarl.system.loop_thread import LoopThread
from arenarl.system.seeds import stable_seed
from arenarl.tournament.ranking import Match, Ranking
from arenarl.tournament.topologies import surely_meets
from arenarl.training.judging import Judging
from arenarl.trajectory import Query, Trajectory


@dataclass(frozen=True)
class Overlap:
    """One step's judging. Seconds; `generation_s` is the time from the first trajectory's end to E."""

    calls: int
    generation_s: float
    total_s: float
    least_wait_s: float
    wait_s: float

    @property
    def possible(self) -> float:
        """`judge_hidden_possible`, 0 to 1."""
        return (self.total_s - self.least_wait_s) / self.total_s

    @property
    def share(self) -> float | None:
        """`judge_hidden_share`; None where nothing can be hidden."""
        can_be_hidden_s = self.total_s - self.least_wait_s
        return (self.total_s - self.wait_s) / can_be_hidden_s if can_be_hidden_s else None


def measure_overlap(
    judging: Judging, topology: str, concurrency: int, delay_s: float, asked: float, answered: float
) -> Overlap:
    """Of judging that was asked for its outcomes, E, and gave them, at these times by perf_counter."""
    rankings = [outcome.ranking for outcome in judging.outcomes()]
    ended = [list(group.ended_G) for group in judging.groups]
    at_once = [[asked] * len(ended_G) for ended_G in ended]
    return Overlap(
        sum(ranking.judge_calls for ranking in rankings),
        asked - min(map(min, ended)),
        least_end_s(at_once, rankings, topology, concurrency, delay_s) - asked,
        max(0.0, least_end_s(ended, rankings, topology, concurrency, delay_s) - asked),
        answered - asked,
    )


def least_end_s(
    ended: Sequence[Sequence[float]], rankings: Sequence[Ranking], topology: str, concurrency: int, delay_s: float
) -> float:
    """No scheduler is through with the groups' calls before, if trajectory g of group k ends at `ended[k][g]`.

    Calls that can start at `t` or later take `delay_s` for every `concurrency` of them, from `t` on; and if each has
    `k` others after it, one by one, these come on top. This holds for every `t` and `k`.
    """
    is_sure = surely_meets(topology) != "nobody"
    calls: list[tuple[float, int]] = []  # (earliest start, calls that come after it, one by one)
    for ended_G, ranking in zip(ended, rankings, strict=True):
        for match, after in zip(ranking.matches, chains_after(ranking.matches), strict=True):
            waits_for_two = is_sure and match.round == 0
            start = max(ended_G[match.i], ended_G[match.j]) if waits_for_two else max(ended_G) + match.round * delay_s
            calls += [(start, after)] * len(match.calls)
    ends = []
    for after in {after for _, after in calls}:
        latest_first = sorted((start for start, others in calls if others >= after), reverse=True)
        ends += [
            start + delay_s * (ceil(count / concurrency) + after) for count, start in enumerate(latest_first, start=1)
        ]
    return max(ends)


def chains_after(matches: Sequence[Match]) -> list[int]:
    """For each match, the longest chain of later ones that wait for it: an entrant plays its matches one by one.
    Sorted by round."""
    after = [0] * len(matches)
    for k in reversed(range(len(matches))):
        one = matches[k]
        waiting = [
            n
            for n in range(k + 1, len(matches))
            if matches[n].round > one.round and {one.i, one.j} & {matches[n].i, matches[n].j}
        ]
        after[k] = max((1 + after[n] for n in waiting), default=0)
    return after


class HTTPJudge:
    """A judge of trajectories at the address of a `delayed_judge`, which admits `concurrency` calls at once."""

    def __init__(self, url: str, concurrency: int):
        self.url, self.concurrency = url, concurrency

    def __enter__(self) -> "HTTPJudge":
        self._thread = LoopThread("http-judge")
        self._thread.submit(self._open()).result()
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.submit(self._session.close()).result()
        self._thread.close()

    async def compare(self, query: Query, first: Trajectory, second: Trajectory, repeat: int = 0) -> Verdict:
        asked = {"group": query.query_id, "shown": [stable_seed(one.messages) for one in (first, second)]}
        scores = await self._thread.run(self._ask(asked))
        return Verdict(tuple({"total": score} for score in scores), itemgetter("total"))

    async def _open(self) -> None:
        self._slots = asyncio.Semaphore(self.concurrency)
        self._session = ClientSession(
            self.url, connector=TCPConnector(limit=0), timeout=ClientTimeout(sock_read=GRACE_S), raise_for_status=True
        )

    async def _ask(self, asked: dict) -> list[float]:
        async with self._slots, self._session.post("/judge", json=asked) as reply:
            return (await reply.json())["scores"]
