"""Connections to MCP servers over stdin and stdout or streamable HTTP, with the SDK `mcp`.

The SDK requires that one task enters and exits a client, in a single event loop. Each `Connection` is such a task, in
the event loop of `mcp_environment`. After an error it requests the server's tools. If the server answers, only this
call failed and the policy sees the error; if not, the server is dead.
"""

import asyncio
import logging
import os
import zlib
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
from arenarl.system.event_loops import InFlight, mark_error_read

_MAX_BYTES = 64 * 2**20  # limit of a response's unpacked body, or of one event in a stream of events
_PIECE_BYTES = 2**20  # of unpacked data at once
_MAX_PAGES = 100  # maximum pages of a list of tools
_STDERR_LENGTH = 2000  # characters of a server's stderr to keep, from its end
logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it logs tracebacks of errors that we report in a line


class ServerGone(ConnectionError):
    """The server does not start, has ended, or no longer answers."""


class Connection:
    """A client of a running server."""

    def __init__(self, config: MCPServerConfig):
        self.config = config
        self._stderr = ""
        self._closing = asyncio.Event()
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own_client())
        self._owner.add_done_callback(mark_error_read)

    @property
    def is_over(self) -> bool:
        return self._owner.done() or self._closing.is_set()

    async def open(self) -> None:
        """Wait until the server is ready. Raises ServerGone if it does not start, UserError if a key is missing."""
        await asyncio.wait([self._opened, self._owner], return_when=asyncio.FIRST_COMPLETED)
        if not self._opened.done():
            error = _first_error(self._owner.exception())
            if isinstance(error, UserError):
                raise error
            reason = " ".join(str(error).split()) or type(error).__name__
            if isinstance(error, TimeoutError):
                reason = f"not ready within {self.config.start_timeout_s:g} s"
            raise ServerGone(f"{reason}{self._stderr_hint()}") from error

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        """Run a tool call. Raises ToolError if it fails or times out, ServerGone if the server does not answer."""
        try:
            return await self._request(lambda client: client.call_tool(tool, arguments))
        except Exception as error:  # from the SDK or the transport, or for a malformed reply
            reason = str(error) or type(error).__name__
            if isinstance(error, TimeoutError):
                reason = f"the tool {tool} did not answer within {self.config.timeout_s:g} s."
            if getattr(error, "code", None) != INVALID_PARAMS and not await self._is_alive():
                self._closing.set()  # without waiting for the end
                raise ServerGone(f"{reason}{self._stderr_hint()}") from error
            raise ToolError(reason) from error

    async def tools(self) -> list[Tool]:
        """Request the list of all tools, without the client's cache."""
        tools, cursor = [], None
        for _ in range(_MAX_PAGES):
            page = await self._request(lambda client: client.list_tools(cursor=cursor, cache_mode="refresh"))  # noqa: B023 - awaited here
            tools, cursor = tools + page.tools, page.next_cursor
            if cursor is None:
                break
        return tools

    async def close(self) -> None:
        self._closing.set()
        await asyncio.wait([self._owner])

    async def _own_client(self) -> None:
        """Enter the client, wait, and exit it, all in this task. `open` and running calls report its exceptions."""
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(self.config.start_timeout_s):
                client = await self._enter_client(stack)
            self._opened.set_result(client)
            await self._closing.wait()

    async def _enter_client(self, stack: AsyncExitStack) -> Client:
        """Enter a client, with the legacy handshake first: servers of early SDKs crash at any other handshake."""
        try:
            return await stack.enter_async_context(Client(await self._transport(stack), mode="legacy"))
        except Exception as error:
            if getattr(_first_error(error), "code", None) not in (UNSUPPORTED_PROTOCOL_VERSION, METHOD_NOT_FOUND):
                raise
        return await stack.enter_async_context(Client(await self._transport(stack)))

    async def _transport(self, stack: AsyncExitStack) -> Any:
        if self.config.url:
            timeout = httpx2.Timeout(30.0, read=None)  # `_request` limits the duration of a call
            limits = httpx2.Limits(max_connections=None)
            options = {"timeout": timeout, "limits": limits, "event_hooks": {"response": [_limit_body]}}
            client = httpx2.AsyncClient(**options, **_authentication(self.config))
            client.headers["Accept-Encoding"] = "gzip, deflate"
            http = await stack.enter_async_context(client)
            return streamable_http_client(self.config.url, http_client=http, max_sse_event_size=_MAX_BYTES)
        (command, *words), handler = self.config.command, "replace"
        variables = {name: _variable(name) for name in self.config.variables} | self.config.env
        parameters = StdioServerParameters(command=command, args=words, env=variables, encoding_error_handler=handler)
        return stdio_client(parameters, errlog=await stack.enter_async_context(self._stderr_file()))

    @asynccontextmanager
    async def _stderr_file(self) -> AsyncIterator[Any]:
        """Open a file for the server's stderr; its end is kept for errors."""
        reading, writing = os.pipe()
        stream, loop = asyncio.StreamReader(), asyncio.get_running_loop()
        pipe = os.fdopen(reading, "rb")
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)

        async def read() -> None:
            while chunk := await stream.read(4096):
                self._stderr = (self._stderr + chunk.decode(errors="replace"))[-_STDERR_LENGTH:]

        reader = asyncio.create_task(read())
        try:
            with os.fdopen(writing, "w") as file:
                yield file
            await asyncio.wait([reader], timeout=1.0)  # for the last lines
        finally:
            reader.cancel()
            transport.close()

    async def _request(self, send: Any) -> Any:
        """Return the result of `send(client)`. Raises TimeoutError, and the SDK's exceptions."""
        if self.is_over or not self._opened.done():
            raise RuntimeError("the connection is closed")
        async with asyncio.timeout(self.config.timeout_s):
            return await send(self._opened.result())

    async def _is_alive(self) -> bool:
        with suppress(Exception):
            await self.tools()
            return not self.is_over
        return False

    def _stderr_hint(self) -> str:
        lines = [line.strip() for line in self._stderr.splitlines() if any(map(str.isalpha, line))]
        return f"; it last wrote: {lines[-1][-300:]}" if lines else ""


