"""How long it takes to rank groups with a judge over HTTP, against the least that it can take,
and what we add to it ourselves.

    python -m arenarl.studies.bench_tournament [--topology swiss|…|all] [--groups 8] [--group_size 16]
        [--concurrency 8] [--delay_s 1]

All groups share one limit of `concurrency` calls to a judge in another process (`delayed_judge.py`), which takes
`delay_s` for each. The bound knows nothing of HTTP: its few milliseconds a call show where the delay is short. Printed
is a row a topology, and at last a line of JSON; for `all`, its `ratio_to_bound` and `overhead_ms` are the worst,
`seconds`, `bound_s` and `calls` are sums, and `paper_calls` is null, as the paper does not count every topology.
"""

import argparse
import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any

from aiohttp import ClientSession, ClientTimeout, TCPConnector

from arenarl.studies.delayed_judge import delayed_judge
from arenarl.system.errors import UserError, guarded
from arenarl.tournament.group_stage import Choose
from arenarl.tournament.play import Compare, play_tournament
from arenarl.tournament.ranking import Ranking
from arenarl.tournament.schedules import check_choice
from arenarl.tournament.topologies import ALL_TOPOLOGIES, paper_calls

PLAYS = 50  # of which the fastest is our overhead: what else the machine does can only slow a play down
GRACE_S = 60  # that a call may take above the judge's delay before it is given up

Ask = Callable[[Sequence[int]], Awaitable[list[float]]]


def least_seconds(rankings: Sequence[Ranking], concurrency: int, delay_s: float) -> float:
    """The bound: the longest chain of calls, or all calls spread over all slots, whichever takes longer.

    A match is one call long, as its two orders run at once.
    """
    longest_chain = max(ranking.critical_path for ranking in rankings)
    return delay_s * max(longest_chain, sum(ranking.judge_calls for ranking in rankings) / concurrency)


def as_judge(topology: str, ask: Ask) -> Compare | Choose:
    """What `topology` calls its judge by, for a judge that scores what it is shown."""

    async def compare(i: int, j: int) -> list[float]:
        return await ask((i, j))

    async def choose(shown: tuple[int, ...], winners: int) -> list[int]:
        score_of = dict(zip(shown, await ask(shown), strict=True))
        return sorted(shown, key=score_of.get, reverse=True)[:winners]

    return choose if topology == "group_stage" else compare


async def overhead_ms(topology: str, group_size: int, concurrency: int) -> float:
    """Milliseconds to rank one group with a judge in this process that answers at once;
    what loads on first use is loaded before."""

    async def ask(shown: Sequence[int]) -> list[float]:
        return [float(i) for i in shown]  # the anchor is the worst, so its matches do not spare the bracket many

    async def seconds() -> float:
        start_s = perf_counter()
        await play_tournament(topology, group_size, as_judge(topology, ask), limit=asyncio.Semaphore(concurrency))
        return perf_counter() - start_s

    await seconds()
    return 1000 * min([await seconds() for _ in range(PLAYS)])


async def rank_over_http(
    url: str, topology: str, groups: int, group_size: int, concurrency: int, delay_s: float
) -> tuple[list[Ranking], float]:
    """(rankings, seconds) of all groups at once. Raises RuntimeError if a call failed:
    the time would be of other matches."""
    limit = asyncio.Semaphore(concurrency)
    # The limit shared by the groups is the only one: without limit=0, the client would have one of its own.
    connector, timeout = TCPConnector(limit=0), ClientTimeout(total=delay_s + GRACE_S)
    async with ClientSession(url, connector=connector, timeout=timeout, raise_for_status=True) as session:

        def judge_of(group: int) -> Compare | Choose:
            async def ask(shown: Sequence[int]) -> list[float]:
                async with session.post("/judge", json={"group": group, "shown": shown}) as reply:
                    return (await reply.json())["scores"]

            return as_judge(topology, ask)

        start_s = perf_counter()
        plays = [
            play_tournament(topology, group_size, judge_of(group), seed=group, limit=limit) for group in range(groups)
        ]
        rankings = await asyncio.gather(*plays)
        seconds = perf_counter() - start_s
    failed = [match for ranking in rankings for match in ranking.failed_matches]
    if failed:
        raise RuntimeError(f"{len(failed)} matches of {topology} failed, one by: {failed[0].error}")
    return rankings, seconds


