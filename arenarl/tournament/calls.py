"""One judge call, whatever it does: what it replied, read and checked, or the reason why there is no verdict.

Every tournament's calls end here, so that a judge that raises, hangs,
is cancelled or answers nonsense fails its call and nothing else.
"""

import asyncio
from collections.abc import Awaitable, Callable
from numbers import Real
from typing import Any, TypeVar

Verdict = TypeVar("Verdict")


async def attempt(
    ask: Callable[[], Awaitable[Any]], read: Callable[[Any], Verdict], timeout_s: float | None
) -> tuple[Verdict | None, str | None]:
    """(`read(await ask())`, None), or (None, the reason) if either raises,
    `ask` returns None or takes longer than `timeout_s`."""
    try:
        reply = await within(timeout_s, ask)
        return (None, "the judge returned None: no verdict could be had") if reply is None else (read(reply), None)
    except asyncio.CancelledError as error:
        # it is the tournament that is cancelled, and not something inside the judge
        if asyncio.current_task().cancelling():
            raise
        return None, f"CancelledError: {error}"
    except Exception as error:  # noqa: BLE001 - a judge may fail in any way; the match keeps how
        return None, f"{type(error).__name__}: {error}"


def is_number(said: Any) -> bool:
    """Truth values, which Python counts as numbers, are none."""
    return isinstance(said, Real) and not isinstance(said, bool)


async def within(timeout_s: float | None, ask: Callable[[], Awaitable[Any]]) -> Any:
    """`await ask()`. Raises TimeoutError, which says so, if that takes longer than `timeout_s`."""
    clock = asyncio.timeout(timeout_s)
    try:
        async with clock:
            return await ask()
    except TimeoutError:
        if clock.expired():
            raise TimeoutError(f"no verdict within {timeout_s} s") from None
        raise
