"""Judge a step's groups in a thread, while their trajectories are still being generated.

The rollouts hand over each trajectory as it ends; the judging coroutine of a group awaits the trajectories it needs.
Before the group is complete, a judge call starts only if the tournament will certainly make it. So ranks, scores and
the number of calls are the same as in judging afterwards. The thread has its own event loop, so the batching of
trajectories never depends on when verdicts arrive. This module does not depend on the judge or the method.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from threading import Thread
from time import perf_counter
from typing import Any, Generic, TypeVar

from arenarl.system.event_loops import mark_error_read
from arenarl.tournament.calls import within
from arenarl.trajectory import Query, RolloutGroup, Trajectory

Outcome = TypeVar("Outcome")


class IncomingGroup:
    """A rollout group of `size` trajectories that arrive from one thread and can be awaited in another."""

    def __init__(self, query: Query, size: int):
        self.query = query
        self.ended_G: list[float | None] = [None] * size  # perf_counter when each trajectory was handed over
        self.calls: list[tuple[float, float]] = []  # perf_counter at start and end of each judge call
        self._trajectories: list[Future[Trajectory]] = [Future() for _ in range(size)]
        for trajectory in self._trajectories:
            # running futures cannot be cancelled, so the rollout can set their results even if judging ended early
            trajectory.set_running_or_notify_cancel()

    @classmethod
    def of(cls, group: RolloutGroup) -> "IncomingGroup":
        """Wrap a complete group."""
        incoming = cls(group.query, len(group.trajectories))
        for row, trajectory in enumerate(group.trajectories):
            incoming.hand_over(row, trajectory)
        return incoming

    def __len__(self) -> int:
        return len(self._trajectories)

    def hand_over(self, row: int, trajectory: Trajectory) -> None:
        self.ended_G[row] = perf_counter()
        self._trajectories[row].set_result(trajectory)

    async def trajectory(self, row: int) -> Trajectory:
        return await asyncio.wrap_future(self._trajectories[row])

    async def complete(self) -> RolloutGroup:
        return RolloutGroup(self.query, [await self.trajectory(row) for row in range(len(self))])

    @contextmanager
    def calling(self):
        """Record start and end of the judge call in the `with` block."""
        start = perf_counter()
        try:
            yield
        finally:
            self.calls.append((start, perf_counter()))


class Judging(Generic[Outcome]):
    """Starts to judge all groups at once with the coroutine `judge`, in a new thread."""

    def __init__(self, groups: Sequence[IncomingGroup], judge: Callable[[IncomingGroup], Awaitable[Outcome]]):
        self.groups = groups
        self._judge = judge
        self._outcomes: Future[list[Outcome]] = Future()
        self.ended: float | None = None  # perf_counter at the end of the last group's judging
        # daemon: after a failed rollout the thread waits forever, and must not keep the process alive
        Thread(target=self._run, name="judging", daemon=True).start()

    def _run(self) -> None:
        async def judge_all() -> list[Outcome]:
            return await asyncio.gather(*map(self._judge, self.groups))

        try:
            outcomes = asyncio.run(judge_all())
            self.ended = perf_counter()
            self._outcomes.set_result(outcomes)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that reads the outcomes
            self._outcomes.set_exception(error)

    def check(self) -> None:
        """Raise the error that ended the judging, if any, so that generation can stop early."""
        if self._outcomes.done():
            self._outcomes.result()

    def wait(self) -> None:
        """Wait until judging has ended, with outcomes or an error."""
        self._outcomes.exception()

    def outcomes(self) -> list[Outcome]:
        """Wait for all outcomes and return them in the order of the groups. Raises the errors of `judge`."""
        return self._outcomes.result()

    def busy_s(self, until: float) -> float:
        """Return the seconds before `until`, by perf_counter, with at least one judge call in progress.

        Call it after all judge calls have ended.
        """
        busy_s, covered = 0.0, 0.0
        for start, end in sorted(call for group in self.groups for call in group.calls):
            start, end = max(start, covered), min(end, until)
            busy_s, covered = busy_s + max(0.0, end - start), max(covered, end)
        return busy_s


class EarlyCalls:
    """The judge calls of one tournament: `enter` starts calls that have become certain, `compare` returns replies.

    `surely_meets` is the topology's rule for certain matches. `ask` makes one judge call for two rows that have
    entered. `timeout_s` counts from the start of each call.
    """

    def __init__(
        self, surely_meets: str, ask: Callable[[int, int], Awaitable[Any]], bidirectional: bool, timeout_s: float | None
    ):
        self.surely_meets, self.ask, self.bidirectional, self.timeout_s = surely_meets, ask, bidirectional, timeout_s
        self.entered: dict[int, Hashable | None] = {}
        self._under_way: dict[tuple[Hashable, Hashable], asyncio.Task] = {}  # (shown first, shown second) -> reply

    def enter(self, row: int, entrant: Hashable | None) -> None:
        self.entered[row] = entrant
        for i, j in sure_calls(self.surely_meets, self.entered, self.bidirectional):
            pair = self.entered[i], self.entered[j]
            if pair not in self._under_way:
                task = asyncio.create_task(within(self.timeout_s, partial(self.ask, i, j)))
                task.add_done_callback(mark_error_read)  # only the first error of a tournament is raised
                self._under_way[pair] = task

    async def compare(self, i: int, j: int) -> Any:
        """Return the reply for rows i and j; the call may have shown identical trajectories instead."""
        return await (self._under_way.get((self.entered[i], self.entered[j])) or self.ask(i, j))


def sure_calls(surely_meets: str, entered: Mapping[int, Hashable | None], bidirectional: bool) -> list[tuple[int, int]]:
    """Return the calls (shown first, shown second) that a tournament makes for any content of the missing rows.

    The anchor is the first valid row, so it is known once all rows before it have entered. With only one order, a pair
    shows the lower row first. That order is known once all rows before it have entered, because an earlier row could be
    identical to the pair's other entrant. `entered` maps a row to its entrant's key, which is equal for identical
    trajectories, and None for an invalid one.

    >>> sure_calls("anchor", {0: None, 1: "a", 3: "b", 4: "a"}, bidirectional=False)
    [(1, 3)]
    >>> sure_calls("anchor", {1: "a", 3: "b"}, bidirectional=False)  # row 0 may become the anchor
    []
    >>> sure_calls("everyone", {1: "a", 3: "b"}, bidirectional=True)
    [(1, 3), (3, 1)]
    """
    first_rows: dict[Hashable, int] = {}
    for row in sorted(entered):
        if entered[row] is not None:
            first_rows.setdefault(entered[row], row)
    rows = list(first_rows.values())
    known = next(row for row in range(len(entered) + 1) if row not in entered)  # all earlier rows have entered
    if surely_meets == "anchor":
        pairs = [(rows[0], row) for row in rows[1:] if rows[0] < known]
    elif surely_meets == "everyone":
        pairs = [(i, j) for i, j in combinations(rows, 2) if bidirectional or i < known]
    else:
        pairs = []
    return pairs + [(j, i) for i, j in pairs] if bidirectional else pairs
