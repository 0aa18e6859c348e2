"""Connections to MCP servers, over stdin and stdout or streamable HTTP, by the SDK `mcp`.

The SDK wants a client to be entered and left by one task, and to live in one event loop: a `Connection` is such a task,
in the loop that `mcp_environment` keeps. What an error is worth is found out by asking the server for its tools: one
that answers has refused this one call, which the policy gets to see; one that does not is dead.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION, CallToolResult, Tool

from arenarl.config.schema import MCPServerConfig
from arenarl.rollout.environment import ToolError
from arenarl.system.errors import UserError
from arenarl.system.event_loops import InFlight

_MOST_BYTES = 64 * 2**20  # of an event: what is longer would not be read whole
_MOST_PAGES = 100  # of a list of tools
_SAID = 2000  # characters of what a server last wrote to stderr
logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it writes tracebacks of what is said here in a line


class ServerGone(ConnectionError):
    """The server does not start, has ended, or answers nothing any more."""


class Connection:
    """One client of a server, for as long as the server lives."""

    def __init__(self, config: MCPServerConfig):
        self.config = config
        self._said = ""
        self._leaving = asyncio.Event()
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._live())
        self._owner.add_done_callback(lambda task: task.cancelled() or task.exception())  # it is not told twice

    @property
    def is_over(self) -> bool:
        return self._owner.done() or self._leaving.is_set()

    async def open(self) -> None:
        """Raises ServerGone where the server cannot be had, with its last word, UserError where a key is missing."""
        await asyncio.wait([self._opened, self._owner], return_when=asyncio.FIRST_COMPLETED)
        if not self._opened.done():
            error = _first(self._owner.exception())
            raise error if isinstance(error, UserError) else ServerGone(self._in_words(error)) from error

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        """Raises ToolError for a call that cannot be carried out, or not in time,
        ServerGone for a server that does not answer."""
        try:
            return await self._within(lambda client: client.call_tool(tool, arguments))
        except Exception as error:  # the SDK's, the transport's, a reply that is none: what it means, the server says
            reason = str(error) or type(error).__name__
            if isinstance(error, TimeoutError):
                reason = f"the tool {tool} did not answer within {self.config.timeout_s:g} s."
            if getattr(error, "code", None) != INVALID_PARAMS and not await self._is_alive():
                self._leaving.set()  # without waiting for its end
                raise ServerGone(f"{reason}{self._last_word()}") from error
            raise ToolError(reason) from error

    async def tools(self) -> list[Tool]:
        """All that the server offers, from the server."""
        tools, cursor = [], None
        for _ in range(_MOST_PAGES):
            page = await self._within(lambda client: client.list_tools(cursor=cursor, cache_mode="refresh"))  # noqa: B023 - awaited here
            tools, cursor = tools + page.tools, page.next_cursor
            if cursor is None:
                break
        return tools

    async def left(self) -> None:
        """End it, and wait for the end."""
        self._leaving.set()
        await asyncio.wait([self._owner])

    async def _live(self) -> None:
        """The task that enters the client and leaves it. What it raises, `open` and the calls under way say."""
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(self.config.start_timeout_s):
                client = await self._entered(stack)
            self._opened.set_result(client)
            await self._leaving.wait()

    async def _entered(self, stack: AsyncExitStack) -> Client:
        """By the handshake that all servers know; those of early SDKs die of the question which other one they know."""
        try:
            return await stack.enter_async_context(Client(await self._transport(stack), mode="legacy"))
        except Exception as error:
            if getattr(_first(error), "code", None) not in (UNSUPPORTED_PROTOCOL_VERSION, METHOD_NOT_FOUND):
                raise
        return await stack.enter_async_context(Client(await self._transport(stack)))

    async def _transport(self, stack: AsyncExitStack) -> Any:
        if self.config.url:
            timeout = httpx2.Timeout(30.0, read=None)  # how long a call may take is our business
            limits = httpx2.Limits(max_connections=None)
            client = httpx2.AsyncClient(timeout=timeout, limits=limits, **_key(self.config))
            http = await stack.enter_async_context(client)
            return streamable_http_client(self.config.url, http_client=http, max_sse_event_size=_MOST_BYTES)
        (command, *words), handler = self.config.command, "replace"
        variables = {name: _variable(name) for name in self.config.variables} | self.config.env
        parameters = StdioServerParameters(command=command, args=words, env=variables, encoding_error_handler=handler)
        return stdio_client(parameters, errlog=await stack.enter_async_context(self._errors()))

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[Any]:
        """A file for the server's stderr, whose end is kept for messages."""
        reading, writing = os.pipe()
        stream, loop = asyncio.StreamReader(), asyncio.get_running_loop()
        pipe = os.fdopen(reading, "rb")
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)

        async def listen() -> None:
            while heard := await stream.read(4096):
                self._said = (self._said + heard.decode(errors="replace"))[-_SAID:]

        listening = asyncio.create_task(listen())
        try:
            with os.fdopen(writing, "w") as file:
                yield file
            await asyncio.wait([listening], timeout=1.0)  # for what it wrote last
        finally:
            listening.cancel()
            transport.close()

    async def _within(self, ask: Any) -> Any:
        """What the client brings. Raises TimeoutError, and what the SDK raises."""
        if self.is_over or not self._opened.done():
            raise RuntimeError("the connection is closed")
        async with asyncio.timeout(self.config.timeout_s):
            return await ask(self._opened.result())

    async def _is_alive(self) -> bool:
        with suppress(Exception):
            await self.tools()
            return not self.is_over
        return False

    def _in_words(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError):
            return f"not ready within {self.config.start_timeout_s:g} s{self._last_word()}"
        return f"{' '.join(str(error).split()) or type(error).__name__}{self._last_word()}"

    def _last_word(self) -> str:
        lines = [line.strip() for line in self._said.splitlines() if any(map(str.isalpha, line))]
        return f"; it last wrote: {lines[-1][-300:]}" if lines else ""


