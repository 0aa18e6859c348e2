"""Run one judge call safely: return its checked reply, or the reason for the missing verdict.

All tournaments call judges through this module. A judge that raises, hangs, is cancelled or returns an invalid reply
fails only its own call.
"""

import asyncio
from collections.abc import Awaitable, Callable
from numbers import Real
from typing import Any, TypeVar

Verdict = TypeVar("Verdict")


async def attempt(
    ask: Callable[[], Awaitable[Any]], read: Callable[[Any], Verdict], timeout_s: float | None
) -> tuple[Verdict | None, str | None]:
    """Return (`read(await ask())`, None), or (None, reason) after an error, a reply of None or a timeout."""
    try:
        reply = await within(timeout_s, ask)
        return (None, "the judge returned None instead of a verdict") if reply is None else (read(reply), None)
    except asyncio.CancelledError as error:
        if asyncio.current_task().cancelling():  # the tournament is cancelled, not something inside the judge
            raise
        return None, f"CancelledError: {error}"
    except Exception as error:  # noqa: BLE001 - a judge may fail in any way; the match keeps the reason
        return None, f"{type(error).__name__}: {error}"


def is_number(value: Any) -> bool:
    """Return True for a real number, but not for a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


async def within(timeout_s: float | None, ask: Callable[[], Awaitable[Any]]) -> Any:
    """Return `await ask()`. Raises TimeoutError after `timeout_s` seconds."""
    clock = asyncio.timeout(timeout_s)
    try:
        async with clock:
            return await ask()
    except TimeoutError:
        if clock.expired():
            raise TimeoutError(f"no verdict within {timeout_s} s") from None
        raise
