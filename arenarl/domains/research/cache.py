"""The intermediate results of search and browse, each made once (B.3, InfoAgent): in memory, on disk for all processes, and under way.

A group's trajectories ask much the same. Who asks for what another is just making waits for that; what was made costly is kept in one
sqlite file. Failures are not kept. To be used from one thread.
"""

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from arenarl.llm.shared_database import open_database

_SCHEMA = "CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, stage TEXT, value TEXT);"
_IN_MEMORY = 5_000  # results, some of them pages; the oldest go first


class Cache:
    """`hits` holds, for every look-up since it was last emptied, whether the result was there or under way."""

    def __init__(self, path: Path | None):
        self._db = open_database(path, _SCHEMA, "environment.search.cache") if path else None
        self._memory: OrderedDict[tuple, Any] = OrderedDict()
        self._under_way: dict[tuple, asyncio.Task] = {}
        self.hits: list[bool] = []

    async def get(self, stage: str, inputs: tuple, make: Callable[[], Awaitable[Any]], on_disk: bool = True) -> Any:
        """What `make` gives for these inputs, which name all that it depends on. On disk goes what JSON can hold."""
        key = (stage, *inputs)
        task = self._under_way.get(key)
        if key not in self._memory and task is None and on_disk and self._db:
            self._read(key)
        self.hits.append(key in self._memory or task is not None)
        if key in self._memory:
            self._memory.move_to_end(key)
            return self._memory[key]
        if task is None:
            task = self._under_way[key] = asyncio.create_task(self._make(key, make, on_disk))
        return await asyncio.shield(task)  # the others still want it if one of those who wait is cancelled

    async def _make(self, key: tuple, make: Callable[[], Awaitable[Any]], on_disk: bool) -> Any:
        try:
            value = await make()
            if on_disk and self._db:
                self._db.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", (_name(key), key[0], json.dumps(value)))
            self._remember(key, value)
            return value
        finally:
            del self._under_way[key]

    def _read(self, key: tuple) -> None:
        row = self._db.execute("SELECT value FROM results WHERE key = ?", (_name(key),)).fetchone()
        if row:
            self._remember(key, json.loads(row[0]))

    def _remember(self, key: tuple, value: Any) -> None:
        self._memory[key] = value
        if len(self._memory) > _IN_MEMORY:
            self._memory.popitem(last=False)


def _name(key: tuple) -> str:
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()
