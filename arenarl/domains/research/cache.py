"""The intermediate results of search and browse, each made once (B.3, InfoAgent):
in memory, on disk for all processes, and under way.

A group's trajectories ask much the same. What was made costly is kept in one sqlite file. Failures are not kept.
To be used from one event loop.
"""

import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from arenarl.system.database import json_hash, open_database
from arenarl.system.event_loops import InFlight

_SCHEMA = "CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, stage TEXT, value TEXT);"
_IN_MEMORY = 5_000  # results, some of them pages; the oldest go first


class Cache:
    """`hits` holds, for every look-up since it was last emptied, whether the result was there or under way."""

    def __init__(self, path: Path | None):
        self._db = open_database(path, _SCHEMA, "environment.search.cache") if path else None
        self._memory: OrderedDict[tuple, Any] = OrderedDict()
        self._in_flight: InFlight[Any] = InFlight()
        self.hits: list[bool] = []

    async def get(self, stage: str, inputs: tuple, make: Callable[[], Awaitable[Any]], on_disk: bool = True) -> Any:
        """What `make` gives for these inputs, which name all that it depends on. On disk goes what JSON can hold."""
        key = (stage, *inputs)
        if key not in self._memory and key not in self._in_flight and on_disk and self._db:
            self._read(key)
        self.hits.append(key in self._memory or key in self._in_flight)
        if key in self._memory:
            self._memory.move_to_end(key)
            return self._memory[key]
        return await self._in_flight.get(key, lambda: self._make(key, make, on_disk))

    async def _make(self, key: tuple, make: Callable[[], Awaitable[Any]], on_disk: bool) -> Any:
        value = await make()
        if on_disk and self._db:
            self._db.execute(
                "INSERT OR REPLACE INTO results VALUES (?, ?, ?)", (json_hash(key), key[0], json.dumps(value))
            )
        self._remember(key, value)
        return value

    def _read(self, key: tuple) -> None:
        row = self._db.execute("SELECT value FROM results WHERE key = ?", (json_hash(key),)).fetchone()
        if row:
            self._remember(key, json.loads(row[0]))

    def _remember(self, key: tuple, value: Any) -> None:
        self._memory[key] = value
        if len(self._memory) > _IN_MEMORY:
            self._memory.popitem(last=False)
