"""The replies of LLMs on disk, so that no call is paid for twice, and what each run has paid.

One sqlite file that several processes and runs can share. A reply is kept as it came, under a hash of all that it
depends on; what it means is read from it anew each time. A run pays by stage, <run>/<stage>, and has its limits for all
its stages together.
"""

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arenarl.system.counters import Summable
from arenarl.system.database import json_hash, open_database
from arenarl.system.errors import UserError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS replies (
    key TEXT PRIMARY KEY, model TEXT, text TEXT, tokens_in INTEGER, tokens_out INTEGER, created REAL);
CREATE TABLE IF NOT EXISTS spent (
    run TEXT PRIMARY KEY, calls INTEGER DEFAULT 0, tokens_in INTEGER DEFAULT 0, tokens_out INTEGER DEFAULT 0, cost REAL DEFAULT 0);
"""  # noqa: E501
_OF_RUN = "(run = :run OR substr(run, 1, length(:run) + 1) = :run || '/')"


@dataclass(frozen=True)
class StoredReply:
    """A reply's text as the model wrote it, the model's name as the API gave it, and the tokens that were billed; None
    if it did not say. Of a reply that was cut off `tokens_out` is at least its limit."""

    text: str
    model: str
    tokens_in: int | None
    tokens_out: int | None


@dataclass
class Usage(Summable):
    """LLM calls and what they cost: of a process since they were last taken, or of a run so far."""

    verdicts: int = 0  # and other replies asked for, from the store or not
    failed: int = 0  # of these without a reply, or without one that parses
    unreadable: int = 0  # replies that do not parse; each is asked for again once
    from_store: int = 0  # replies that had been paid for before
    calls: int = 0  # replies paid for
    retries: int = 0  # attempts that ended in a timeout, 429, 5xx, a cut connection or no completion
    tokens_in: int = 0
    tokens_out: int = 0
    # replies paid for whose tokens the API does not say, or not believably; their cost is the most it can be
    unknown_tokens: int = 0
    cost: float = 0.0


def reply_key(base_url: str, request: dict[str, Any], repeat: int) -> str:
    """Hash all that a reply depends on: endpoint, model, messages, parameters, schema, number of the repeat."""
    return json_hash([base_url, request, repeat])


def run_of(stage: str) -> str:
    """The run that a stage is of: one without a name of its own is the run.

    >>> run_of("quickstart/rl"), run_of("quickstart")
    ('quickstart', 'quickstart')
    """
    return stage.rpartition("/")[0] or stage


class ReplyStore:
    """Replies by key and spending by stage. To be used from one thread.
    All methods raise UserError if the file cannot be used: a full disk, another table, a lock that stays."""

    def __init__(self, path: Path):
        self._path, self._db = path, open_database(path, _SCHEMA, "judge.store")

    def _execute(self, statement: str, values: Any) -> sqlite3.Cursor:
        try:
            return self._db.execute(statement, values)
        except sqlite3.Error as error:
            remedy = "change judge.store, or make room and start it again"
            raise UserError(f"cannot use {self._path}: {error}; {remedy}") from error

    def get(self, key: str) -> StoredReply | None:
        row = self._execute("SELECT text, model, tokens_in, tokens_out FROM replies WHERE key = ?", (key,)).fetchone()
        return StoredReply(*row) if row else None

    def put(self, key: str, reply: StoredReply) -> StoredReply:
        """Keep a reply; returns the one that counts, which is another process's if it came first."""
        row = (key, reply.model, reply.text, reply.tokens_in, reply.tokens_out, time.time())
        self._execute("INSERT OR IGNORE INTO replies VALUES (?, ?, ?, ?, ?, ?)", row)
        return self.get(key)

    def reserve(self, stage: str, max_calls: int | None, max_cost: float | None) -> bool:
        """Count one more call of the stage, unless that would go beyond what its run may pay. Exact over processes for
        calls; by cost, calls that are under way when the limit is reached still end."""
        self._execute("INSERT OR IGNORE INTO spent (run) VALUES (?)", (stage,))
        within = "(:calls IS NULL OR total(calls) < :calls) AND (:cost IS NULL OR total(cost) < :cost)"
        reserve = (
            f"UPDATE spent SET calls = calls + 1 WHERE run = :stage AND (SELECT {within} FROM spent WHERE {_OF_RUN})"
        )
        limits = {"stage": stage, "run": run_of(stage), "calls": max_calls, "cost": max_cost}
        return self._execute(reserve, limits).rowcount == 1

    def release(self, stage: str) -> None:
        """Take back a reserved call that brought no reply."""
        self._execute("UPDATE spent SET calls = calls - 1 WHERE run = ?", (stage,))

    def charge(self, stage: str, paid: Usage) -> None:
        """Add what a reserved call's reply cost."""
        add = "UPDATE spent SET tokens_in = tokens_in + ?, tokens_out = tokens_out + ?, cost = cost + ? WHERE run = ?"
        self._execute(add, (paid.tokens_in, paid.tokens_out, paid.cost, stage))

    def spent(self, stage: str) -> Usage:
        """Calls, tokens and cost that all stages of its run have paid for, over all processes and restarts."""
        totals = "coalesce(sum(calls), 0), coalesce(sum(tokens_in), 0), coalesce(sum(tokens_out), 0), total(cost)"
        row = self._execute(f"SELECT {totals} FROM spent WHERE {_OF_RUN}", {"run": run_of(stage)}).fetchone()
        return Usage(**dict(zip(("calls", "tokens_in", "tokens_out", "cost"), row, strict=True)))
