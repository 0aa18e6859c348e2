"""Environment instances for running trajectories: a shared one, or one for each trajectory, reused if possible.

Each rollout opens and closes an event loop. The async methods of instances that outlive a rollout therefore run in a
thread with a loop of its own. All methods have a time limit.
"""

import asyncio
import inspect
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import wait
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

from arenarl.config.schema import EnvironmentConfig
from arenarl.rollout.environment import Environment, ToolCrash, check_tools, maybe_await, trait, wrap_crashes
from arenarl.system.errors import UserError, show
from arenarl.system.event_loops import LoopThread, patient_loop
from arenarl.system.time_limits import TookTooLong, await_within, run_within

_TRAITS = ("shared", "reusable", "needs_answer", "may_stop", "one_call_a_turn")
_CLOSE_S = 5.0  # an instance has this time beyond twice the time limit to close; then the next one is closed


class Instances:
    """Lends environments made by `make`, whose methods must return within `timeout_s`. `report` is called for a crash
    that cannot make a trajectory void. Raises UserError if the first instance cannot be made or its tools are invalid.
    """

    def __init__(self, make: Callable[[], Environment], report: Callable[[ToolCrash], None], timeout_s: float):
        self._make, self._report, self._timeout_s = make, report, timeout_s
        first = _make_first(make)
        self._thread = LoopThread("worlds", patient_loop)
        self._outlives_rollouts = trait(first, "shared") or trait(first, "reusable")
        self.first = self._limit(first)  # its attributes hold for all instances
        self._idle: list[Environment] = [] if trait(first, "shared") else [self.first]
        self._metrics: dict[str, list[float]] = defaultdict(list)
        # at the latest, close them at the end of the process
        weakref.finalize(self, _close_all, self._idle, self._thread, timeout_s)

    @asynccontextmanager
    async def borrow(self, is_fresh: bool = False) -> AsyncIterator[Environment]:
        """Lend an environment to a trajectory; afterwards keep it if it is reusable and did not crash, else close it.

        `is_fresh` makes a new instance for a retry, because the same fault may have broken the idle instances. The
        crashed instance was closed, so the number of instances does not grow. Raises ToolCrash.
        """
        try:
            if trait(self.first, "shared"):
                yield self.first
                return
            async with self._borrow_own(is_fresh) as environment:
                yield environment
        except ToolCrash as crash:
            if isinstance(crash.__cause__, TookTooLong):
                await self._thread.restart_if_blocked()
            raise

    @asynccontextmanager
    async def _borrow_own(self, is_fresh: bool) -> AsyncIterator[Environment]:
        with wrap_crashes():
            can_reuse = self._idle and not is_fresh
            environment = self._idle.pop() if can_reuse else self._limit(run_within(self._timeout_s, self._make))
        can_be_kept = False
        try:
            yield environment
            can_be_kept = trait(self.first, "reusable")
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
        if trait(self.first, "shared"):
            return self._metrics_of(self.first)
        metrics, self._metrics = dict(self._metrics), defaultdict(list)
        return metrics

    def _limit(self, environment: Environment) -> Any:
        return _Limited(environment, self._timeout_s, self._thread if self._outlives_rollouts else None)

    def _metrics_of(self, environment: Environment) -> dict[str, list[float]]:
        try:
            with wrap_crashes():
                metrics = environment.take_metrics() if hasattr(environment, "take_metrics") else None
                return {name: [float(value) for value in values] for name, values in (metrics or {}).items()}
        except ToolCrash as crash:
            self._report(crash)
            return {}


class _Limited:
    """An environment whose methods raise TookTooLong after a time limit. Awaitable results run in the loop of `thread`,
    if any, else in the caller's."""

    def __init__(self, environment: Environment, timeout_s: float, thread: LoopThread | None = None):
        self._environment, self._timeout_s, self._thread = environment, timeout_s, thread

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._environment, name)
        return partial(self._call, value) if callable(value) else value

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        result = run_within(self._timeout_s, method, *arguments)
        if not inspect.isawaitable(result):
            return result
        if self._thread and not asyncio.isfuture(result):  # a future is bound to its loop
            result = self._thread.run(maybe_await(result))
        return await_within(self._timeout_s, result)


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
        with wrap_crashes():
            check_tools(environment.tools)
        for name in _TRAITS:
            trait(environment, name)
    except (UserError, ToolCrash) as error:
        with suppress(ToolCrash):
            _close_first(environment)
        if isinstance(error, UserError):
            raise
        raise UserError(f"environment.name: {error}") from error
    return environment


def _close_first(environment: Environment) -> None:
    if not trait(environment, "shared"):
        timeout_s = EnvironmentConfig.timeout_s
        _close_all([_Limited(environment, timeout_s)], LoopThread("closing", patient_loop), timeout_s)


async def _close(environment: Environment, report: Callable[[ToolCrash], None]) -> None:
    try:
        with wrap_crashes():
            await maybe_await(environment.close() if hasattr(environment, "close") else None)
    except ToolCrash as crash:
        report(crash)


def _close_all(environments: list[Environment], thread: LoopThread, timeout_s: float) -> None:
    """Close the environments in turn in a thread. An environment that does not close stays until the process ends."""
    while environments:
        closing = thread.submit(_close(environments.pop(), lambda crash: show(str(crash))))
        # the garbage collector may run this in the thread itself: it must not wait there
        if not thread.is_current and wait([closing], 2 * timeout_s + _CLOSE_S).not_done:
            show(f"environment.name: an instance did not close within {timeout_s:g} s (environment.timeout_s)")
            thread = LoopThread("closing", patient_loop)
