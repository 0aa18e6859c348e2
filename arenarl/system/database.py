"""One sqlite file that several processes and runs share: LLM replies, search results.

On a network file system several machines should not share one: sqlite's locks may not hold.
"""

import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from filelock import FileLock

from arenarl.system.errors import UserError


def open_database(path: Path, schema: str, key: str) -> sqlite3.Connection:
    """The file, made if it is not there. Every statement is a transaction of its own,
    and waits for those of other processes.

    Raises:
        UserError: it cannot be used; names `key`, the config's key that says where it lies.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
        database.execute("PRAGMA synchronous=NORMAL")  # a power cut may cost what came last, never the file
        # what makes the file does not wait for other processes: sqlite calls it locked at once
        with FileLock(f"{path}.lock"):
            database.execute("PRAGMA journal_mode=WAL")
            database.executescript(schema)
    except (OSError, sqlite3.Error) as error:
        raise UserError(f"cannot use {path}: {error}; change {key}") from error
    return database


def json_hash(value: Any) -> str:
    """Names what JSON can hold, in whatever order its keys come:
    a row by all that it was made from, a prompt in logs."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
