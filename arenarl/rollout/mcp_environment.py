"""Tools of MCP servers as an environment (`environment.name: mcp`).

Each process has one `Toolbox`: a thread with the event loop in which all connections live, for rollouts open and close
loops of their own. Servers that only read share a session, whose calls are kept in the store of replies, so that a run
that is made again makes none; one with a state has a session a trajectory. A server that breaks is not the policy's
fault: a shared session is made anew once, then the trajectory begins again, and is void if that breaks too. A tool's
error, or one that takes too long, is an observation.
"""

import asyncio
import os
import re
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from arenarl.config.schema import JudgesConfig, MCPServerConfig
from arenarl.llm.reply_store import ReplyStore, StoredReply, reply_key
from arenarl.rollout.environment import Environment, Schema, ToolError, check_call, observe, trait
from arenarl.rollout.mcp_session import ServerGone, Session
from arenarl.rollout.mcp_tools import OfferedTool, cut, offered_tools, schema_of, sound, text_of
from arenarl.system.errors import UserError
from arenarl.system.event_loops import InFlight, LoopThread

_SHORTEST_SECRET = 8  # characters; shorter values of variables may be words of a result
# or by which way: variables that change no result
_WHO_ASKS = re.compile(r"KEY|TOKEN|SECRET|PASSW|PROXY|CERT|CA_BUNDLE|INDEX", re.IGNORECASE)
_GOODBYE_S = 5.0  # for servers to end when the process does


class Source(Protocol):
    """Where tools come from."""

    config: MCPServerConfig

    async def listed(self) -> list[Schema]:
        """All its tools. Raises UserError where they cannot be had."""

    async def call(self, sessions: "Sessions", tool: str, arguments: dict[str, Any]) -> str:
        """Raises ToolError, or ServerGone."""


class Sessions:
    """A trajectory's own sessions, made when they are first needed."""

    def __init__(self):
        self._of: dict[Server, Session] = {}

    def of(self, server: "Server") -> Session:
        return self._of.setdefault(server, Session(server.config))

    async def left(self) -> None:
        await asyncio.gather(*(session.left() for session in self._of.values()))