class _Unpacked(httpx2.AsyncByteStream):
    """A response's unpacked body: a small packed body may unpack to gigabytes. Raises StreamError."""

    def __init__(self, packed: Any, coding: str, is_endless: bool):
        self._packed, self._coding, self._is_endless = packed, coding, is_endless

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._coding not in ("", "identity", "gzip", "deflate"):
            raise httpx2.StreamError(f"the server packs its responses in a form that was not requested: {self._coding}")
        decoder = zlib.decompressobj(zlib.MAX_WBITS | 32) if self._coding in ("gzip", "deflate") else None
        total = 0
        async for chunk in self._packed:
            while chunk:
                piece, chunk = chunk, b""
                if decoder:
                    try:
                        piece = decoder.decompress(piece, _PIECE_BYTES)
                    except zlib.error as error:
                        raise httpx2.StreamError(f"the response cannot be unpacked: {error}") from error
                    chunk = decoder.unconsumed_tail
                total += len(piece)
                if total > _MAX_BYTES and not self._is_endless:
                    raise httpx2.StreamError(f"the response is larger than {_MAX_BYTES:,} bytes")
                yield piece

    async def aclose(self) -> None:
        await self._packed.aclose()


async def _limit_body(response: httpx2.Response) -> None:
    is_endless = response.headers.get("content-type", "").lower().startswith("text/event-stream")
    coding = response.headers.pop("content-encoding", "").strip().lower()
    response.stream = _Unpacked(response.stream, coding, is_endless)


class Session:
    """A server's connection, opened when first needed. A shared session reconnects when the connection breaks."""

    def __init__(self, config: MCPServerConfig):
        self.config = config
        self.reconnects = 0
        self._connection: Connection | None = None
        self._connecting: InFlight[None] = InFlight()

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        """Run a tool call. If the server of a shared session is gone, reconnect and repeat the call once.
        Raises ToolError as `Connection.call` does, ServerGone if the server dies again or does not start."""
        connection = await self._open_connection()
        try:
            return await connection.call(tool, arguments)
        except ServerGone:
            if self.config.session == "trajectory":  # its state is lost
                raise
        return await (await self._open_connection()).call(tool, arguments)

    async def tools(self) -> list[Tool]:
        """Request the list of all tools. Raises ServerGone."""
        connection = await self._open_connection()
        try:
            return await connection.tools()
        except Exception as error:
            raise ServerGone(f"it does not list its tools: {str(error) or type(error).__name__}") from error

    async def close(self) -> None:
        if self._connection:
            await self._connection.close()

    async def _open_connection(self) -> Connection:
        if self._connection is None or self._connection.is_over or "connection" in self._connecting:
            await self._connecting.get("connection", self._connect)
        return self._connection

    async def _connect(self) -> None:
        if self._connection:
            if self.config.session == "trajectory":
                raise ServerGone("the session of this trajectory is over")
            self.reconnects += 1
        self._connection = Connection(self.config)
        await self._connection.open()


def _first_error(error: BaseException) -> BaseException:
    """Return the first exception of a group: a client's tasks end together, so one error ends them all."""
    return _first_error(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _authentication(config: MCPServerConfig) -> dict[str, dict[str, str]]:
    """Return the HTTP client's arguments that send the server's key."""
    if not config.api_key_variable:
        return {}
    key = _variable(config.api_key_variable)
    if config.api_key_parameter:
        return {"params": {config.api_key_parameter: key}}
    return {"headers": {"Authorization": f"Bearer {key}"}}


def _variable(name: str) -> str:
    if value := os.environ.get(name, "").strip():
        return value
    raise UserError(f"set the environment variable {name}, which a server of environment.mcp needs")
