"""Shared asyncio work: an event loop in its own thread, and one task for several waiters.

Each training step opens and closes an event loop. Connections and limits on concurrent calls must outlive it.
"""

import asyncio
import ctypes
import weakref
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Thread, current_thread
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")
_ANSWER_S = 5.0  # a loop that takes longer to run an empty coroutine is blocked


def mark_error_read(task: asyncio.Task) -> None:
    """Callback for finished tasks: stop asyncio from logging an error that no waiter has read."""
    if not task.cancelled():
        task.exception()


class DaemonThreads(ThreadPoolExecutor):
    """An executor with a daemon thread per call: neither closing a loop nor the process's end waits for its calls."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*arguments, **options))
                except BaseException as error:  # noqa: BLE001 - the waiter receives it
                    future.set_exception(error)

        Thread(target=run, name="to_thread", daemon=True).start()
        return future

    def shutdown(self, *_: Any, **__: Any) -> None:
        pass


def patient_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop that can close even if a call in one of its threads never returns."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(DaemonThreads())
    return loop


class _Crossing(Generic[Result]):
    """A coroutine in another thread's event loop; `waiter` is its result in the caller's loop.

    It takes a third of the time of `asyncio.wrap_future`.
    """

    __slots__ = ("caller", "coroutine", "loop", "task", "thread", "waiter")

    def __init__(self, coroutine: Coroutine[Any, Any, Result], thread: "LoopThread"):
        self.coroutine, self.caller = coroutine, asyncio.get_running_loop()
        self.thread, self.loop = thread, thread._loop  # keeps the thread until the coroutine is done
        self.waiter: asyncio.Future[Result] = self.caller.create_future()

    def start(self) -> None:
        self.task = self.loop.create_task(self.coroutine)
        self.task.add_done_callback(self._finish)

    def cancel(self) -> None:
        self.task.cancel()

    def _finish(self, task: asyncio.Task[Result]) -> None:
        mark_error_read(task)
        with suppress(RuntimeError):  # the caller's loop is closed
            self.caller.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        if self.waiter.done():
            return
        if self.task.cancelled():
            self.waiter.cancel()
        elif (error := self.task.exception()) is not None:
            self.waiter.set_exception(error)
        else:
            self.waiter.set_result(self.task.result())


class LoopThread:
    """An event loop in a daemon thread.

    Use `await thread.run(coroutine)` inside an event loop and `thread.submit(coroutine).result()` outside.
    The thread ends once it is garbage-collected and its coroutines are done; its last coroutine is `on_end()`.
    """

    def __init__(
        self,
        name: str,
        make_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
        on_end: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ):
        self._name, self._make_loop, self._on_end = name, make_loop, on_end
        self._start()

    def _start(self) -> None:
        self._loop = self._make_loop()
        self._thread = Thread(target=_run, args=(self._loop, self._on_end), name=self._name, daemon=True)
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
        """Await the coroutine. Cancelling the waiter cancels it."""
        crossing = _Crossing(coroutine, self)
        crossing.loop.call_soon_threadsafe(crossing.start)
        try:
            return await crossing.waiter
        except asyncio.CancelledError:
            with suppress(RuntimeError):  # the thread has ended
                crossing.loop.call_soon_threadsafe(crossing.cancel)
            raise

    async def restart_if_blocked(self) -> None:
        """Start another loop and thread if a coroutine keeps the loop from running any other."""
        loop, answer = self._loop, asyncio.wrap_future(self.submit(asyncio.sleep(0)))
        if (await asyncio.wait([answer], timeout=_ANSWER_S))[0] or self._loop is not loop:
            return
        self._stop()
        # ends Python code that loops; compiled code goes on until the process ends
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(SystemExit))
        self._start()

    def close(self) -> None:
        """Stop the thread and its running coroutines."""
        self._stop()
        self._thread.join()


def _run(loop: asyncio.AbstractEventLoop, on_end: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
    is_over = False
    while not is_over:
        try:
            loop.run_forever()
            is_over = True
        except (SystemExit, KeyboardInterrupt):
            pass  # its waiter receives the exception; other coroutines continue
    if on_end:
        loop.run_until_complete(on_end())
    loop.close()


class InFlight(Generic[Result]):
    """Deduplicate concurrent calls: one task per key, shared by all waiters, dropped when done.

    `key in in_flight` is True while its task runs. Use it from one event loop only.
    """

    def __init__(self):
        self._tasks: dict[Hashable, asyncio.Task[Result]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._tasks

    @property
    def tasks(self) -> list[asyncio.Task[Result]]:
        """The running tasks."""
        return list(self._tasks.values())

    async def get(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Return the result of the key's running task, or else of a new task from `make`.

        Cancelling a waiter does not cancel the task: it may have other waiters or store its result.
        """
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(make())
            self._tasks[key].add_done_callback(lambda _: self._tasks.pop(key))
        return await asyncio.shield(self._tasks[key])
