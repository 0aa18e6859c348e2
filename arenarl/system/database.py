"""A database that processes and runs share, for LLM replies, spending and search results.

A sqlite file serves the processes of one machine. Several machines must not share one over a network file system, where
sqlite's locks may not hold; they share a PostgreSQL server. Callers write one SQL text for both, with `:named` values.
"""

import re
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from filelock import FileLock

from arenarl.system.errors import UserError, missing_extra
from arenarl.system.progress import say

T = TypeVar("T")
Values = Mapping[str, Any]
URLS = ("postgresql://", "postgres://")
_WAIT_S = 60  # longest wait for other processes' transactions, and for a PostgreSQL server that restarts
_PAUSE_S = 0.2  # between two attempts to connect
_CONNECTION = {  # notice a server that vanished without closing the connection; seconds and milliseconds
    "connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}  # fmt: skip
# a process that was killed or cut off leaves its transaction open on the server; end it before others stop waiting
_SETTINGS = f"SET lock_timeout = '{_WAIT_S}s'; SET idle_in_transaction_session_timeout = '{_WAIT_S // 3}s'"
_LOCK = "SELECT pg_advisory_xact_lock(727272)"  # one writing transaction at a time, as in sqlite; any number will do
_WRITERS = "CREATE TABLE IF NOT EXISTS writers (writer TEXT PRIMARY KEY, done TEXT)"


def is_url(place: str | Path) -> bool:
    """True for the URL of a PostgreSQL database, False for a sqlite file."""
    return str(place).startswith(URLS)


def open_database(place: str | Path, schema: str, key: str) -> "SQLite | PostgreSQL":
    """Open the database at a file or URL, and create its tables if they do not exist.

    `schema` is made of CREATE TABLE IF NOT EXISTS. Raises UserError, naming the config key `key` of the place, if the
    database cannot be used.
    """
    return PostgreSQL(str(place), schema, key) if is_url(place) else SQLite(Path(place), schema, key)


@dataclass(frozen=True)
class _Rows:
    """All rows of a statement. sqlite reads them one by one, and may find a damaged page only then."""

    rows: list[tuple[Any, ...]]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self.rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return self.rows[0] if self.rows else None


class SQLite:
    """A sqlite file. Statements and transactions wait up to 60 s for other processes."""

    def __init__(self, path: Path, schema: str, key: str):
        self._path, self._key = path, key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA synchronous=NORMAL")  # a power cut may lose the last rows, never the file
            # sqlite does not wait while the file is created: a second process would get "database is locked"
            with FileLock(f"{path}.lock"):
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.executescript(schema)
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"cannot use {path}: {error}; change {key}") from error

    def execute(self, statement: str, values: Values | None = None) -> Any:
        """Return the cursor of a statement: `fetchone`, `fetchall`, `rowcount`. Raises UserError if it fails.

        Outside a transaction, PostgreSQL may run it twice, after a lost connection: it must do no harm the second time.
        """
        try:
            cursor = self._connection.execute(statement, values or ())
            return _Rows(cursor.fetchall()) if cursor.description else cursor
        except sqlite3.Error as error:
            remedy = f"change {self._key}, or free disk space and restart"
            raise UserError(f"cannot use {self._path}: {error}; {remedy}") from error

    def transaction(self, work: Callable[[], T]) -> T:
        """Run `work` in one transaction, which takes effect once and whole, or not at all, also after a kill. A
        transaction inside another one is part of it.

        After a lost connection, PostgreSQL may run `work` again: it must change nothing but the database.
        """
        if self._connection.in_transaction:
            return work()
        self.execute("BEGIN IMMEDIATE")
        try:
            result = work()
            self.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # sqlite itself rolls back after some errors, such as a full disk
                self.execute("ROLLBACK")
            raise
        return result


class PostgreSQL:
    """A PostgreSQL database with the methods of `SQLite`. They wait up to 60 s for a server that cannot be reached.

    A commit whose answer is lost may have taken effect. So each transaction also writes its number into this object's
    row of `writers`, and a repetition that finds its number there changes nothing.
    """

    def __init__(self, url: str, schema: str, key: str):
        try:
            import psycopg
        except ImportError as error:
            raise UserError(f"{key}={url}: {missing_extra(error) or error}") from error
        self._library, self._url, self._key = psycopg, url, key
        self._writer, self._is_open = uuid4().hex, False
        try:
            self._connection = self._connect()
        except psycopg.Error as error:
            raise self._failure(error) from error
        self.execute(f"{_LOCK}; {_WRITERS}; {schema}")

    def execute(self, statement: str, values: Values | None = None) -> Any:
        statement = re.sub(r":(\w+)", r"%(\1)s", statement)
        if self._is_open:
            return self._connection.execute(statement, values)
        return self._repeat(lambda: self._connection.execute(statement, values))

    def transaction(self, work: Callable[[], T]) -> T:
        if self._is_open:
            return work()
        marks = {"writer": self._writer, "number": uuid4().hex}
        results: list[T] = []

        def attempt() -> T:
            self._is_open = True
            try:
                self.execute(f"BEGIN ISOLATION LEVEL READ COMMITTED; {_LOCK}")
                done = "SELECT 1 FROM writers WHERE writer = :writer AND done = :number"
                if not (results and self.execute(done, marks).fetchone()):
                    results[:] = [work()]
                mark = "INSERT INTO writers VALUES (:writer, :number) ON CONFLICT (writer) DO UPDATE"
                self.execute(f"{mark} SET done = excluded.done; COMMIT", marks)
                return results[0]
            except BaseException:
                self._connection.close()  # the server rolls back
                raise
            finally:
                self._is_open = False

        return self._repeat(attempt)

    def _connect(self) -> Any:
        library = self._library
        connection = library.connect(self._url, autocommit=True, cursor_factory=library.ClientCursor, **_CONNECTION)
        connection.execute(_SETTINGS)
        return connection

    def _repeat(self, attempt: Callable[[], T]) -> T:
        """Return `attempt()`; after a lost connection, connect and try again for up to 60 s."""
        end = None
        while True:
            try:
                if self._connection.closed:
                    self._connection = self._connect()
                return attempt()
            except self._library.Error as error:
                is_lost = error.diag.severity_nonlocalized in ("FATAL", "PANIC") or (
                    error.sqlstate is None
                    and isinstance(error, self._library.OperationalError | self._library.InterfaceError)
                )
                if not is_lost or (end and time.monotonic() > end):
                    raise self._failure(error) from error
                if end is None:
                    end = time.monotonic() + _WAIT_S
                    say(f"{self._url}: connection lost, reconnecting for up to {_WAIT_S} s: {error}")
                self._connection.close()
                time.sleep(_PAUSE_S)

    def _failure(self, error: Exception) -> UserError:
        password = "; set PGPASSWORD, or write the password to ~/.pgpass" if "password" in str(error) else ""
        return UserError(f"cannot use {self._url}: {error}; check {self._key} and the server{password}")
