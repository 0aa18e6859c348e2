"""The environments of trajectories under way: one that all share, or one each, used again where starting is dear."""

import asyncio
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from threading import Thread

from arenarl.rollout.environment import Environment, ToolCrash, check_tools, crashing, settled, trait
from arenarl.system.errors import show


class Instances:
    """Hands out what `make` makes. `report` is told of what crashes where no trajectory can be void for it."""

    def __init__(self, make: Callable[[], Environment], report: Callable[[ToolCrash], None]):
        self._make, self._report = make, report
        first = make()
        check_tools(first.tools)
        self.kind = first  # whose attributes say what all are like
        self.open = 1
        self._idle: list[Environment] = [] if trait(self.kind, "shared") else [first]
        self._metrics: dict[str, list[float]] = defaultdict(list)
        weakref.finalize(self, _close_all, self._idle)  # at the end of the process, at the latest

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Environment]:
        """One for a trajectory. Whatever ends that, it is closed, or used again if it says so and did not crash. Raises ToolCrash."""
        if trait(self.kind, "shared"):
            yield self.kind
            return
        with crashing():
            environment = self._idle.pop() if self._idle else self._new()
        is_whole = False
        try:
            yield environment
            is_whole = trait(self.kind, "reusable")
        finally:
            for name, values in self._asked(environment).items():
                self._metrics[name] += values
            if is_whole:
                self._idle.append(environment)
            else:
                self.open -= 1
                await _close(environment, self._report)

    def take_metrics(self) -> dict[str, list[float]]:
        """What the environments have to log since this was last called, each as the values whose mean it is."""
        if trait(self.kind, "shared"):
            return self._asked(self.kind)
        taken, self._metrics = dict(self._metrics), defaultdict(list)
        return taken

    def _new(self) -> Environment:
        environment = self._make()
        self.open += 1
        return environment

    def _asked(self, environment: Environment) -> dict[str, list[float]]:
        try:
            with crashing():
                return dict(environment.take_metrics() or {}) if hasattr(environment, "take_metrics") else {}
        except ToolCrash as crash:
            self._report(crash)
            return {}


async def _close(environment: Environment, report: Callable[[ToolCrash], None]) -> None:
    try:
        with crashing():
            await settled(environment.close() if hasattr(environment, "close") else None)
    except ToolCrash as crash:
        report(crash)


def _close_all(environments: list[Environment]) -> None:
    async def close() -> None:
        while environments:
            await _close(environments.pop(), lambda crash: show(str(crash)))

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(close())
    else:  # where the engine was forgotten
        aside = Thread(target=lambda: asyncio.run(close()))
        aside.start()
        aside.join()
