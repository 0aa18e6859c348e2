"""Store LLM replies on disk, so that no call is paid for twice, and record the spending of each run.

Several processes and runs can share one sqlite file, several machines one PostgreSQL database. A reply is stored
unchanged, under a hash of everything that it depends on, and parsed again at each use. A reply that no longer equals
its hash is requested again. Spending is recorded by stage, <run>/<stage>; limits apply to all stages of a run together.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from arenarl.system.atomic_files import json_hash
from arenarl.system.counters import Summable
from arenarl.system.database import open_database
from arenarl.system.progress import say

T = TypeVar("T")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY,
    model TEXT, text TEXT, tokens_in BIGINT, tokens_out BIGINT, created DOUBLE PRECISION);
CREATE TABLE IF NOT EXISTS hashes (key TEXT, sha256 TEXT, PRIMARY KEY (key, sha256));
CREATE TABLE IF NOT EXISTS spent (run TEXT PRIMARY KEY,
    calls BIGINT DEFAULT 0, tokens_in BIGINT DEFAULT 0, tokens_out BIGINT DEFAULT 0, cost DOUBLE PRECISION DEFAULT 0);
"""
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


def cost_text(cost: float) -> str:
    """Return a cost with two decimals, or with two digits if it is smaller.

    >>> cost_text(1234.5), cost_text(0.00123), cost_text(0.0)
    ('1,234.50', '0.0012', '0.00')
    """
    return f"{cost:.2g}" if 0 < cost < 0.01 else f"{cost:,.2f}"


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
    """Replies by key and spending by stage, for use from one thread. `place` is a file or a URL, as `judge.store`.
    All methods raise UserError if the store is unusable: a full disk, a missing table, a lock that stays."""

    def __init__(self, place: str | Path):
        self._place, self._db = place, open_database(place, _SCHEMA, "judge.store")
        self._stages: set[str] = set()  # stages with a row in `spent`

    def transaction(self, work: Callable[[], T]) -> T:
        """Make all changes of `work` in one transaction: a killed process leaves all or none of them. `work` may run
        again after a lost connection, so it must change nothing but the store."""
        return self._db.transaction(work)

    def get(self, key: str) -> StoredReply | None:
        """Return a stored reply, or None. Deletes a changed reply; replies of earlier versions have no hash."""
        columns = "text, model, tokens_in, tokens_out, sha256"
        select = f"SELECT {columns} FROM replies LEFT JOIN hashes ON hashes.key = replies.key WHERE replies.key = :key"
        rows = self._db.execute(select, {"key": key}).fetchall()
        if not rows:
            return None
        content, known = rows[0][:-1], [row[-1] for row in rows]
        if known == [None] or json_hash(content) in known:
            return StoredReply(*content)
        say(f"{self._place}: a stored reply was changed; requesting it again")
        self._db.execute("DELETE FROM replies WHERE key = :key", {"key": key})
        return None

    def put(self, key: str, reply: StoredReply) -> StoredReply:
        """Store a reply and return the stored reply. The first writer wins, so it may be another process's reply.
        A character that PostgreSQL cannot store, NUL, is replaced by U+FFFD."""
        text, model = (part.replace("\0", "\ufffd") for part in (reply.text, reply.model))
        reply = replace(reply, text=text, model=model)
        content = (reply.text, reply.model, reply.tokens_in, reply.tokens_out)
        hashed = {"key": key, "sha256": json_hash(content)}
        self._db.execute("INSERT INTO hashes VALUES (:key, :sha256) ON CONFLICT DO NOTHING", hashed)
        row = {"key": key, "created": time.time(), **vars(reply)}
        insert = "INSERT INTO replies VALUES (:key, :model, :text, :tokens_in, :tokens_out, :created)"
        is_first = self._db.execute(f"{insert} ON CONFLICT DO NOTHING", row).rowcount == 1
        return reply if is_first else self.get(key)

    def reserve(self, stage: str, max_calls: int | None, max_cost: float | None) -> bool:
        """Reserve one call for the stage; return False if that would exceed a limit of its run.
        `max_calls` is exact over all processes. When `max_cost` is reached, calls already under way still end."""
        if stage not in self._stages:
            self._db.execute("INSERT INTO spent (run) VALUES (:stage) ON CONFLICT DO NOTHING", {"stage": stage})
            self._stages.add(stage)
        within = f"(SELECT sum(calls) < :calls AND sum(cost) < :cost FROM spent WHERE {_OF_RUN})"
        limits = {"calls": inf if max_calls is None else max_calls, "cost": inf if max_cost is None else max_cost}
        values = {"stage": stage, "run": run_of(stage)} | limits
        return self._add(f"calls = calls + 1 WHERE run = :stage AND {within}", values) == 1

    def release(self, stage: str) -> None:
        """Cancel the reservation of a call without a reply."""
        self._add("calls = calls - 1 WHERE run = :stage", {"stage": stage})

    def charge(self, stage: str, paid: Usage) -> None:
        """Add the tokens and the cost of a reserved call."""
        add = "tokens_in = tokens_in + :tokens_in, tokens_out = tokens_out + :tokens_out, cost = cost + :cost"
        self._add(f"{add} WHERE run = :stage", {"stage": stage, **vars(paid)})

    def _add(self, change: str, values: dict[str, Any]) -> int:
        """Change the spending exactly once, and return the number of changed rows."""
        return self.transaction(lambda: self._db.execute(f"UPDATE spent SET {change}", values).rowcount)

    def spent(self, stage: str) -> Usage:
        """Return the calls, tokens and cost of the stage's whole run, over all stages, processes and restarts."""
        totals = "sum(calls), sum(tokens_in), sum(tokens_out), sum(cost)"
        row = self._db.execute(f"SELECT {totals} FROM spent WHERE {_OF_RUN}", {"run": run_of(stage)}).fetchone()
        calls, tokens_in, tokens_out, cost = row if row[0] is not None else (0, 0, 0, 0)
        return Usage(calls=int(calls), tokens_in=int(tokens_in), tokens_out=int(tokens_out), cost=float(cost))
