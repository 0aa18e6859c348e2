"""Time limits for other people's code that runs in this process, such as an environment's methods.

A system timer raises an exception inside code that waits or loops in the main thread. An awaited call is cancelled.
"""

import asyncio
import signal
import sys
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import cache
from threading import Thread, current_thread, main_thread
from typing import Any

from arenarl.system.errors import end_process

_TICKS = 10  # per limit: generation that blocks the event loop, however long, counts as one tick
_PATIENT_INTERRUPTS = 5  # one per second, time for clean-up; later ones repeat at each line, past any handler
_EXTRA_S = 60.0  # beyond twice its limit, for compiled code that cannot be interrupted, until the process ends


class TookTooLong(TimeoutError):
    """A call that did not return within its time limit."""

    def __init__(self, seconds: float):
        super().__init__(f"the call did not return within {seconds:g} s (environment.timeout_s)")


class _Interrupt(BaseException):
    """Raised inside a call that takes too long. It is not an Exception, so that libraries do not handle it."""


class _Call:
    """A call in the main thread."""

    def __init__(self, seconds: float):
        self.seconds, self.interrupts, self.is_running = seconds, 0, True


_call: _Call | None = None


def run_within(seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return `function(*arguments)`. Raises TookTooLong after `seconds`.

    Only the main thread handles signals: a call in another thread, or inside a limited call, has no limit of its own.
    If compiled code is still running a minute after twice the limit, the process ends.
    """
    global _call
    if _call or current_thread() is not main_thread():
        return function(*arguments)
    _start_watchdog()
    handler, timer = signal.getsignal(signal.SIGALRM), (0.0, 0.0)
    if handler is not _interrupt:
        signal.signal(signal.SIGALRM, _interrupt)
    call = _Call(seconds)
    try:
        try:
            _call = call
            timer = signal.setitimer(signal.ITIMER_REAL, seconds, min(seconds, 1.0))
            return function(*arguments)
        finally:
            call.is_running = False
    except _Interrupt as error:
        sys.settrace(None)
        raise TookTooLong(seconds) from error
    except GeneratorExit as error:  # would look like the end of our own coroutines
        raise RuntimeError("the call raised GeneratorExit") from error
    finally:
        _call = None
        signal.setitimer(signal.ITIMER_REAL, *timer)
        if handler not in (_interrupt, signal.SIG_DFL, None):  # the user's own
            signal.signal(signal.SIGALRM, handler)


async def await_within(seconds: float, awaitable: Awaitable[Any]) -> Any:
    """Await in the caller's task. After `seconds`, cancel the awaitable and raise TookTooLong.

    An awaitable that ignores the cancellation is closed after as many seconds again.
    """
    loop = asyncio.get_running_loop()

    async def result() -> Any:
        return await awaitable

    try:
        async with asyncio.timeout(None) as last, asyncio.timeout(None) as first:
            limits = {_TICKS: first, 2 * _TICKS: last}

            def tick(number: int) -> None:
                nonlocal timer
                if number in limits:
                    limits[number].reschedule(loop.time())
                timer = loop.call_later(seconds / _TICKS, tick, number + 1)

            timer = loop.call_later(seconds / _TICKS, tick, 1)
            try:
                return await _drive(result(), seconds, last.expired)
            finally:
                timer.cancel()
    except TimeoutError as error:
        if first.expired():
            raise TookTooLong(seconds) from error.__cause__
        raise


@types.coroutine
def _drive(
    coroutine: Coroutine[Any, Any, Any], seconds: float, must_end: Callable[[], bool]
) -> Generator[Any, Any, Any]:
    """Await a coroutine in the caller's task, each stretch between two waits within the limit."""
    go_on, value = coroutine.send, None
    while True:
        try:
            waited_for = run_within(seconds, go_on, value)
        except StopIteration as end:
            return end.value
        try:
            go_on, value = coroutine.send, (yield waited_for)
        except BaseException as error:  # noqa: BLE001 - the coroutine receives it
            if isinstance(error, GeneratorExit) or must_end():
                with suppress(RuntimeError):  # it ignores that too
                    coroutine.close()
                raise
            go_on, value = coroutine.throw, error


def _interrupt(_: int, frame: types.FrameType | None) -> None:
    if not (_call and _call.is_running):
        return
    _call.interrupts += 1
    if _call.interrupts > _PATIENT_INTERRUPTS:
        sys.settrace(_raise_at_line)
        while frame and frame.f_code is not run_within.__code__:
            frame.f_trace, frame = _raise_at_line, frame.f_back
    raise _Interrupt


def _raise_at_line(_: types.FrameType, event: str, __: Any) -> Any:
    if event in ("line", "call") and _call and _call.is_running:
        raise _Interrupt
    return _raise_at_line


@cache
def _start_watchdog() -> None:
    Thread(target=_watch, name="watchdog", daemon=True).start()


def _watch() -> None:
    """End the process if compiled code keeps the main thread from handling the timer's signal.

    The watchdog counts its own seconds, so a process that was suspended for long goes on.
    """
    watched, waited_s = None, 0
    while True:
        time.sleep(1)
        watched, waited_s = _call, waited_s + 1 if _call is watched else 0
        if watched and waited_s > 2 * watched.seconds + _EXTRA_S:
            frame = sys._current_frames()[main_thread().ident]
            place = f"{frame.f_code.co_filename}, line {frame.f_lineno}"
            problem = f"compiled code called at {place} does not return, and cannot be interrupted"
            end_process(f"error: environment.name: {problem}; run it in a process of its own")
