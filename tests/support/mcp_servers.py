"""MCP servers for tests, and environments with their tools."""

import asyncio
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from arenarl.config.schema import EnvironmentConfig, JudgesConfig, MCPServerConfig
from arenarl.domains.environments import environment_maker
from arenarl.rollout.environment import step

FAULTY = str(Path(__file__).with_name("faulty_mcp_server.py"))


def faulty(*options, **keys):
    """Return the config entry of faulty_mcp_server.py over stdin and stdout."""
    return MCPServerConfig(command=[sys.executable, FAULTY, *options], **keys)


def maker_of(*servers, store=None, store_only=False):
    limits = JudgesConfig(store=str(store), store_only=store_only) if store else None
    return environment_maker(EnvironmentConfig(name="mcp", mcp=list(servers)), "en", None, limits)


def environment_of(*servers, **options):
    return maker_of(*servers, **options)()


def ask(environment, *calls):
    """Return the observations of these (name, arguments) calls, made at once."""

    async def call_all():
        return await asyncio.gather(*(step(environment, name, arguments) for name, arguments in calls))

    return [result.observation for result in asyncio.run(call_all())]


def say(environment, name, /, **arguments):
    return ask(environment, (name, arguments))[0]


@contextmanager
def serving_http(*command, port=0):
    """Start a server that takes `--port`; yield (address, process) once it listens."""
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, *command, "--port", str(port)])
    try:
        for _ in range(3600):  # 180 s: a loaded machine starts it slowly
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp", process
    finally:
        process.kill()
        process.wait()
