"""What is being made is made once: who asks for what another is just making waits for that."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

Made = TypeVar("Made")


class InFlight(Generic[Made]):
    """What is being made, by key: `key in in_flight`. What is over, made or failed, is forgotten.
    To be used from one event loop."""

    def __init__(self):
        self._tasks: dict[Hashable, asyncio.Task[Made]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._tasks

    async def get(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, Made]]) -> Made:
        """What `make` gives, begun now unless it has been.
        It goes on if who waits is cancelled: others may wait, `make` may keep it."""
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(make())
            self._tasks[key].add_done_callback(lambda _: self._tasks.pop(key))
        return await asyncio.shield(self._tasks[key])
