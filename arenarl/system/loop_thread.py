"""An event loop that outlives those of its callers, in a thread of its own.

Each step of training opens and closes a loop; connections, and limits on what is under way, must last for the run.
"""

import asyncio
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future
from threading import Thread, current_thread
from typing import Any, TypeVar

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
        """Whether this is asked from within."""
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
            # of something that runs here: who waits for that gets it, and the others do not wait for ever
            pass
    loop.close()
