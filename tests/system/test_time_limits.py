"""Calls end within their time limit; the limits of environments are tested in rollout/test_worlds.py."""

import asyncio
import subprocess
import sys
import time

import pytest

from arenarl.system.time_limits import await_within

# sqlite neither returns nor looks at signals, and `_EXTRA_S` is a minute
ENDLESS = """
import sqlite3
from arenarl.system import time_limits
time_limits._EXTRA_S = 0
query = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
time_limits.run_within(0.1, lambda: sqlite3.connect(":memory:").execute(query).fetchall())
"""


@pytest.mark.slow(seconds=3)
def test_compiled_code_that_never_returns_ends_the_process_with_a_line():
    ended = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=600)
    assert ended.returncode == 2 and "cannot be interrupted" in ended.stderr and ended.stderr.count("\n") == 1


def test_generation_that_blocks_the_event_loop_does_not_count_against_a_call():
    async def with_generation():
        waiting = asyncio.create_task(await_within(0.3, asyncio.sleep(0.2, "done")))
        await asyncio.sleep(0.05)
        time.sleep(1)
        return await waiting

    assert asyncio.run(with_generation()) == "done"
