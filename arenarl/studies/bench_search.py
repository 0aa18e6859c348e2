"""How many queries a second the search tool answers on one core, so that it is plain that rollouts never wait for it.

Run: `./reproduce.sh bench_search [--pages 100000]`. Invented pages of 150 to 250 words; after a warm-up every query is
new. They are asked as rollouts ask, from an event loop through the environment: by 20 trajectories at once for
queries_per_second, one after another for p50_ms and p99_ms. The last line is JSON, with index_seconds, open_seconds and
pages. Other programs on the core slow all of it down; the line before says how much of a core a query takes.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from arenarl.config.schema import EnvironmentConfig, SearchConfig
from arenarl.domains.research.documents import open_folder
from arenarl.domains.research.environment import ResearchEnvironment
from arenarl.domains.research.passages import STOP
from arenarl.system.atomic_files import write_lines
from arenarl.system.seeds import stable_seed

TRAJECTORIES = 20
QUERIES = 2000  # of each kind: asked by all at once, asked one after another
VOCABULARY = 60_000
_SYLLABLES = [
    first + second for first in "bdfgklmnprstvz" for second in ("a", "e", "i", "o", "u", "ar", "en", "il", "on", "us")
]


def invented_words(count: int) -> list[str]:
    """The commonest are short, as in a language."""
    base = len(_SYLLABLES)
    parts = ([index % base, index // base % base, index // base**2] for index in range(count))
    return ["".join(_SYLLABLES[part] for part in [head, *(part for part in tail if part)]) for head, *tail in parts]


def invented_pages(count: int) -> Iterator[dict[str, str]]:
    """Word frequencies fall off as in English (Zipf); a page speaks of a few rare words of its own."""
    rng = np.random.default_rng(stable_seed("bench_search"))
    # search leaves the commonest words of English out
    words = np.array([*sorted(STOP), *invented_words(VOCABULARY - len(STOP))])
    share = 1 / np.arange(1, VOCABULARY + 1)
    # drawn once, cut up: a draw for each page takes minutes
    likely = rng.choice(VOCABULARY, size=4_000_000, p=share / share.sum())
    for number in range(count):
        length, start = rng.integers(150, 250), rng.integers(len(likely) - 250)
        drawn = words[likely[start : start + length]].tolist()
        sentences = (" ".join(drawn[place : place + 12]).capitalize() for place in range(0, len(drawn), 12))
        yield {
            "url": f"https://pages.example/{number}",
            "title": f"{drawn[0].title()} {number}",
            "text": ". ".join(sentences) + ".",
        }


def invented_queries(environment: ResearchEnvironment, pages: int, count: int) -> list[str]:
    """Some words of some pages: about as long as a policy's queries."""
    rng = np.random.default_rng(stable_seed("bench_search queries"))
    engine_pages = environment.search_tools.engine.index.pages
    texts = (engine_pages[int(number)].text.split() for number in rng.integers(pages, size=count))
    return [" ".join(rng.choice(text, size=rng.integers(4, 9))) for text in texts]


async def ask_together(environment: ResearchEnvironment, queries: list[str]) -> tuple[float, float]:
    """Seconds, and seconds of a core, that `TRAJECTORIES` take when each asks its next query once it has its last one's
    results."""
    waiting = iter(queries)

    async def trajectory() -> None:
        for query in waiting:
            await environment.call("search", {"query": query})

    start, start_core = time.perf_counter(), time.process_time()
    await asyncio.gather(*(trajectory() for _ in range(TRAJECTORIES)))
    return time.perf_counter() - start, time.process_time() - start_core


async def ask_in_turn(environment: ResearchEnvironment, queries: list[str]) -> np.ndarray:
    """Milliseconds of each."""
    times = []
    for query in queries:
        start = time.perf_counter()
        await environment.call("search", {"query": query})
        times.append(1000 * (time.perf_counter() - start))
    return np.array(times)


def measure(pages: int, folder: Path) -> dict[str, float]:
    write_lines(folder / "pages" / "pages.jsonl", invented_pages(pages))
    start = time.perf_counter()
    open_folder(folder / "pages", SearchConfig().search_chunk_tokens, folder / "index")
    built = time.perf_counter()
    search = SearchConfig(engine="folder", folder=str(folder / "pages"), indexes=str(folder / "index"))
    environment = ResearchEnvironment.from_config(EnvironmentConfig(name="research", search=search), "en")
    opened = time.perf_counter()
    queries = invented_queries(environment, pages, 3 * QUERIES)
    asyncio.run(ask_in_turn(environment, queries[:QUERIES]))
    seconds, core_seconds = asyncio.run(ask_together(environment, queries[QUERIES : 2 * QUERIES]))
    print(
        f"{1000 * core_seconds / QUERIES:.2f} ms of a core a query: "
        f"{QUERIES / core_seconds:,.0f} queries a second on a core of its own"
    )
    times = asyncio.run(ask_in_turn(environment, queries[2 * QUERIES :]))
    return {
        "queries_per_second": round(QUERIES / seconds, 1),
        "p50_ms": round(float(np.percentile(times, 50)), 3),
        "p99_ms": round(float(np.percentile(times, 99)), 3),
        "index_seconds": round(built - start, 2),
        "open_seconds": round(opened - built, 3),
        "pages": pages,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--pages", type=int, default=100_000)
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # all threads of this process share one core
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(arguments.pages, Path(folder))))


if __name__ == "__main__":
    main()
