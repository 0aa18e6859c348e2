"""The environments of trajectories under way: one that all share, or one each, used again where starting is dear.

Those that outlive a rollout, and with it its event loop, do what they do asynchronously in a loop that lasts as long as
they.
"""

import asyncio
import inspect
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from arenarl.rollout.environment import Environment, ToolCrash, check_tools, crashing, settled, trait
from arenarl.system.errors import UserError, show
from arenarl.system.event_loops import LoopThread


class Instances:
    """Hands out what `make` makes. `report` gets what crashes where no trajectory can be void for it.
    Raises UserError if the first one cannot be made, or its tools are none."""

    def __init__(self, make: Callable[[], Environment], report: Callable[[ToolCrash], None]):
        self._make, self._report = make, report
        self.kind = _first(make)  # whose attributes say what all are like
        self._thread = LoopThread("worlds")
        self._idle: list[Environment] = [] if trait(self.kind, "shared") else [self._lasting(self.kind)]
        self._metrics: dict[str, list[float]] = defaultdict(list)
        weakref.finalize(self, _close_all, self._idle, self._thread)  # at the end of the process, at the latest

    @asynccontextmanager
    async def one(self, is_fresh: bool = False) -> AsyncIterator[Environment]:
        """One for a trajectory, `is_fresh` if it must be new: what broke one may have broken all that are idle.
        Whatever ends the trajectory, it is closed, or used again if it says so and did not crash. Raises ToolCrash.

        Who asks for a new one has given one back that was closed: there are never more than were at work at once.
        """
        if trait(self.kind, "shared"):
            yield self._lasting(self.kind)
            return
        with crashing():
            environment = self._idle.pop() if self._idle and not is_fresh else self._lasting(self._make())
        is_whole = False
        try:
            yield environment
            is_whole = trait(self.kind, "reusable")
        finally:
            try:
                for name, values in self._metrics_of(environment).items():
                    self._metrics[name] += values
            finally:
                if is_whole:
                    self._idle.append(environment)
                else:
                    await _close(environment, self._report)

    def take_metrics(self) -> dict[str, list[float]]:
        """What the environments have to log since this was last called, each as the values whose mean it is."""
        if trait(self.kind, "shared"):
            return self._metrics_of(self.kind)
        taken, self._metrics = dict(self._metrics), defaultdict(list)
        return taken

    def _lasting(self, environment: Environment) -> Any:
        outlives = trait(self.kind, "shared") or trait(self.kind, "reusable")
        return _InThread(environment, self._thread) if outlives else environment

    def _metrics_of(self, environment: Environment) -> dict[str, list[float]]:
        try:
            with crashing():
                taken = environment.take_metrics() if hasattr(environment, "take_metrics") else None
                return {name: [float(value) for value in values] for name, values in (taken or {}).items()}
        except ToolCrash as crash:
            self._report(crash)
            return {}


class _InThread:
    """An environment whose awaitable results run in a thread's loop; its other results come at once."""

    def __init__(self, environment: Environment, thread: LoopThread):
        self._environment, self._thread = environment, thread

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._environment, name)
        return partial(self._call, value) if callable(value) else value

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        result = method(*arguments)
        # a future belongs to the loop that runs already
        is_foreign = inspect.isawaitable(result) and not asyncio.isfuture(result)
        return self._thread.run(settled(result)) if is_foreign else result


@contextmanager
def temporary_environment(make: Callable[[], Environment]) -> Iterator[Environment]:
    """A temporary environment, closed on exit unless it is shared. Raises UserError if it cannot be made."""
    environment = _first(make)
    try:
        yield environment
    finally:
        _close_first(environment)


def _first(make: Callable[[], Environment]) -> Environment:
    """One whose failure is no trajectory's: nothing can begin without it."""
    try:
        with crashing():
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
        with crashing():
            await settled(environment.close() if hasattr(environment, "close") else None)
    except ToolCrash as crash:
        report(crash)


def _close_all(environments: list[Environment], thread: LoopThread) -> None:
    async def close() -> None:
        while environments:
            await _close(environments.pop(), lambda crash: show(str(crash)))

    if environments:
        closing = thread.submit(close())
        if not thread.is_current:  # where the engine is forgotten, anything may run
            closing.result()
