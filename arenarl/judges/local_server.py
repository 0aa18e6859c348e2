"""Base of the local HTTP servers with OpenAI's chat-completions interface: optional faults and a command line.

`JudgeServer` (judges/server.py) and `RoleServer` (synthesis/server.py) define the replies.
"""

import argparse
import asyncio
import json
import os
import random
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from arenarl.config.command_line import command_line, in_range, parse_arguments
from arenarl.system.atomic_files import json_hash
from arenarl.system.errors import UserError, owned
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import text_of

FAULTS = ("rate_limit", "error_500", "hang", "cut", "truncated", "prose", "wrong_range", "missing")
# rate_limit: 429 with Retry-After · hang: no reply for `hang_s` · cut: the connection closes within the body. In the
# reply's text: truncated JSON, prose around complete JSON (still readable), a score out of range, a missing number
Reply = dict[str, Any] | list[dict[str, Any]] | str


@dataclass(kw_only=True)
class LocalServer:
    """Replies to requests, some of them with faults. Subclasses define `reply`.

    Args:
        faults: share of requests with a fault from `kinds`, all kinds equally often.
        delay_s: seconds per reply.
        hang_s: seconds until a hanging request ends.
        key: the valid API key; None accepts any key.
        log: called for every request with its model, the hash of its messages, the fault or None, the reply if it was
            sent unchanged, and the text sent.
    """

    seed: int = 0
    faults: float = 0.0
    kinds: Sequence[str] = FAULTS
    delay_s: float = 0.0
    hang_s: float = 30.0
    key: str | None = None
    log: Callable[[dict[str, Any]], None] = lambda line: None

    models = ()  # names in the server's list of models

    def __post_init__(self) -> None:
        self.seen: Counter[str] = Counter()  # replies sent, by the hash of the messages
        self._rng = random.Random(stable_seed(self.seed, "faults"))

    async def reply(self, body: dict[str, Any], repeat: int) -> Reply:
        """Return the reply to a request that already had `repeat` replies.
        Raises ValueError or LookupError for an unknown prompt."""
        raise NotImplementedError

    def app(self) -> web.Application:
        """Return the application that serves this server's models."""
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._complete)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.key is not None and given != self.key:
            return _refusal(401, f"wrong key: {given}")
        body = await request.json()
        name = json_hash(body["messages"])
        fault = self._rng.choice(self.kinds) if self._rng.random() < self.faults else None
        try:
            reply = await self.reply(body, self.seen[name] if body.get("temperature") else 0)
        except (ValueError, LookupError) as error:
            return _refusal(400, f"unknown prompt: {error}")
        is_sent = fault not in ("rate_limit", "error_500", "hang", "cut")
        self.seen[name] += is_sent  # a retry after a missing reply is not a repeat
        await asyncio.sleep(self.delay_s)
        text = spoil(reply if isinstance(reply, str) else json.dumps(reply), reply, fault)
        self.log({"model": body.get("model"), "messages": name, "fault": fault,
                  "reply": reply if fault in (None, "prose") else None, "text": text if is_sent else None})  # fmt: skip
        if fault == "rate_limit":
            return _refusal(429, "slow down", {"Retry-After": "0.2"})
        if fault == "error_500":
            return _refusal(500, "out of order")
        if fault == "hang":
            await asyncio.sleep(self.hang_s)
            return _refusal(504, "too late")
        completion = _completion(body, text)
        return await _cut(request, completion) if fault == "cut" else web.json_response(completion)


async def _cut(request: web.Request, completion: dict[str, Any]) -> web.StreamResponse:
    """Send half of the body and close the connection."""
    whole = json.dumps(completion).encode()
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(whole))})
    await response.prepare(request)
    await response.write(whole[: len(whole) // 2])
    request.transport.close()
    return response


def _refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status, headers=headers)


def _completion(body: dict[str, Any], text: str) -> dict[str, Any]:
    """Return a chat completion in OpenAI's format. One token is four characters."""
    prompt, reply = sum(len(text_of(message.get("content"))) for message in body["messages"]) // 4, len(text) // 4
    return {
        "id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": body["model"],
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply},
    }  # fmt: skip


