"""How many steps a second each world of AgentGym-RL makes, what an instance costs in seconds and memory,
and how many are at work at once.

Run: `./reproduce.sh bench_worlds`. The solutions of some test items are played as rollouts play them, in one instance
and then in several at once; what a step takes holds its share of starting the items. Memory and time of a core are
those of this process and of all that it starts. Writes results/bench_worlds.json, which the table of docs/domains.md is
made of. Other programs slow all down but `core_ms`: `load` says how many wanted a core.
"""

import argparse
import asyncio
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil

from arenarl.config.schema import DataConfig, EnvironmentConfig
from arenarl.domains.domain import Domain, make_domain
from arenarl.domains.environments import environment_maker
from arenarl.report import markdown
from arenarl.report.provenance import commit, cpu
from arenarl.rollout.environment import Environment, settled, step
from arenarl.rollout.instances import Instances
from arenarl.system.atomic_files import read_json, write_json
from arenarl.system.errors import guarded, show
from arenarl.trajectory import Query, read_turns

FILE = Path("results") / "bench_worlds.json"
AT_ONCE = {"textcraft": 50, "babyai": 50, "sciworld": 4}  # instances
ITEMS = 8  # test items, spread over the columns of the paper's table

Script = tuple[Query, list[dict[str, Any]]]  # an item, and the arguments of the calls that solve it


def solved(domain: Domain, queries: Sequence[Query], environment: Environment) -> list[Script]:
    trajectories = [domain.solve(query, environment, random.Random(0), 1.0) for query in queries]
    if hasattr(environment, "close"):
        environment.close()
    calls = [[call.arguments for turn in read_turns(one.messages) for call in turn.tool_calls] for one in trajectories]
    return list(zip(queries, calls, strict=True))


async def play(instances: Instances, scripts: Iterator[Script], until: float) -> int:
    """Play until that time; returns how many steps were made."""
    steps = 0
    while time.perf_counter() < until:
        query, calls = next(scripts)
        async with instances.one() as environment:
            await settled(environment.reset(query))
            for arguments in calls:
                await step(environment, "act", arguments)
        steps += len(calls)
    return steps


async def play_at_once(
    instances: Instances, scripts: Sequence[Script], at_once: int, seconds: float
) -> tuple[float, float]:
    """(steps a second, milliseconds of a core a step)"""
    start, core_start, endless = time.perf_counter(), core_seconds(), cycle(scripts)
    steps = sum(await asyncio.gather(*(play(instances, endless, start + seconds) for _ in range(at_once))))
    return round(steps / (time.perf_counter() - start), 1), round(1000 * (core_seconds() - core_start) / steps, 3)


async def start(instances: Instances, query: Query, count: int) -> tuple[float, float]:
    """(seconds until it shows the item, MB) of each of `count` instances but the first, which loads what all share."""
    async with AsyncExitStack() as held:
        for number in range(count):
            await settled((await held.enter_async_context(instances.one())).reset(query))
            if number == 0:
                first_mb, started = memory_mb(), time.perf_counter()
        return (time.perf_counter() - started) / (count - 1), (memory_mb() - first_mb) / (count - 1)


def measure(name: str, seconds: float) -> dict[str, Any]:
    config, at_once = EnvironmentConfig(name=name, domain=name), AT_ONCE[name]
    make, domain = environment_maker(config, "en"), make_domain(config, DataConfig(language="en"))
    queries = domain.spread_over_subtasks([domain.query({"item": item}) for item in domain.items("test")], ITEMS)
    instances = Instances(make, lambda crash: show(str(crash)))
    start_s, mb = asyncio.run(start(instances, queries[0], at_once))
    scripts = solved(domain, queries, make())
    alone, core_ms = asyncio.run(play_at_once(instances, scripts, 1, seconds))
    together, _ = asyncio.run(play_at_once(instances, scripts, at_once, seconds))
    return {
        "steps_per_s": alone,
        "core_ms": core_ms,
        "at_once": at_once,
        "steps_per_s_at_once": together,
        "start_s": round(start_s, 4),
        "mb": round(mb, 2),
        "steps_of_an_item": round(sum(len(calls) for _, calls in scripts) / len(scripts), 1),
    }


def processes() -> list[psutil.Process]:
    """This one and all that it started."""
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def memory_mb() -> float:
    return sum(one.memory_info().rss for one in processes()) / 2**20


def core_seconds() -> float:
    return sum(times.user + times.system for times in (one.cpu_times() for one in processes()))


def worlds_table(results: Path) -> str:
    """A row a world, as docs/domains.md shows it."""
    summary = read_json(results / FILE.name)
    if not summary:
        return "not run"
    heads = {
        "steps_per_s": "steps a second", "core_ms": "ms of a core a step", "at_once": "instances at once",
        "steps_per_s_at_once": "steps a second, all", "start_s": "seconds to start one", "mb": "MB each",
    }  # fmt: skip
    return markdown.table(
        ["world", *heads.values()],
        [[name, *(f"{world[key]:,}" for key in heads)] for name, world in summary["worlds"].items()],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="seconds to play each world, with one instance and with several"
    )
    seconds = parser.parse_args().seconds
    load = os.getloadavg()[0]
    worlds = {name: measure(name, seconds) for name in AT_ONCE}
    write_json(
        FILE,
        {
            "worlds": worlds,
            "seconds": seconds,
            "load": round(load, 2),
            "cores": os.cpu_count(),
            "cpu": cpu(),
            "commit": commit(),
        },
    )
    print(worlds_table(FILE.parent))
    print(f"written: {FILE}")
    print(json.dumps({name: world["steps_per_s"] for name, world in worlds.items()}))


if __name__ == "__main__":
    guarded(main, goes_on=False)
