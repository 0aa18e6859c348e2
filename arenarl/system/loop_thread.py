"""An event loop that outlives those of its callers, in a thread of its own.

Each step of training opens and closes a loop; connections, and limits on what is under way, must last for the run.
"""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """`await thread.run(coroutine)` from any event loop; `thread.submit(coroutine).result()` from none. Does not keep the process."""

    def __init__(self, name: str):
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return await asyncio.wrap_future(self.submit(coroutine))

    def close(self) -> None:
        """End the thread, and with it whatever it still runs."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