class Server:
    """A `Source` over MCP."""

    def __init__(self, config: MCPServerConfig, key: str, store: ReplyStore | None, store_only: bool):
        self.config, self.key = config, key
        self.shared = Session(config) if config.session == "shared" else None
        self.metrics: dict[str, list[float]] = defaultdict(list)
        self._store, self._store_only = store if self.shared and config.cache else None, store_only
        self._places = asyncio.Semaphore(config.concurrency)
        named = [*config.variables, *filter(None, [config.api_key_variable])]
        self._world = {  # a database's address, say, as a hash
            name: sha256(os.environ.get(name, "").encode()).hexdigest()[:16]
            for name in config.variables
            if not _WHO_ASKS.search(name)
        }
        self._secrets = [value for name in named if len(value := os.environ.get(name, "").strip()) >= _SHORTEST_SECRET]
        self._under_way: InFlight[str] = InFlight()

    async def listed(self) -> list[Schema]:
        session = self.shared or Session(self.config)
        try:
            return [schema_of(tool) for tool in await session.tools()]
        except ServerGone as gone:
            raise UserError(f"{self.key}: no MCP server at {self.config.says}: {self._masked(str(gone))}") from gone
        finally:
            if session is not self.shared:
                await session.left()

    async def call(self, sessions: Sessions, tool: str, arguments: dict[str, Any]) -> str:
        """From the store, from a call under way, or from one of its own."""
        if self._store is None:
            return await self._ask(self.shared or sessions.of(self), tool, arguments)
        world = {"variables": self._world} if self._world else {}
        key = reply_key(
            f"mcp {self.config.says}", {"env": self.config.env, **world, "tool": tool, "arguments": arguments}, 0
        )
        stored = self._store.get(key)
        self.metrics["mcp/hit_rate"].append(float(stored is not None or key in self._under_way))
        if stored:
            return stored.text
        if self._store_only:
            raise UserError(
                f"judge.store_only: the store lacks a call of {tool} of {self.config.says}; "
                "run it once without store_only"
            )
        return await self._under_way.get(key, lambda: self._kept(key, tool, arguments))

    async def _kept(self, key: str, tool: str, arguments: dict[str, Any]) -> str:
        text = await self._ask(self.shared, tool, arguments)
        return self._store.put(key, StoredReply(text, self.config.says, None, None)).text

    async def _ask(self, session: Session, tool: str, arguments: dict[str, Any]) -> str:
        async with self._places:
            start, reconnects = time.perf_counter(), session.reconnects
            try:
                return self._masked(text_of(await session.call(tool, arguments)))
            except ToolError as error:
                raise ToolError(self._masked(str(error))) from error.__cause__
            except ServerGone as gone:
                raise ServerGone(self._masked(f"{self.config.says}: {gone}")) from gone.__cause__
            finally:
                self.metrics["mcp/call_s"].append(time.perf_counter() - start)
                self.metrics["mcp/reconnects"].append(float(session.reconnects - reconnects))

    def _masked(self, text: str) -> str:
        """A server may repeat its key, as in the address of a service that it could not reach."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


class World:
    """A `Source` that is one of our environments, in this process."""

    def __init__(self, config: MCPServerConfig, key: str, world: Environment):
        if not trait(world, "shared"):
            raise UserError(
                f"{key}.world={config.world} keeps a state, and cannot serve several trajectories; "
                "take it as environment.name"
            )
        self.config, self.world = config, world

    async def listed(self) -> list[Schema]:
        return self.world.tools

    async def call(self, sessions: Sessions, tool: str, arguments: dict[str, Any]) -> str:
        return sound(await observe(self.world, tool, arguments))


class Toolbox:
    """All tools under the policy's names. `make()` gives an environment:
    one for all trajectories, or, where a server keeps a state, one each.

    Args:
        world_of: an environment of this project, by its name.
        limits: whose store keeps calls; None keeps none.

    Raises:
        UserError: a server does not start, two tools have one name, or the config names one that is not there.
    """

    def __init__(
        self, servers: list[MCPServerConfig], world_of: Callable[[str], Environment], limits: JudgesConfig | None
    ):
        self.thread = LoopThread("mcp")
        store = ReplyStore(Path(limits.store)) if limits else None
        server_of = partial(Server, store=store, store_only=bool(limits and limits.store_only))
        keyed = [(f"environment.mcp.{number}", config) for number, config in enumerate(servers)]
        self._sources: list[Source] = [
            World(config, key, world_of(config.world)) if config.world else server_of(config, key)
            for key, config in keyed
        ]
        sessions = [source.shared for source in self._sources if isinstance(source, Server) and source.shared]
        weakref.finalize(self, _end, self.thread, sessions)
        listed = self.thread.submit(_all(source.listed() for source in self._sources)).result()
        self._of: dict[str, tuple[Source, OfferedTool]] = {}
        for (key, config), source, tools in zip(keyed, self._sources, listed, strict=True):
            for tool in offered_tools(config, key, tools, lambda name: world_of(name).tools):
                self._add(source, tool)
        if not self._of:
            raise UserError("environment.mcp: no server has a tool that the policy gets; see allow and rename")
        self.tools = [tool.schema for _, tool in self._of.values()]
        self.is_shared = not any(isinstance(source, Server) and source.shared is None for source in self._sources)

    def make(self) -> "MCPEnvironment":
        return MCPEnvironment(self)

    async def answer(self, name: str, arguments: dict[str, Any], sessions: Sessions) -> str:
        """In this box's own loop. Raises ToolError, or ServerGone."""
        source, tool = self._of[name]

        async def call(named: str, /, **arguments: Any) -> str:
            return await source.call(sessions, named, arguments)

        try:
            return cut(await tool.answer(call, arguments), source.config.max_chars)
        except ToolError as error:
            raise ToolError(cut(str(error), source.config.max_chars)) from error

    def take_metrics(self) -> dict[str, list[float]]:
        taken: dict[str, list[float]] = defaultdict(list)
        for source in self._sources:
            if isinstance(source, Server):
                metrics, source.metrics = source.metrics, defaultdict(list)
                for name, values in metrics.items():
                    taken[name] += values
        return taken

    def _add(self, source: Source, tool: OfferedTool) -> None:
        if tool.name in self._of:
            both = f"{self._of[tool.name][0].config.says} and {source.config.says}"
            raise UserError(
                f"environment.mcp: {both} both have a tool {tool.name}; give one another name by rename, "
                "or leave it out of allow"
            )
        self._of[tool.name] = source, tool


class MCPEnvironment:
    """An `Environment`."""

    def __init__(self, toolbox: Toolbox):
        self.toolbox, self.tools, self.shared = toolbox, toolbox.tools, toolbox.is_shared
        self._sessions = Sessions()

    def reset(self, query: Any) -> None:
        """Sessions begin with the first call."""

    async def call(self, name: str, arguments: dict[str, Any] | str) -> str:
        checked = check_call(self.tools, name, arguments)
        return await self.toolbox.thread.run(self.toolbox.answer(name, checked, self._sessions))

    def take_metrics(self) -> dict[str, list[float]]:
        """What the calls since this was last called were like, each metric as the values whose mean it is."""
        return self.toolbox.take_metrics()

    async def close(self) -> None:
        await self.toolbox.thread.run(self._sessions.left())


async def _all(waited: Any) -> list[Any]:
    return await asyncio.gather(*waited)


def _end(thread: LoopThread, sessions: list[Session]) -> None:
    """When the box goes, at the latest with the process."""
    leaving = thread.submit(_all(session.left() for session in sessions))
    try:
        leaving.result(_GOODBYE_S)
    except TimeoutError:
        leaving.cancel()
    thread.close()
