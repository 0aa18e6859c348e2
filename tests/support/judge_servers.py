"""Real judge servers on localhost, and their clients."""

import asyncio
import json
import random
import time
from collections import Counter
from contextlib import contextmanager

from aiohttp import web
from hostile import NO_COMPLETION, completion_of, mutated

from arenarl.config.schema import SIMULATED_MODEL, JudgeConfig, JudgesConfig, LLMConfig
from arenarl.judges.llm import LLMJudge
from arenarl.llm.client import LLMClient
from arenarl.system.event_loops import LoopThread

# generous: on a loaded machine, a reply may take seconds
CALL_LIMITS = {"api_key_variable": None, "timeout_s": 60.0, "patience_s": 120.0}


@contextmanager
def serving(app, port=0):
    """Run an aiohttp application in its own thread and yield its address."""
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


def answering(reply):
    """Return an application that answers chat completions with `await reply(request)`."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", reply)
    return app


def client_of(folder, stage="run", keys=None, log=None, **limits):
    return LLMClient(JudgesConfig(store=str(folder / "replies.sqlite"), **limits), stage, keys or {}, log)


def judge_of(url, client, **keys):
    return LLMJudge(JudgeConfig(name="llm", model=SIMULATED_MODEL, base_url=url, **CALL_LIMITS | keys), client)


def write_judge(folder, url, **keys):
    """Write the YAML of a judge at this address, and return its path."""
    path = folder / "judge.yaml"
    path.write_text(json.dumps({"name": "llm", "model": "m", "base_url": url, "api_key_variable": None} | keys))
    return path


class Script:
    """A server that answers request n with `replies[n]`, and later ones with the last reply.

    A reply is a text, (status, body, headers), or the seconds to wait before a score.
    """

    def __init__(self, *replies):
        self.replies, self.requests, self.keys, self.times = list(replies), [], [], []
        self.app = answering(self._reply)

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
    return web.json_response(completion_of(text))


def llm(url, **keys):
    return LLMConfig(model="m", base_url=url, **CALL_LIMITS | keys)


def by_prompt(play):
    """Return an application that answers with `play(prompt, number)`; `number` counts this prompt's requests from 0."""
    seen = Counter()

    async def reply(request):
        text = (await request.json())["messages"][-1]["content"]
        seen[text] += 1
        return play(text, seen[text] - 1)

    return answering(reply)


@web.middleware
async def hostile_half(request, handler):
    """Replace the replies to half of the prompts by malformed replies, or by completions with junk in them."""
    rng = random.Random(await request.text())
    reply = await handler(request)
    if reply.status != 200 or rng.random() < 0.5:
        return reply
    body, is_broken = json.loads(reply.body), rng.random() < 0.5
    return raw(NO_COMPLETION[rng.choice(list(NO_COMPLETION))] if is_broken else json.dumps(mutated(rng, body)).encode())


def raw(body, status=200, **headers):
    return web.Response(status=status, body=body, headers={"Content-Type": "application/json"} | headers)
