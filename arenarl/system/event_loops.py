"""Shared asyncio work: an event loop in its own thread, and one task for several waiters.

Each training step opens and closes an event loop. Connections and limits on concurrent calls must outlive it.
"""

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Future
from threading import Thread, current_thread
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


def mark_error_read(task: asyncio.Task) -> None:
    """Keep asyncio from logging the error of a task that ended without a waiter; a callback for finished tasks."""
    if not task.cancelled():
        task.exception()


class LoopThread:
    """An event loop in a daemon thread.

    Use `await thread.run(coroutine)` inside an event loop and `thread.submit(coroutine).result()` outside.
    The thread ends once it is garbage-collected and its coroutines are done.
    """

    def __init__(self, name: str):
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=_run, args=(self._loop,), name=name, daemon=True)
        self._thread.start()
        self._stop = weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)
        self._stop.atexit = False  # a coroutine may still run when the process exits

    def submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        return asyncio.run_coroutine_threadsafe(self._await(coroutine), self._loop)

    async def _await(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Await the coroutine; `self` keeps the thread until it is done."""
        return await coroutine

    @property
    def is_current(self) -> bool:
        """True if the caller runs in this thread."""
        return current_thread() is self._thread

    async def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return await asyncio.wrap_future(self.submit(coroutine))

    def close(self) -> None:
        """Stop the thread and its running coroutines."""
        self._stop()
        self._thread.join()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    is_over = False
    while not is_over:
        try:
            loop.run_forever()
            is_over = True
        except (SystemExit, KeyboardInterrupt):
            pass  # its waiter receives the exception; other coroutines continue
    loop.close()


class InFlight(Generic[Result]):
    """Deduplicate concurrent calls: one task per key, shared by all waiters, dropped when done.

    `key in in_flight` is True while its task runs. Use it from one event loop only.
    """

    def __init__(self):
        self._tasks: dict[Hashable, asyncio.Task[Result]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._tasks

    async def get(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Return the result of the key's running task, or else of a new task from `make`.

        Cancelling a waiter does not cancel the task: it may have other waiters or store its result.
        """
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(make())
            self._tasks[key].add_done_callback(lambda _: self._tasks.pop(key))
        return await asyncio.shield(self._tasks[key])
