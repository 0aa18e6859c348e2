"""Benchmark of the LLM client: its CPU and its time per call, compared with plain aiohttp's against a local server.

    python -m arenarl.studies.bench_client [--concurrency 256 1024] [--calls 4096] [--rounds 3]

Both send the same requests, a judge's prompts of `--prompt_chars`. A separate process replies after `--delay_s` with
the scores of two agents; its CPU does not count. Plain aiohttp returns the text of the reply. Our client also hashes
each request, looks it up in the reply store, reserves and charges the budget, parses the scores, and stores the reply.
The rounds of both alternate in one process, and the figures are medians. The goal: at most 2.5 times the CPU with 256
concurrent calls, 3.5 times with 1,024, and at most twice the time with both.
"""

import argparse
import asyncio
import json
import multiprocessing
import re
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any
from uuid import uuid4

import aiohttp

from arenarl.config.command_line import in_range
from arenarl.config.schema import JudgesConfig, LLMConfig
from arenarl.domains.rubrics import domain_rubric
from arenarl.judges.llm import scores_reply
from arenarl.llm.client import LLMClient
from arenarl.llm.reply_store import ReplyStore, StoredReply, Usage, reply_key
from arenarl.llm.requests import Message
from arenarl.llm.transport import KEEP_ALIVE_S
from arenarl.system.errors import raise_open_file_limit, run_cli

NAMES = domain_rubric("travel", "en").names
GOALS = {256: 2.5, 1024: 3.5}  # concurrent calls -> most CPU, as a multiple of plain aiohttp's
WALL_GOAL = 2.0


class _Replies(asyncio.Protocol):
    """The server's side of a connection: one reply to each request, `delay_s` after its last byte."""

    def __init__(self, delay_s: float):
        scores = dict.fromkeys(NAMES, 7.5)
        message = {"role": "assistant", "content": json.dumps({"agent_1": scores, "agent_2": scores})}
        reply = {"id": "1", "object": "chat.completion", "created": 0, "model": "m"}
        reply |= {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        reply |= {"usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}}
        body = json.dumps(reply).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.delay_s, self.reply, self.received = delay_s, head.encode() + body, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, separator, body = self.received.partition(b"\r\n\r\n")
        if separator and len(body) >= int(re.search(rb"(?i)content-length: (\d+)", head)[1]):
            self.received = b""
            asyncio.get_running_loop().call_later(self.delay_s, self.transport.write, self.reply)


def serve(pipe: Connection, delay_s: float) -> None:
    """Serve on a free port of this machine, and send the port."""

    async def forever() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: _Replies(delay_s), "127.0.0.1", 0, backlog=4096)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    raise_open_file_limit()
    asyncio.run(forever())


Caller = Callable[[list[Message]], Awaitable[Any]]


async def in_parallel(call: Caller, prompts: list[list[Message]], concurrency: int) -> None:
    """Make all calls, `concurrency` at a time."""

    async def work(share: list[list[Message]]) -> None:
        for messages in share:
            await call(messages)

    await asyncio.gather(*(work(prompts[start::concurrency]) for start in range(concurrency)))


async def call_plainly(llm: LLMConfig, prompts: list[list[Message]], concurrency: int) -> None:
    """Make the calls with plain aiohttp."""
    schema = {"name": "Verdict", "strict": True, "schema": scores_reply(2, NAMES).model_json_schema()}
    fields = {"model": "m", "max_tokens": llm.max_reply_tokens, "temperature": llm.temperature}
    fields["response_format"] = {"type": "json_schema", "json_schema": schema}

    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
    ) as session:

        async def call(messages: list[Message]) -> str:
            request = fields | {"messages": messages}
            async with session.post(f"{llm.base_url}/chat/completions", json=request) as response:
                return (await response.json())["choices"][0]["message"]["content"]

        await in_parallel(call, prompts, concurrency)


async def call_with_client(llm: LLMConfig, prompts: list[list[Message]], concurrency: int, store: Path) -> None:
    """Make the calls with our client and a new store."""
    client = LLMClient(JudgesConfig(store=str(store), concurrency=concurrency), "bench", {})
    reply_type = scores_reply(2, NAMES)
    await in_parallel(lambda messages: client.ask(llm, messages, reply_type, "{error}"), prompts, concurrency)
    usage, _ = client.take_usage()
    if usage.calls != len(prompts) or usage.failed:
        raise RuntimeError(client.report())


