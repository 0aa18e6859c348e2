"""A step's judging in a thread of its own, beside the rollouts: a group is judged while it, or another one, is being generated.

The rollouts hand over each trajectory as it ends; who judges a group awaits what it needs of it. The thread's event loop is
not that of the rollouts, so how trajectories are batched never depends on when a verdict came. Knows neither judge nor method.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from time import perf_counter
from typing import Generic, TypeVar

from arenarl.trajectory import Query, RolloutGroup, Trajectory

Outcome = TypeVar("Outcome")


class IncomingGroup:
    """A rollout group of `size` trajectories, of which each can be awaited. Handed over from one thread, awaited in another."""

    def __init__(self, query: Query, size: int):
        self.query = query
        self.ended_G: list[float | None] = [None] * size  # when each was handed over, by perf_counter
        self.calls: list[tuple[float, float]] = []  # (start, end) of each judge call, likewise
        self._trajectories: list[Future[Trajectory]] = [Future() for _ in range(size)]
        for trajectory in self._trajectories:
            trajectory.set_running_or_notify_cancel()  # judging that ends early must not cancel it: it will still be handed over

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
        Thread(target=self._run, name="judging", daemon=True).start()  # a rollout that fails leaves it waiting: it must not keep the process

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
        """Seconds before `until`, by perf_counter, in which at least one judge call was under way. To be asked once all have ended."""
        busy_s, covered = 0.0, 0.0
        for start, end in sorted(call for group in self.groups for call in group.calls):
            start, end = max(start, covered), min(end, until)
            busy_s, covered = busy_s + max(0.0, end - start), max(covered, end)
        return busy_s
