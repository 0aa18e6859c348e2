"""A real vLLM server, started as a user does, and an HTTP server that stands in for it."""

import os
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import judge_servers
import psutil
from aiohttp import web
from scripts import CONFIG, ENVIRONMENT, TINY, sets_of

from arenarl.judges.local_server import free_port


@contextmanager
def vllm_server(folder, *flags, port=None, **overrides):
    """Serve the policy of a tiny run in `folder`; yield (address, process) once the server answers.

    `overrides` are config keys with `__` for the dot.
    """
    url = f"http://127.0.0.1:{port or free_port()}"
    keys = TINY | {"rollout.server_url": url} | {key.replace("__", "."): value for key, value in overrides.items()}
    command = [sys.executable, "-m", "arenarl.rollout.vllm_server", "--config", CONFIG, *sets_of(keys), "--"]
    command.append("--enforce-eager")
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen([*command, *flags], cwd=folder, env=os.environ | ENVIRONMENT, stdout=log, stderr=log)
    try:
        while process.poll() is None and not _is_up(url):
            time.sleep(1)
        assert process.poll() is None, (folder / "server.log").read_text()[-4000:]
        yield url, process
    finally:
        end(process)


def _is_up(url):
    try:
        with urllib.request.urlopen(url + "/health", timeout=10) as reply:
            return reply.status == 200
    except OSError:
        return False


def end(process):
    """Kill a process and its children."""
    if process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
    process.wait()


@contextmanager
def serving(replies, status=200):
    """Yield (url, requests) of an HTTP server that answers the paths in `replies`, and others with 404."""
    requests = []

    async def answer(request):
        requests.append((request.path, await request.json() if request.can_read_body else None))
        if request.path not in replies:
            return web.Response(status=404, text="Not Found")
        return web.json_response(replies[request.path], status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    with judge_servers.serving(app) as url:
        yield url.removesuffix("/v1"), requests