def measure(calls: Coroutine[Any, Any, None]) -> tuple[float, float]:
    """Make the calls; return (CPU seconds, seconds)."""
    cpu, wall = process_time(), perf_counter()
    asyncio.run(calls)
    return process_time() - cpu, perf_counter() - wall


def compare(llm: LLMConfig, concurrency: int, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the medians of both at one number of concurrent calls."""
    rounds: dict[str, list[tuple[float, float]]] = {"plain": [], "client": []}
    for number in range(arguments.rounds):
        line = "| The museum opens at nine and closes at five; tickets cost twelve euro.\n"
        text = (line * (arguments.prompt_chars // len(line) + 1))[: arguments.prompt_chars]
        prompts = [
            [{"role": "system", "content": "judge"}, {"role": "user", "content": f"{number} {call}\n{text}"}]
            for call in range(arguments.calls)
        ]
        rounds["plain"].append(measure(call_plainly(llm, prompts, concurrency)))
        store = folder / f"{concurrency}-{number}.sqlite"
        rounds["client"].append(measure(call_with_client(llm, prompts, concurrency, store)))
    row: dict[str, Any] = {"concurrency": concurrency, "calls": arguments.calls}
    for name, times in rounds.items():
        cpu_s, wall_s = (median(values) for values in zip(*times, strict=True))
        row |= {f"{name}_cpu_ms": cpu_s / arguments.calls * 1e3, f"{name}_calls_per_s": arguments.calls / wall_s}
    row["cpu_ratio"] = row["client_cpu_ms"] / row["plain_cpu_ms"]
    row["wall_ratio"] = row["plain_calls_per_s"] / row["client_calls_per_s"]
    if most := GOALS.get(concurrency):
        row["goal_met"] = row["cpu_ratio"] <= most and row["wall_ratio"] <= WALL_GOAL
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}


def store_call_ms(place: str, calls: int) -> float:
    """Return the milliseconds of a paid call in the store: look-up, reservation, and the charge with the reply."""
    store, stage, paid = ReplyStore(place), f"bench-{uuid4().hex}", Usage(tokens_in=1000, tokens_out=100, cost=0.01)
    start = perf_counter()
    for number in range(calls):
        key = reply_key(stage, {}, number)

        def charge_and_put(key: str = key) -> None:
            store.charge(stage, paid)
            store.put(key, StoredReply("x" * 1000, "m", 1000, 100))

        if store.get(key) or not store.reserve(stage, calls, None):
            raise RuntimeError(f"{place}: the budget or the replies are wrong")
        store.transaction(charge_and_put)
    return (perf_counter() - start) / calls * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    positive = in_range(int, 1)
    parser.add_argument("--concurrency", nargs="+", type=positive, default=list(GOALS), help="concurrent calls")
    parser.add_argument("--calls", type=positive, default=4096, help="calls per round")
    parser.add_argument("--rounds", type=positive, default=3, help="rounds of each kind")
    parser.add_argument("--prompt_chars", type=positive, default=4000, help="characters of a prompt")
    parser.add_argument("--delay_s", type=in_range(float, 0.0), default=1.0, help="seconds until a reply")
    parser.add_argument("--store", help="also time a store, as judge.store: the URL of an empty PostgreSQL database")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    pipe, end = context.Pipe()
    server = context.Process(target=serve, args=(end, arguments.delay_s), daemon=True)
    server.start()
    end.close()  # a server that cannot start is an error here
    try:
        llm = LLMConfig("llm", model="m", base_url=f"http://127.0.0.1:{pipe.recv()}/v1", api_key_variable=None)
        rows = []
        with tempfile.TemporaryDirectory() as folder:
            for concurrency in arguments.concurrency:
                rows.append(compare(llm, concurrency, arguments, Path(folder)))
                print(*(f"{name} {value}" for name, value in rows[-1].items()), sep="  ", flush=True)
            stores = {"sqlite": f"{folder}/store.sqlite"} | ({"given": arguments.store} if arguments.store else {})
            store_ms = {name: round(store_call_ms(place, arguments.calls), 3) for name, place in stores.items()}
            print("ms per call in the store:", *(f"{name} {value}" for name, value in store_ms.items()), sep="  ")
    finally:
        server.terminate()
    print(json.dumps({"rows": rows, "store_ms": store_ms}))


if __name__ == "__main__":
    run_cli(main)
