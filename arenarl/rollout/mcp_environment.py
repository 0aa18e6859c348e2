"""Tools of MCP servers as an environment (`environment.name: mcp`).

Each process has one `Toolbox`: a thread whose event loop outlives the rollouts and owns all connections. A read-only
server has a session for all trajectories, and the reply store keeps its calls, so a rerun makes none. A stateful server
has a session for each trajectory. A shared session that breaks reconnects and repeats the call once. If that fails, or
if a trajectory's own session breaks, the trajectory starts again; a second failure makes it void. A tool's error or
timeout is an observation.
"""

import asyncio
import os
import re
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from arenarl.config.schema import JudgesConfig, MCPServerConfig
from arenarl.llm.reply_store import ReplyStore, StoredReply, reply_key
from arenarl.rollout.environment import Environment, Schema, ToolError, check_call, observe, trait
from arenarl.rollout.mcp_session import ServerGone, Session
from arenarl.rollout.mcp_tools import OfferedTool, cut, offered_tools, require_success, result_text, schema_of
from arenarl.system.errors import UserError
from arenarl.system.event_loops import InFlight, LoopThread
from arenarl.system.masking import replace_values

# variables that do not change results: credentials and network settings
_ACCESS_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSW|PROXY|CERT|CA_BUNDLE|INDEX", re.IGNORECASE)
_SHUTDOWN_S = 5.0  # time for the servers to stop at the end of the process

Sessions = dict["Server", Session]  # a trajectory's own sessions, opened when first needed


class Server:
    """The tools of an MCP server."""

    def __init__(self, config: MCPServerConfig, key: str, store: ReplyStore | None, store_only: bool):
        self.config, self.key = config, key
        self.shared = Session(config) if config.session == "shared" else None
        self.metrics: dict[str, list[float]] = defaultdict(list)
        self._store, self._store_only = store if self.shared and config.cache else None, store_only
        self._places = asyncio.Semaphore(config.concurrency)
        values = {name: os.environ.get(name, "") for name in config.variables}
        hashes = {name: sha256(value.encode()).hexdigest()[:16] for name, value in values.items()}
        # part of the store's key: with another database, for example, a call is another call
        self._world = {name: value for name, value in hashes.items() if not _ACCESS_VARIABLE.search(name)}
        secrets = [*values.values(), os.environ.get(config.api_key_variable or "", "")]
        self._secrets = {value.strip(): "***" for value in secrets}
        self._in_flight: InFlight[str] = InFlight()

    async def list_tools(self) -> list[Schema]:
        session = self.shared or Session(self.config)
        try:
            return [schema_of(tool) for tool in await session.tools()]
        except ServerGone as gone:
            raise UserError(f"{self.key}: no MCP server at {self.config.label}: {self._mask(str(gone))}") from gone
        finally:
            if session is not self.shared:
                await session.close()

    async def call(self, sessions: Sessions, tool: str, arguments: dict[str, Any]) -> str:
        """Return a call's text: from the store, from an equal call in progress, or from the server.
        Raises ToolError, ServerGone, and with judge.store_only UserError for a call that the store lacks."""
        if self._store is None:
            return await self._send(self.shared or sessions.setdefault(self, Session(self.config)), tool, arguments)
        world = {"variables": self._world} if self._world else {}
        request = {"env": self.config.env, **world, "tool": tool, "arguments": arguments}
        key = reply_key(f"mcp {self.config.label}", request, 0)
        stored = self._store.get(key)
        self.metrics["mcp/hit_rate"].append(float(stored is not None or key in self._in_flight))
        if stored:
            return stored.text
        if self._store_only:
            problem = f"the store lacks a call of {tool} of {self.config.label}"
            raise UserError(f"judge.store_only: {problem}; run it once without store_only")

        async def send_and_store() -> str:
            text = await self._send(self.shared, tool, arguments)
            return self._store.put(key, StoredReply(text, self.config.label, None, None)).text

        return await self._in_flight.get(key, send_and_store)

    async def _send(self, session: Session, tool: str, arguments: dict[str, Any]) -> str:
        async with self._places:
            start, reconnects = time.perf_counter(), session.reconnects
            try:
                return self._mask(result_text(await session.call(tool, arguments)))
            except ToolError as error:
                raise ToolError(self._mask(str(error))) from error.__cause__
            except ServerGone as gone:
                raise ServerGone(self._mask(f"{self.config.label}: {gone}")) from gone.__cause__
            finally:
                self.metrics["mcp/call_s"].append(time.perf_counter() - start)
                self.metrics["mcp/reconnects"].append(float(session.reconnects - reconnects))

    def _mask(self, text: str) -> str:
        """Mask secrets: a server may repeat its key, for example in the address of an unreachable service."""
        return replace_values(text, self._secrets)


