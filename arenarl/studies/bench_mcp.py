"""How long 32 calls of a second each take, made at once over one session with an MCP server, so that rollouts do not
wait for each other's tools.

Run: `./reproduce.sh bench_mcp`. The server is our own, with a tool that waits, in a process of its own; the client is
the one of rollouts. Beside one session over HTTP: one over stdin and stdout, and a session for each call, as servers
with a state need them. A call that does not wait says what a call costs. Writes results/bench_mcp.json.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from arenarl.config.schema import EnvironmentConfig, MCPServerConfig
from arenarl.domains.environments import environment_maker
from arenarl.report import markdown
from arenarl.report.provenance import commit, cpu
from arenarl.rollout.environment import Environment, observe, settled, tool_schema
from arenarl.system.atomic_files import read_json, write_json
from arenarl.system.errors import guarded
from arenarl.system.repository import ROOT

FILE = Path("results") / "bench_mcp.json"
AT_ONCE = 32
BOUND_S = 2.0  # of one session over HTTP, with calls of a second
IN_TURN = 100  # calls that do not wait


class Waiting:
    """An `Environment` whose one tool takes as long as it is told."""

    shared = True
    tools = [tool_schema("wait", "Waits.", {"seconds": {"type": "number"}})]

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        await asyncio.sleep(arguments["seconds"])
        return "done"


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "arenarl.studies.bench_mcp", "--serve", *words]


@contextmanager
def served_over_http() -> Iterator[str]:
    """The address of a server that ends afterwards."""
    process = subprocess.Popen(command("--port", "0"), stderr=subprocess.PIPE, text=True)
    try:
        yield process.stderr.readline().split()[-1]
    finally:
        process.terminate()
        process.wait()


async def all_at_once(environments: list[Environment], seconds: float) -> float:
    """Seconds until the last of as many calls has its result."""
    start = time.perf_counter()
    seen = await asyncio.gather(*(observe(environment, "wait", {"seconds": seconds}) for environment in environments))
    taken = time.perf_counter() - start
    await asyncio.gather(*(settled(environment.close()) for environment in set(environments)))
    assert set(seen) == {"done"}, set(seen)
    return taken


async def in_turn(environment: Environment, count: int) -> float:
    """Milliseconds a call."""
    start = time.perf_counter()
    for _ in range(count):
        await observe(environment, "wait", {"seconds": 0})
    return 1000 * (time.perf_counter() - start) / count


def measure(server: MCPServerConfig, seconds: float, repeats: int) -> dict[str, Any]:
    """Of a shared session each repeat is measured; sessions of their own are made within the time."""
    make = environment_maker(EnvironmentConfig(name="mcp", mcp=[server]), "en")
    own = server.session == "trajectory"
    taken = [
        asyncio.run(all_at_once([make() for _ in range(AT_ONCE)] if own else [make()] * AT_ONCE, seconds))
        for _ in range(repeats)
    ]
    figures = {"seconds": [round(one, 3) for one in taken]}
    return figures if own else figures | {"ms_a_call": round(asyncio.run(in_turn(make(), IN_TURN)), 2)}


def run(seconds: float, repeats: int) -> dict[str, Any]:
    with served_over_http() as url:
        shared = {"concurrency": AT_ONCE, "timeout_s": 60.0}
        return {
            "http": measure(MCPServerConfig(url=url, **shared), seconds, repeats),
            "stdio": measure(
                MCPServerConfig(command=command(), env={"PYTHONPATH": str(ROOT)}, **shared), seconds, repeats
            ),
            "http_session_each": measure(MCPServerConfig(url=url, session="trajectory", **shared), seconds, repeats),
        }


def mcp_table(results: Path) -> str:
    """A row a kind of session, as docs/domains.md shows it."""
    if not (summary := read_json(results / FILE.name)):
        return "not run"
    words = {
        "http": "one session over HTTP",
        "stdio": "one over stdin and stdout",
        "http_session_each": "one a call over HTTP, its start included",
    }
    heads = [
        "",
        f"{summary['calls_at_once']} calls of {summary['seconds_a_call']:g} s at once, seconds",
        "ms a call that does not wait",
    ]
    of = {
        name: (" / ".join(map(str, summary[name]["seconds"])), str(summary[name].get("ms_a_call", "-")))
        for name in words
    }
    return markdown.table(heads, [[words[name], *cells] for name, cells in of.items()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds per call")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help="run as the server")
    parser.add_argument("--port", type=int, help="port of the server, for HTTP")
    arguments = parser.parse_args()
    if arguments.serve:
        from arenarl.rollout.mcp_server import serve, server_of

        serve(server_of(Waiting(), "waiting"), arguments.port)
        return
    load = os.getloadavg()[0]
    figures = run(arguments.seconds, arguments.repeats)
    about = {"calls_at_once": AT_ONCE, "seconds_a_call": arguments.seconds, "bound_s": BOUND_S}
    write_json(
        FILE, figures | about | {"load": round(load, 2), "cores": os.cpu_count(), "cpu": cpu(), "commit": commit()}
    )
    for name, figure in figures.items():
        each = f", {figure['ms_a_call']} ms a call that does not wait" if "ms_a_call" in figure else ""
        print(
            f"{name:<18} {AT_ONCE} calls of {arguments.seconds:g} s at once: "
            f"{', '.join(f'{one:.2f}' for one in figure['seconds'])} s{each}"
        )
    print(f"written: {FILE}")
    print(json.dumps({name: max(figure["seconds"]) for name, figure in figures.items()}))


if __name__ == "__main__":
    guarded(main, goes_on=False)