class Session:
    """A server's connection, made when first needed and, if the server keeps no state, again when it breaks."""

    def __init__(self, config: MCPServerConfig):
        self.config = config
        self.reconnects = 0
        self._connection: Connection | None = None
        self._connecting: InFlight[None] = InFlight()

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        """Raises ToolError as `Connection.call` does, ServerGone if the server dies and dies again,
        or cannot be had any more."""
        connection = await self._connected()
        try:
            return await connection.call(tool, arguments)
        except ServerGone:
            if self.config.session == "trajectory":  # what its calls had done is gone with it
                raise
        return await (await self._connected()).call(tool, arguments)

    async def tools(self) -> list[Tool]:
        """Raises ServerGone."""
        connection = await self._connected()
        try:
            return await connection.tools()
        except Exception as error:
            raise ServerGone(f"it does not list its tools: {error or type(error).__name__}") from error

    async def left(self) -> None:
        if self._connection:
            await self._connection.left()

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_over or "connection" in self._connecting:
            await self._connecting.get("connection", self._connect)
        return self._connection

    async def _connect(self) -> None:
        if self._connection:
            if self.config.session == "trajectory":
                raise ServerGone("its session, which was this trajectory's, is over")
            self.reconnects += 1
        self._connection = Connection(self.config)
        await self._connection.open()


def _first(error: BaseException) -> BaseException:
    """The first that a group holds: a client's tasks end together."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _key(config: MCPServerConfig) -> dict[str, dict[str, str]]:
    """How the server's key is sent, as arguments of an HTTP client."""
    if not config.api_key_variable:
        return {}
    key = _variable(config.api_key_variable)
    if config.api_key_parameter:
        return {"params": {config.api_key_parameter: key}}
    return {"headers": {"Authorization": f"Bearer {key}"}}


def _variable(name: str) -> str:
    """Raises UserError."""
    if value := os.environ.get(name, "").strip():
        return value
    raise UserError(f"set the environment variable {name}, which a server of environment.mcp needs")
