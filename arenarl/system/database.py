"""A sqlite file that several processes and runs share, for LLM replies and search results.

Several machines must not share one file over a network file system: sqlite's locks may not hold there.
"""

import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from filelock import FileLock

from arenarl.system.errors import UserError


def open_database(path: Path, schema: str, key: str) -> sqlite3.Connection:
    """Open the database, and create it if it does not exist.

    Each statement is one transaction and waits up to 60 s for other processes. Raises UserError, naming the config key
    `key` of the path, if the file cannot be used.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
        database.execute("PRAGMA synchronous=NORMAL")  # a power cut may lose the last rows, never the file
        # sqlite does not wait while the file is created: a second process would get "database is locked"
        with FileLock(f"{path}.lock"):
            database.execute("PRAGMA journal_mode=WAL")
            database.executescript(schema)
    except (OSError, sqlite3.Error) as error:
        raise UserError(f"cannot use {path}: {error}; change {key}") from error
    return database


def json_hash(value: Any) -> str:
    """Return the sha256 of a JSON value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
