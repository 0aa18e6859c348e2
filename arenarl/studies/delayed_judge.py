"""A judge of numbered trajectories over HTTP on localhost, which takes a set time for each call: what
`bench_tournament` ranks with.

A process of its own: `with delayed_judge(delay_s, concurrency) as url`. Like a real service it admits so many calls at
once, and no more. Its scores are drawn from what is asked, so that the same tournament makes the same calls again.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random

from aiohttp import web

from arenarl.system.seeds import stable_seed


def noisy_scores(group: int, shown: Sequence[int]) -> list[float]:
    """A score for each trajectory shown: its quality, N(0, 1), and the call's noise on it, N(0, .7)."""
    noise = Random(stable_seed("call", group, *shown))
    return [Random(stable_seed("quality", group, i)).gauss() + noise.gauss(0, 0.7) for i in shown]


async def serve(delay_s: float, concurrency: int) -> None:
    """Answer POST /judge, `{"group": 0, "shown": [i, j]}`, with `{"scores": [...]}` after `delay_s`, until stdin ends.

    Above `concurrency` calls at once the answer is 429. The port, a free one, is printed first.
    """
    under_way = 0

    async def judge(request: web.Request) -> web.Response:
        nonlocal under_way
        asked = await request.json()
        if under_way == concurrency:
            raise web.HTTPTooManyRequests
        under_way += 1
        await asyncio.sleep(delay_s)
        under_way -= 1
        return web.json_response({"scores": noisy_scores(asked["group"], asked["shown"])})

    app = web.Application()
    app.router.add_post("/judge", judge)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


@contextmanager
def delayed_judge(delay_s: float, concurrency: int) -> Iterator[str]:
    """The URL of a judge that lives as long as the block.

    It ends when its stdin does, so also where its parent is killed; Ctrl-C is not for it, but for its parent.
    """
    command = [sys.executable, "-m", "arenarl.studies.delayed_judge", str(delay_s), str(concurrency)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            port = process.stdout.readline().strip()
            if not port:
                raise RuntimeError(f"the judge did not start: exit code {process.wait()}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()  # it holds nothing that needs an orderly end, and calls under way are not waited for


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]), int(sys.argv[2])))
