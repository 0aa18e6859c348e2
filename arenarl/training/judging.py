"""A step's judging in a thread of its own, beside the rollouts:
a group is judged while it, or another one, is being generated.

The rollouts hand over each trajectory as it ends; who judges a group awaits what it needs of it. Before the group is
complete, a call starts only if its tournament is sure to make it, so ranks, scores and the number of calls are those of
judging afterwards. The thread's event loop is not that of the rollouts, so how trajectories are batched never depends
on when a verdict came. Knows neither judge nor method.
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

from arenarl.tournament.calls import within
from arenarl.trajectory import Query, RolloutGroup, Trajectory

Outcome = TypeVar("Outcome")


class IncomingGroup:
    """A rollout group of `size` trajectories, of which each can be awaited.
    Handed over from one thread, awaited in another."""

    def __init__(self, query: Query, size: int):
        self.query = query
        self.ended_G: list[float | None] = [None] * size  # when each was handed over, by perf_counter
        self.calls: list[tuple[float, float]] = []  # (start, end) of each judge call, likewise
        self._trajectories: list[Future[Trajectory]] = [Future() for _ in range(size)]
        for trajectory in self._trajectories:
            # judging that ends early must not cancel it: it will still be handed over
            trajectory.set_running_or_notify_cancel()

    @classmethod
    def of(cls, group: RolloutGroup) -> "IncomingGroup":
        """A group that is complete."""
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
        """Around a judge call: notes when it was under way."""
        start = perf_counter()
        try:
            yield
        finally:
            self.calls.append((start, perf_counter()))


class Judging(Generic[Outcome]):
    """Groups being judged by `judge`, all at once, from now on."""

    def __init__(self, groups: Sequence[IncomingGroup], judge: Callable[[IncomingGroup], Awaitable[Outcome]]):
        self.groups = groups
        self._judge = judge
        self._outcomes: Future[list[Outcome]] = Future()
        # a rollout that fails leaves it waiting: it must not keep the process
        Thread(target=self._run, name="judging", daemon=True).start()

    def _run(self) -> None:
        async def judge_all() -> list[Outcome]:
            return await asyncio.gather(*map(self._judge, self.groups))

        try:
            self._outcomes.set_result(asyncio.run(judge_all()))
        except BaseException as error:  # noqa: BLE001 - raised in the thread that asks for the outcomes
            self._outcomes.set_exception(error)

    def check(self) -> None:
        """Raises what has ended the judging, if anything has: whatever is generated from then on is for nothing."""
        if self._outcomes.done():
            self._outcomes.result()

    def outcomes(self) -> list[Outcome]:
        """The outcomes in the order of the groups, once there are all. Raises what `judge` raised."""
        return self._outcomes.result()

    def busy_s(self, until: float) -> float:
        """Seconds before `until`, by perf_counter, in which at least one judge call was under way.
        To be asked once all have ended."""
        busy_s, covered = 0.0, 0.0
        for start, end in sorted(call for group in self.groups for call in group.calls):
            start, end = max(start, covered), min(end, until)
            busy_s, covered = busy_s + max(0.0, end - start), max(covered, end)
        return busy_s


class EarlyCalls:
    """The calls of one tournament: `enter` starts those that have become sure,
    `compare` is what the tournament then asks.

    Args:
        surely_meets: of the topology.
        ask: one judge call about two rows that have entered.
        timeout_s: as in `play_tournament`, counted from the start of each call.
    """

    def __init__(
        self, surely_meets: str, ask: Callable[[int, int], Awaitable[Any]], bidirectional: bool, timeout_s: float | None
    ):
        self.surely_meets, self.ask, self.bidirectional, self.timeout_s = surely_meets, ask, bidirectional, timeout_s
        self.entered: dict[int, Hashable | None] = {}
        self._under_way: dict[tuple[Hashable, Hashable], asyncio.Task] = {}  # by the entrants shown first and second

    def enter(self, row: int, entrant: Hashable | None) -> None:
        self.entered[row] = entrant
        for i, j in sure_calls(self.surely_meets, self.entered, self.bidirectional):
            shown = self.entered[i], self.entered[j]
            if shown not in self._under_way:
                self._under_way[shown] = asyncio.create_task(within(self.timeout_s, partial(self.ask, i, j)))

    async def compare(self, i: int, j: int) -> Any:
        """What the call replies, which may have been about trajectories identical with i and j."""
        return await (self._under_way.get((self.entered[i], self.entered[j])) or self.ask(i, j))


def sure_calls(surely_meets: str, entered: Mapping[int, Hashable | None], bidirectional: bool) -> list[tuple[int, int]]:
    """The calls (shown first, shown second) that a tournament makes whatever the rows that have not entered turn out to
    be.

    `entered`: row -> what names the entrant, equal for identical trajectories, and None for an invalid one. The anchor
    is the first valid row, so it is known once all rows before it are. Asked in one order only, a pair shows the lower
    row first: that is known once all rows before it are, as one of them could be identical with the other entrant of
    the pair.

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
    known = next(row for row in range(len(entered) + 1) if row not in entered)  # below it, all rows have entered
    if surely_meets == "anchor":
        pairs = [(rows[0], row) for row in rows[1:] if rows[0] < known]
    elif surely_meets == "everyone":
        pairs = [(i, j) for i, j in combinations(rows, 2) if bidirectional or i < known]
    else:
        pairs = []
    return pairs + [(j, i) for i, j in pairs] if bidirectional else pairs
