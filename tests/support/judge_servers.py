"""Real judge servers on localhost, for tests, and clients that ask them."""

import asyncio
import time
from contextlib import contextmanager

from aiohttp import web

from arenarl.config.schema import SIMULATED_MODEL, JudgeConfig, JudgesConfig, LLMConfig
from arenarl.judges.llm import LLMJudge
from arenarl.llm.client import LLMClient
from arenarl.system.loop_thread import LoopThread


@contextmanager
def serving(app, port=0):
    """The address of an aiohttp application that runs in a thread of its own."""
    thread, runner = LoopThread("server"), web.AppRunner(app, shutdown_timeout=0.1)

    async def start():
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()

    thread.submit(start()).result(60)
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        thread.submit(runner.cleanup()).result(60)
        thread.close()


def client_of(folder, run="run", keys=None, log=None, processes=1, rank=0, **limits):
    return LLMClient(JudgesConfig(store=str(folder / "replies.sqlite"), **limits), run, keys or {}, processes, rank, log)


def judge_of(url, client, **keys):
    settings = {"timeout_s": 60.0, "patience_s": 120.0, "api_key_variable": None} | keys
    return LLMJudge(JudgeConfig(name="llm", model=SIMULATED_MODEL, base_url=url, **settings), client)


class Script:
    """A server that answers request number n with `replies[n]`, the last for all later: text, (status, body, headers), seconds to wait."""

    def __init__(self, *replies):
        self.replies, self.requests, self.keys, self.times = list(replies), [], [], []
        self.app = web.Application()
        self.app.router.add_post("/v1/chat/completions", self._reply)

    async def _reply(self, request):
        self.requests.append(await request.json())
        self.keys.append(request.headers["Authorization"])
        self.times.append(time.monotonic())
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, tuple):
            status, body, headers = reply
            return web.Response(status=status, text=body, headers={"Content-Type": "application/json"} | headers)
        if isinstance(reply, float):
            await asyncio.sleep(reply)
            reply = '{"score": 1}'
        return completion(reply)


def completion(text):
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010}
    return web.json_response({"id": "1", "object": "chat.completion", "created": 0, "model": "m-1", "choices": [choice], "usage": usage})


def llm(url, **keys):
    return LLMConfig(model="m", base_url=url, **({"api_key_variable": None, "timeout_s": 2.0, "patience_s": 10.0} | keys))
