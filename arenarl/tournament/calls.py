"""Run one judge call safely: return its checked reply, or the reason for the missing verdict.

All tournaments call judges through this module. A judge that raises, hangs, is cancelled or returns an invalid reply
fails only its own call. An error outside `failures` is a bug of the caller, and ends the tournament.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable, signature
from math import isfinite
from numbers import Real
from typing import Any, TypeVar

Verdict = TypeVar("Verdict")
Failures = type[Exception] | tuple[type[Exception], ...]


class NotAsync(ValueError):
    """A judge function returned a value that cannot be awaited."""


async def attempt(
    ask: Callable[[], Awaitable[Any]],
    read: Callable[[Any], Verdict],
    timeout_s: float | None,
    failures: Failures = Exception,
) -> tuple[Verdict | None, str | None]:
    """Return (`read(await ask())`, None), or (None, reason) after an error, a reply of None or a timeout.
    Raises the errors of `ask` that are not `failures`, and NotAsync."""
    try:
        reply = await within(timeout_s, ask)
    except NotAsync:
        raise
    except asyncio.CancelledError as error:
        if asyncio.current_task().cancelling():  # the tournament is cancelled, not something inside the judge
            raise
        return None, f"CancelledError: {error}"
    except failures as error:
        return None, f"{type(error).__name__}: {error}"
    if reply is None:
        return None, "the judge returned None instead of a verdict"
    try:
        return read(reply), None
    except Exception as error:  # noqa: BLE001 - a reply may be anything; the match keeps the reason
        return None, f"{type(error).__name__}: {error}"


def as_number(value: Any) -> float | None:
    """Return a real number as a float; None for a bool, for anything else, and if the float is not finite.

    The conversion comes before the check, because numpy's small types would convert the bound to their own range.

    >>> as_number(3), as_number(True), as_number("3"), as_number(10**400), as_number(float("nan"))
    (3.0, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except (ArithmeticError, TypeError, ValueError):
        return None
    return number if isfinite(number) else None


def check_function(name: str, function: Any, *arguments: Any) -> None:
    """Raise ValueError if the function does not take these arguments."""
    try:
        signature(function).bind(*arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an async function of {len(arguments)} arguments ({error})") from error


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Open a TaskGroup that raises the first error of its tasks, and not a group of errors."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        raise group.exceptions[0]  # noqa: B904 - `from None` would hide the cause of that error


async def within(timeout_s: float | None, ask: Callable[[], Awaitable[Any]]) -> Any:
    """Return `await ask()`. Raises TimeoutError after `timeout_s` seconds, NotAsync if there is nothing to await."""
    clock = asyncio.timeout(timeout_s)
    try:
        async with clock:
            reply = ask()
            if not isawaitable(reply):
                raise NotAsync(f"a judge function must be async; it returned {reply!r:.200}, which cannot be awaited")
            return await reply
    except TimeoutError:
        if clock.expired():
            raise TimeoutError(f"no verdict within {timeout_s} s") from None
        raise