def spoil(text: str, reply: Reply, fault: str | None) -> str:
    """Return the reply's text with the fault; unchanged if the fault does not concern the text.
    If the reply is not JSON, its last word becomes wrong or missing."""
    if fault == "truncated":
        return text[: len(text) * 2 // 3]
    if fault == "prose":
        thought = "<think>\nThe first looks like {10}.\n</think>"
        return f"{thought}\n\nHere is my verdict:\n```json\n{text}\n```\nBoth {{agents}} tried."
    if fault not in ("wrong_range", "missing"):
        return text
    if isinstance(reply, str):
        without = re.sub(r"(?m)^confidence.*", "", text).rstrip()
        return re.sub(r"\w+\W*$", "0" if fault == "wrong_range" else "", without)
    wrong = json.loads(text)
    inner = _innermost(wrong)
    first = next(iter(inner))
    inner[first] = [99] if first in ("winners", "scores") else 11.0
    if fault == "missing":
        del inner[first]
    return json.dumps(wrong)


def _innermost(reply: Any) -> dict[str, Any]:
    """Return the first object that contains no further object."""
    inner = reply[0] if isinstance(reply, list) else next(iter(reply.values()))
    is_deeper = isinstance(inner, dict) or (isinstance(inner, list) and inner and isinstance(inner[0], dict))
    return _innermost(inner) if is_deeper else reply


def serve(
    make: Callable[..., LocalServer], description: str, port: int, shares: Mapping[str, tuple[float, str]] | None = None
) -> None:
    """Parse the command line and serve `make(config, **options)` until a signal ends it. `shares` are further options
    with values from 0 to 1: name → (default, help). Raises UserError if the port or the log cannot be used."""

    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=port)
        for name, (default, text) in {"faults": (0.0, "share of faulty replies"), **(shares or {})}.items():
            parser.add_argument(f"--{name.replace('_', '-')}", type=in_range(float, 0, 1), default=default, help=text)
        parser.add_argument("--kinds", nargs="+", default=FAULTS, choices=FAULTS, help="kinds of faults")
        parser.add_argument("--delay-s", type=float, default=0.0, help="seconds per reply")
        parser.add_argument("--hang-s", type=float, default=30.0, help="seconds until a hanging request ends")
        parser.add_argument("--log", type=Path, help="log requests to this JSONL file")

    config, arguments = parse_arguments(description, add_options)
    options = {name: getattr(arguments, name) for name in ("faults", "kinds", "delay_s", "hang_s", *(shares or ()))}
    if arguments.log:
        try:
            file = arguments.log.open("w", buffering=1, encoding="utf-8")
        except OSError as error:
            raise UserError(f"--log {arguments.log} cannot be written: {error.strerror}") from error
        options["log"] = lambda line: file.write(json.dumps(line) + "\n")
    server = make(config, **options)
    try:
        web.run_app(server.app(), host="127.0.0.1", port=arguments.port, print=None, handle_signals=True)
    except (OSError, OverflowError) as error:  # OverflowError: a number that no port has
        problem = getattr(error, "strerror", error)
        raise UserError(f"port {arguments.port} cannot be used: {problem}; choose another --port") from error


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def running_server(
    config: str, overrides: Sequence[str], port: int, *options: str, module: str = "arenarl.judges.server"
) -> Iterator[str]:
    """Run a server in a separate process, which ends with this process, also after a kill; yield its address.

    Raises UserError if the port is in use, because another server's replies would count as this server's. Also raises
    it if the server ends before the block, as when another program takes the port while the server starts.
    """
    if _accepts(port):
        raise UserError(f"port {port} is in use by another program; end it, or choose another port")
    command = [sys.executable, "-m", module, *command_line(config, overrides), "--port", str(port), *options]
    process = subprocess.Popen(command, env=os.environ | owned())

    def require_running() -> None:
        if process.poll() is not None:
            end = f"ended with exit code {process.returncode}"
            raise UserError(f"the server {module} {end}; its error is printed above")

    try:
        while not _accepts(port):
            require_running()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1"
        require_running()
    finally:
        process.terminate()
        process.wait()


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
