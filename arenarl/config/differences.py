"""In which keys two settings differ, for a message of one line."""

import json
from collections.abc import Iterator
from typing import Any

NAMED = 3  # keys in a message; of more it says how many
_LONGEST = 60  # characters of a value


def differences(old: Any, new: Any) -> str:
    """The first keys whose values differ, dotted, an item of a list by its number; empty where none does.

    >>> differences({"rl": {"steps": 4, "beta": 0.1}, "seed": 0}, {"rl": {"steps": 8, "beta": None}, "seed": 0})
    'rl.steps 4 → 8, rl.beta 0.1 → null'
    """
    found = list(_differing(old, new))
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(f"{name} {_shown(before)} → {_shown(now)}" for name, before, now in found[:NAMED]) + more


def _differing(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    if (
        isinstance(old, list)
        and isinstance(new, list)
        and len(old) == len(new)
        and any(isinstance(item, dict) for item in new)
    ):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield key, old, new
        return
    for name in [*old, *(name for name in new if name not in old)]:
        yield from _differing(old.get(name), new.get(name), f"{key}.{name}" if key else str(name))


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
