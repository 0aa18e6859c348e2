"""Work of asyncio that callers share: a loop that outlives theirs, and one task for all who need its result.

Each step of training opens and closes a loop; connections, and limits on what is under way, must last for the run.
"""

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Future
from threading import Thread, current_thread
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """`await thread.run(coroutine)` from any event loop; `thread.submit(coroutine).result()` from none.

    Does not keep the process, and ends when nothing refers to it any more and all that it runs is done.
    """

    def __init__(self, name: str):
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=_run, args=(self._loop,), name=name, daemon=True)
        self._thread.start()
        self._stop = weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)
        self._stop.atexit = False  # what still runs at the end of the process ends with it

    def submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        return asyncio.run_coroutine_threadsafe(self._held(coroutine), self._loop)

    async def _held(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """As long as this runs, something refers to the thread."""
        return await coroutine

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return current_thread() is self._thread

    async def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return await asyncio.wrap_future(self.submit(coroutine))

    def close(self) -> None:
        """End the thread, and with it whatever it still runs."""
        self._stop()
        self._thread.join()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    is_over = False
    while not is_over:
        try:
            loop.run_forever()
            is_over = True
        except (SystemExit, KeyboardInterrupt):
            pass  # raised by one coroutine, whose waiter gets it; the others go on
    loop.close()


class InFlight(Generic[Result]):
    """Deduplicate concurrent calls: one task per key (`key in in_flight`), shared by all waiters, then forgotten.
    To be used from one event loop."""

    def __init__(self):
        self._tasks: dict[Hashable, asyncio.Task[Result]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._tasks

    async def get(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Return what `make` returns, called now unless the key's task runs already.
        The task goes on if a waiter is cancelled: others may wait, `make` may keep its result."""
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(make())
            self._tasks[key].add_done_callback(lambda _: self._tasks.pop(key))
        return await asyncio.shield(self._tasks[key])