class Builtin:
    """The tools of a built-in environment in this process, with the interface of `Server`."""

    def __init__(self, config: MCPServerConfig, key: str, world: Environment):
        if not trait(world, "shared"):
            problem = "keeps a state, and cannot serve several trajectories"
            raise UserError(f"{key}.world={config.world} {problem}; set it as environment.name")
        self.config, self.world = config, world

    async def list_tools(self) -> list[Schema]:
        return self.world.tools

    async def call(self, sessions: Sessions, tool: str, arguments: dict[str, Any]) -> str:
        return require_success(await observe(self.world, tool, arguments))


class Toolbox:
    """All tools under the policy's names. `make()` returns an environment; it is shared unless a server keeps a state.

    `world_of` makes a built-in environment by its name. `limits` names the store that keeps calls; None keeps none.
    Raises UserError if a server does not start, two tools share a name, or a tool in the config does not exist.
    """

    def __init__(
        self, servers: list[MCPServerConfig], world_of: Callable[[str], Environment], limits: JudgesConfig | None
    ):
        self.thread = LoopThread("mcp")
        store, store_only = (ReplyStore(limits.store), limits.store_only) if limits else (None, False)
        keyed = {f"environment.mcp.{number}": config for number, config in enumerate(servers)}
        sources: list[Server | Builtin] = [
            Builtin(config, key, world_of(config.world)) if config.world else Server(config, key, store, store_only)
            for key, config in keyed.items()
        ]
        self._servers = [source for source in sources if isinstance(source, Server)]
        weakref.finalize(
            self, _close_sessions, self.thread, [server.shared for server in self._servers if server.shared]
        )
        listed = self.thread.submit(_gather(source.list_tools() for source in sources)).result()
        self._offered: dict[str, tuple[Server | Builtin, OfferedTool]] = {}
        for key, source, tools in zip(keyed, sources, listed, strict=True):
            for tool in offered_tools(source.config, key, tools, lambda name: world_of(name).tools):
                if first := self._offered.get(tool.name):
                    both = f"{first[0].config.label} and {source.config.label} both have a tool {tool.name}"
                    if first[0] is source:
                        both = f"{source.config.label} has two tools called {tool.name}"
                    raise UserError(f"environment.mcp: {both}; rename a tool, or leave it out of allow")
                self._offered[tool.name] = source, tool
        if not self._offered:
            raise UserError("environment.mcp: no server has a tool for the policy; change allow or rename")
        self.tools = [tool.schema for _, tool in self._offered.values()]
        self.is_shared = all(server.shared for server in self._servers)

    def make(self) -> "MCPEnvironment":
        return MCPEnvironment(self)

    async def answer(self, name: str, arguments: dict[str, Any], sessions: Sessions) -> str:
        """Run a tool in the toolbox's own loop and return its text. Raises ToolError or ServerGone."""
        source, tool = self._offered[name]

        async def call(server_tool: str, /, **arguments: Any) -> str:
            return await source.call(sessions, server_tool, arguments)

        try:
            return cut(await tool.answer(call, arguments), source.config.max_chars)
        except ToolError as error:
            raise ToolError(cut(str(error), source.config.max_chars)) from error

    def take_metrics(self) -> dict[str, list[float]]:
        """Return the values of each metric since the last call; the log takes their mean."""
        metrics: dict[str, list[float]] = defaultdict(list)
        for server in self._servers:
            of_server, server.metrics = server.metrics, defaultdict(list)
            for name, values in of_server.items():
                metrics[name] += values
        return metrics


class MCPEnvironment:
    """An `Environment` with the tools of a `Toolbox` and a trajectory's own sessions."""

    def __init__(self, toolbox: Toolbox):
        self.toolbox, self.tools, self.shared = toolbox, toolbox.tools, toolbox.is_shared
        self.take_metrics = toolbox.take_metrics
        self._sessions: Sessions = {}

    def reset(self, query: Any) -> None:
        """Do nothing: the first call opens a session."""

    async def call(self, name: str, arguments: dict[str, Any] | str) -> str:
        checked = check_call(self.tools, name, arguments)
        return await self.toolbox.thread.run(self.toolbox.answer(name, checked, self._sessions))

    async def close(self) -> None:
        await self.toolbox.thread.run(_gather(session.close() for session in self._sessions.values()))


async def _gather(coroutines: Any) -> list[Any]:
    return await asyncio.gather(*coroutines)


def _close_sessions(thread: LoopThread, sessions: list[Session]) -> None:
    """Close a toolbox's sessions and thread, when it is freed or at the end of the process."""
    closing = thread.submit(_gather(session.close() for session in sessions))
    try:
        closing.result(_SHUTDOWN_S)
    except TimeoutError:
        closing.cancel()
    thread.close()
