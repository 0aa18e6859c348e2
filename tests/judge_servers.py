"""Real judge servers on localhost, for tests, and clients that ask them."""

import asyncio
import threading
from contextlib import contextmanager

from aiohttp import web

from arenarl.config import SIMULATED_MODEL, JudgeConfig, JudgesConfig
from arenarl.llm_client import LLMClient
from arenarl.llm_judge import LLMJudge


@contextmanager
def serving(app, port=0):
    """The address of an aiohttp application that runs in a thread of its own."""
    loop, is_up = asyncio.new_event_loop(), threading.Event()
    runner = web.AppRunner(app, shutdown_timeout=0.1)

    def run():
        async def start():
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", port).start()
            is_up.set()

        loop.run_until_complete(start())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert is_up.wait(60)
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)


def client_of(folder, run="run", keys=None, log=None, processes=1, rank=0, **limits):
    return LLMClient(JudgesConfig(store=str(folder / "replies.sqlite"), **limits), run, keys or {}, processes, rank, log)


def judge_of(url, client, **keys):
    settings = {"timeout_s": 60.0, "patience_s": 120.0, "api_key_variable": None} | keys
    return LLMJudge(JudgeConfig(name="llm", model=SIMULATED_MODEL, base_url=url, **settings), client)