def measure(url: str, topology: str, groups: int, group_size: int, concurrency: int, delay_s: float) -> dict[str, Any]:
    """One row: what was asked, what it took and what it should."""
    own_ms = asyncio.run(overhead_ms(topology, group_size, concurrency))  # first, as it loads what the timed run needs
    rankings, seconds = asyncio.run(rank_over_http(url, topology, groups, group_size, concurrency, delay_s))
    bound_s = least_seconds(rankings, concurrency, delay_s)
    counted = paper_calls(topology, group_size)
    return {
        "topology": topology,
        "groups": groups,
        "group_size": group_size,
        "concurrency": concurrency,
        "delay_s": delay_s,
        "calls": sum(ranking.judge_calls for ranking in rankings),
        "paper_calls": None if counted is None else groups * counted,
        "seconds": round(seconds, 3),
        "bound_s": round(bound_s, 3),
        "ratio_to_bound": round(seconds / bound_s, 4),
        "overhead_ms": round(own_ms, 2),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the last line says: the row itself, or of several the worst and the sums, with the rows."""
    if len(rows) == 1:
        return rows[0]
    worst = {name: max(row[name] for row in rows) for name in ("ratio_to_bound", "overhead_ms")}
    sums = {name: round(sum(row[name] for row in rows), 3) for name in ("calls", "seconds", "bound_s")}
    counted = [row["paper_calls"] for row in rows]
    return (
        rows[0]
        | worst
        | sums
        | {"topology": "all", "paper_calls": None if None in counted else sum(counted), "rows": rows}
    )


def format_row(row: dict[str, Any]) -> str:
    counted = "-" if row["paper_calls"] is None else row["paper_calls"]
    figures = f"{row['seconds']:>9.2f}{row['bound_s']:>9.2f}{row['ratio_to_bound']:>8.3f}{row['overhead_ms']:>13.2f}"
    return f"{row['topology']:<27}{row['calls']:>6}{counted:>13}{figures}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--topology", default="seeded_single_elimination", help=f"one of {', '.join(ALL_TOPOLOGIES)}; or all"
    )
    parser.add_argument("--groups", type=int, default=8, help="groups ranked at once")
    parser.add_argument(
        "--group_size", type=int, default=16, help="trajectories per group; group_stage plays no matches for two"
    )
    parser.add_argument("--concurrency", type=int, default=8, help="concurrent judge calls, over all groups")
    parser.add_argument("--delay_s", type=float, help="seconds per judge call (default: 1, or 0.1 for all topologies)")
    arguments = parser.parse_args()
    if arguments.delay_s is None:
        arguments.delay_s = 0.1 if arguments.topology == "all" else 1.0
    try:
        check_choice("topology", arguments.topology, [*ALL_TOPOLOGIES, "all"])
    except ValueError as error:
        raise UserError(error) from None
    for name, least in (("groups", 1), ("group_size", 3), ("concurrency", 1)):
        if getattr(arguments, name) < least:
            raise UserError(f"--{name} {getattr(arguments, name)}: must be at least {least}")
    if not (math.isfinite(arguments.delay_s) and arguments.delay_s > 0):
        raise UserError(f"--delay_s {arguments.delay_s}: must be above 0 seconds, or there is no bound to compare with")
    return arguments


def main() -> None:
    given = parse_arguments()
    size = given.groups, given.group_size, given.concurrency, given.delay_s
    rows = []
    with delayed_judge(given.delay_s, given.concurrency) as url:
        print("{} groups of {}, {} calls at once, {:g} s a call".format(*size), f"by the judge at {url}")
        print(
            f"{'':<27}{'calls':>6}{'paper_calls':>13}{'seconds':>9}{'bound_s':>9}{'ratio':>8}{'overhead_ms':>13}",
            flush=True,
        )
        for topology in ALL_TOPOLOGIES if given.topology == "all" else [given.topology]:
            rows.append(measure(url, topology, *size))
            print(format_row(rows[-1]), flush=True)
    print(json.dumps(summary(rows)))


if __name__ == "__main__":
    guarded(main, goes_on=False)
