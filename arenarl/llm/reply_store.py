"""Store LLM replies on disk, so that no call is paid for twice, and record the spending of each run.

Several processes and runs can share one sqlite file. A reply is stored unchanged, under a hash of everything that it
depends on, and parsed again at each use. A reply that no longer equals its hash is requested again. Spending is
recorded by stage, <run>/<stage>; limits apply to all stages of a run together.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arenarl.system.counters import Summable
from arenarl.system.database import json_hash, open_database
from arenarl.system.errors import UserError
from arenarl.system.progress import say

_SCHEMA = """
CREATE TABLE IF NOT EXISTS replies (
    key TEXT PRIMARY KEY, model TEXT, text TEXT, tokens_in INTEGER, tokens_out INTEGER, created REAL);
CREATE TABLE IF NOT EXISTS hashes (key TEXT, sha256 TEXT, PRIMARY KEY (key, sha256)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS spent (
    run TEXT PRIMARY KEY, calls INTEGER DEFAULT 0, tokens_in INTEGER DEFAULT 0, tokens_out INTEGER DEFAULT 0, cost REAL DEFAULT 0);
"""  # noqa: E501
_OF_RUN = "(run = :run OR substr(run, 1, length(:run) + 1) = :run || '/')"


@dataclass(frozen=True)
class StoredReply:
    """A reply: the model's text, the model's name from the API, and the billed tokens, None if unknown.
    If the reply was cut off, `tokens_out` is at least the request's token limit."""

    text: str
    model: str
    tokens_in: int | None
    tokens_out: int | None


@dataclass
class Usage(Summable):
    """LLM calls and their cost, counted for one process since its last report or for a run so far."""

    verdicts: int = 0  # requested verdicts and other replies, from the store or not
    failed: int = 0  # verdicts without a reply, or without a reply that parses
    unreadable: int = 0  # replies that do not parse; the first one is requested again
    from_store: int = 0  # replies from the store, already paid for
    calls: int = 0  # replies paid for
    retries: int = 0  # attempts that ended in a timeout, 429, 5xx, a cut connection or an invalid completion
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0  # of `tokens_in`, read from the API's cache
    unknown_tokens: int = 0  # replies without a believable token count; charged the maximum possible cost
    cost: float = 0.0


def reply_key(base_url: str, request: dict[str, Any], repeat: int) -> str:
    """Hash everything that a reply depends on: endpoint, model, messages, parameters, schema, repeat number."""
    return json_hash([base_url, request, repeat])


def run_of(stage: str) -> str:
    """Return the run of a stage <run>/<stage>. A name without a slash is the run itself.

    >>> run_of("quickstart/rl"), run_of("quickstart")
    ('quickstart', 'quickstart')
    """
    return stage.rpartition("/")[0] or stage


class ReplyStore:
    """Replies by key and spending by stage, for use from one thread.
    All methods raise UserError if the file is unusable: a full disk, a missing table, a lock that stays."""

    def __init__(self, path: Path):
        self._path, self._db = path, open_database(path, _SCHEMA, "judge.store")
        self._stages: set[str] = set()  # stages with a row in `spent`

    def _execute(self, statement: str, values: Any) -> sqlite3.Cursor:
        try:
            return self._db.execute(statement, values)
        except sqlite3.Error as error:
            remedy = "change judge.store, or free disk space and restart"
            raise UserError(f"cannot use {self._path}: {error}; {remedy}") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes of the `with` block one transaction: a killed process leaves all of them or none."""
        self._execute("BEGIN IMMEDIATE", ())
        try:
            yield
            self._execute("COMMIT", ())
        except BaseException:
            if self._db.in_transaction:  # sqlite itself rolls back after some errors, such as a full disk
                self._execute("ROLLBACK", ())
            raise

    def get(self, key: str) -> StoredReply | None:
        """Return a stored reply. Deletes a reply that was changed; replies of earlier versions have no hash."""
        hashes = "(SELECT group_concat(sha256) FROM hashes WHERE hashes.key = replies.key)"
        columns = f"text, model, tokens_in, tokens_out, {hashes}"
        row = self._execute(f"SELECT {columns} FROM replies WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        *content, known = row
        if known is None or json_hash(content) in known:
            return StoredReply(*content)
        say(f"{self._path}: a stored reply was changed; requesting it again")
        self._execute("DELETE FROM replies WHERE key = ?", (key,))
        return None

    def put(self, key: str, reply: StoredReply) -> StoredReply:
        """Store a reply and return the stored one: the first writer wins, so another process's reply may be
        returned."""
        content = (reply.text, reply.model, reply.tokens_in, reply.tokens_out)
        self._execute("INSERT OR IGNORE INTO hashes VALUES (?, ?)", (key, json_hash(content)))
        row = (key, reply.model, reply.text, reply.tokens_in, reply.tokens_out, time.time())
        is_first = self._execute("INSERT OR IGNORE INTO replies VALUES (?, ?, ?, ?, ?, ?)", row).rowcount == 1
        return reply if is_first else self.get(key)

    def reserve(self, stage: str, max_calls: int | None, max_cost: float | None) -> bool:
        """Reserve one call for the stage; return False if that would exceed a limit of its run.
        `max_calls` is exact over all processes. When `max_cost` is reached, calls already under way still end."""
        if stage not in self._stages:
            self._execute("INSERT OR IGNORE INTO spent (run) VALUES (?)", (stage,))
            self._stages.add(stage)
        within = "(:calls IS NULL OR total(calls) < :calls) AND (:cost IS NULL OR total(cost) < :cost)"
        reserve = (
            f"UPDATE spent SET calls = calls + 1 WHERE run = :stage AND (SELECT {within} FROM spent WHERE {_OF_RUN})"
        )
        limits = {"stage": stage, "run": run_of(stage), "calls": max_calls, "cost": max_cost}
        return self._execute(reserve, limits).rowcount == 1

    def release(self, stage: str) -> None:
        """Cancel the reservation of a call without a reply."""
        self._execute("UPDATE spent SET calls = calls - 1 WHERE run = ?", (stage,))

    def charge(self, stage: str, paid: Usage) -> None:
        """Add the tokens and the cost of a reserved call."""
        add = "UPDATE spent SET tokens_in = tokens_in + ?, tokens_out = tokens_out + ?, cost = cost + ? WHERE run = ?"
        self._execute(add, (paid.tokens_in, paid.tokens_out, paid.cost, stage))

    def spent(self, stage: str) -> Usage:
        """Return the calls, tokens and cost of the stage's whole run, over all stages, processes and restarts."""
        totals = "coalesce(sum(calls), 0), coalesce(sum(tokens_in), 0), coalesce(sum(tokens_out), 0), total(cost)"
        row = self._execute(f"SELECT {totals} FROM spent WHERE {_OF_RUN}", {"run": run_of(stage)}).fetchone()
        return Usage(**dict(zip(("calls", "tokens_in", "tokens_out", "cost"), row, strict=True)))
