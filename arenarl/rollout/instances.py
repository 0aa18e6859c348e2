"""Environment instances for running trajectories: a shared one, or one for each trajectory, reused if possible.

Each rollout opens and closes an event loop. The async methods of instances that outlive a rollout therefore run in a
thread with a loop of its own.
"""

import asyncio
import inspect
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from arenarl.rollout.environment import Environment, ToolCrash, check_tools, maybe_await, trait, wrap_crashes
from arenarl.system.errors import UserError, show
from arenarl.system.event_loops import LoopThread


class Instances:
    """Lends environments made by `make`. `report` is called for a crash that cannot make a trajectory void.
    Raises UserError if the first instance cannot be made or its tools are invalid."""

    def __init__(self, make: Callable[[], Environment], report: Callable[[ToolCrash], None]):
        self._make, self._report = make, report
        self.kind = _make_first(make)  # its attributes hold for all instances
        self._thread = LoopThread("worlds")
        self._idle: list[Environment] = [] if trait(self.kind, "shared") else [self._in_thread(self.kind)]
        self._metrics: dict[str, list[float]] = defaultdict(list)
        weakref.finalize(self, _close_all, self._idle, self._thread)  # at the end of the process, at the latest

    @asynccontextmanager
    async def borrow(self, is_fresh: bool = False) -> AsyncIterator[Environment]:
        """Lend an environment to a trajectory; afterwards keep it if it is reusable and did not crash, else close it.

        `is_fresh` makes a new instance for a retry, because the same fault may have broken the idle instances. The
        crashed instance was closed, so the number of instances does not grow. Raises ToolCrash.
        """
        if trait(self.kind, "shared"):
            yield self._in_thread(self.kind)
            return
        with wrap_crashes():
            environment = self._idle.pop() if self._idle and not is_fresh else self._in_thread(self._make())
        can_be_kept = False
        try:
            yield environment
            can_be_kept = trait(self.kind, "reusable")
        finally:
            try:
                for name, values in self._metrics_of(environment).items():
                    self._metrics[name] += values
            finally:
                if can_be_kept:
                    self._idle.append(environment)
                else:
                    await _close(environment, self._report)

    def take_metrics(self) -> dict[str, list[float]]:
        """Return the values of each of the environments' metrics since the last call."""
        if trait(self.kind, "shared"):
            return self._metrics_of(self.kind)
        metrics, self._metrics = dict(self._metrics), defaultdict(list)
        return metrics

    def _in_thread(self, environment: Environment) -> Any:
        """Wrap an environment that outlives a rollout."""
        outlives = trait(self.kind, "shared") or trait(self.kind, "reusable")
        return _InThread(environment, self._thread) if outlives else environment

    def _metrics_of(self, environment: Environment) -> dict[str, list[float]]:
        try:
            with wrap_crashes():
                metrics = environment.take_metrics() if hasattr(environment, "take_metrics") else None
                return {name: [float(value) for value in values] for name, values in (metrics or {}).items()}
        except ToolCrash as crash:
            self._report(crash)
            return {}


class _InThread:
    """An environment whose awaitable results run in a thread's loop; other results are returned at once."""

    def __init__(self, environment: Environment, thread: LoopThread):
        self._environment, self._thread = environment, thread

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._environment, name)
        return partial(self._call, value) if callable(value) else value

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        result = method(*arguments)
        is_unbound = inspect.isawaitable(result) and not asyncio.isfuture(result)  # a future is bound to its loop
        return self._thread.run(maybe_await(result)) if is_unbound else result


@contextmanager
def temporary_environment(make: Callable[[], Environment]) -> Iterator[Environment]:
    """Make an environment and close it on exit, unless it is shared. Raises UserError if it cannot be made."""
    environment = _make_first(make)
    try:
        yield environment
    finally:
        _close_first(environment)


def _make_first(make: Callable[[], Environment]) -> Environment:
    """Make an instance and check its tools. A failure stops the run, because no trajectory could start."""
    try:
        with wrap_crashes():
            environment = make()
    except ToolCrash as crash:
        raise UserError(f"environment.name: the first instance could not be made: {crash}") from crash
    try:
        check_tools(environment.tools)
    except UserError:
        _close_first(environment)
        raise
    return environment


def _close_first(environment: Environment) -> None:
    if not trait(environment, "shared"):
        _close_all([environment], LoopThread("closing"))


async def _close(environment: Environment, report: Callable[[ToolCrash], None]) -> None:
    try:
        with wrap_crashes():
            await maybe_await(environment.close() if hasattr(environment, "close") else None)
    except ToolCrash as crash:
        report(crash)


def _close_all(environments: list[Environment], thread: LoopThread) -> None:
    async def close() -> None:
        while environments:
            await _close(environments.pop(), lambda crash: show(str(crash)))

    if environments:
        closing = thread.submit(close())
        if not thread.is_current:  # the garbage collector may run this in the thread itself: it must not wait there
            closing.result()
