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
from hashlib import sha256
from pathlib import Path
from typing import Any

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


Sessions = dict["Server", Session]  # a trajectory's own, made when they are first needed


class Server:
    """The tools of an MCP server."""

    def __init__(self, config: MCPServerConfig, key: str, store: ReplyStore | None, store_only: bool):
        self.config, self.key = config, key
        self.shared = Session(config) if config.session == "shared" else None
        self.metrics: dict[str, list[float]] = defaultdict(list)
        self._store, self._store_only = store if self.shared and config.cache else None, store_only
        self._places = asyncio.Semaphore(config.concurrency)
        values = {name: os.environ.get(name, "") for name in config.variables}
        # a database's address, say, as a hash
        hashes = {name: sha256(value.encode()).hexdigest()[:16] for name, value in values.items()}
        self._world = {name: value for name, value in hashes.items() if not _WHO_ASKS.search(name)}
        secrets = [*values.values(), os.environ.get(config.api_key_variable or "", "")]
        self._secrets = [value.strip() for value in secrets if len(value.strip()) >= _SHORTEST_SECRET]
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
        """From the store, from a call under way, or from one of its own. Raises ToolError, or ServerGone."""
        if self._store is None:
            return await self._ask(self.shared or sessions.setdefault(self, Session(self.config)), tool, arguments)
        world = {"variables": self._world} if self._world else {}
        request = {"env": self.config.env, **world, "tool": tool, "arguments": arguments}
        key = reply_key(f"mcp {self.config.says}", request, 0)
        stored = self._store.get(key)
        self.metrics["mcp/hit_rate"].append(float(stored is not None or key in self._under_way))
        if stored:
            return stored.text
        if self._store_only:
            lacks = f"the store lacks a call of {tool} of {self.config.says}"
            raise UserError(f"judge.store_only: {lacks}; run it once without store_only")

        async def ask_and_keep() -> str:
            text = await self._ask(self.shared, tool, arguments)
            return self._store.put(key, StoredReply(text, self.config.says, None, None)).text

        return await self._under_way.get(key, ask_and_keep)

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
    """The tools of one of our environments, in this process, as a `Server` gives them."""

    def __init__(self, config: MCPServerConfig, key: str, world: Environment):
        if not trait(world, "shared"):
            problem = "keeps a state, and cannot serve several trajectories"
            raise UserError(f"{key}.world={config.world} {problem}; take it as environment.name")
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
        store, store_only = (ReplyStore(Path(limits.store)), limits.store_only) if limits else (None, False)
        keyed = {f"environment.mcp.{number}": config for number, config in enumerate(servers)}
        sources: list[Server | World] = [
            World(config, key, world_of(config.world)) if config.world else Server(config, key, store, store_only)
            for key, config in keyed.items()
        ]
        self._servers = [source for source in sources if isinstance(source, Server)]
        weakref.finalize(self, _end, self.thread, [server.shared for server in self._servers if server.shared])
        listed = self.thread.submit(_all(source.listed() for source in sources)).result()
        self._of: dict[str, tuple[Server | World, OfferedTool]] = {}
        for key, source, tools in zip(keyed, sources, listed, strict=True):
            for tool in offered_tools(source.config, key, tools, lambda name: world_of(name).tools):
                if tool.name in self._of:
                    both = f"{self._of[tool.name][0].config.says} and {source.config.says} both have a tool {tool.name}"
                    remedy = "give one another name by rename, or leave it out of allow"
                    raise UserError(f"environment.mcp: {both}; {remedy}")
                self._of[tool.name] = source, tool
        if not self._of:
            raise UserError("environment.mcp: no server has a tool that the policy gets; see allow and rename")
        self.tools = [tool.schema for _, tool in self._of.values()]
        self.is_shared = all(server.shared for server in self._servers)

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
        """What the calls since this was last called were like, each metric as the values whose mean it is."""
        taken: dict[str, list[float]] = defaultdict(list)
        for server in self._servers:
            metrics, server.metrics = server.metrics, defaultdict(list)
            for name, values in metrics.items():
                taken[name] += values
        return taken


class MCPEnvironment:
    """An `Environment`."""

    def __init__(self, toolbox: Toolbox):
        self.toolbox, self.tools, self.shared = toolbox, toolbox.tools, toolbox.is_shared
        self.take_metrics = toolbox.take_metrics
        self._sessions: Sessions = {}

    def reset(self, query: Any) -> None:
        """Sessions begin with the first call."""

    async def call(self, name: str, arguments: dict[str, Any] | str) -> str:
        checked = check_call(self.tools, name, arguments)
        return await self.toolbox.thread.run(self.toolbox.answer(name, checked, self._sessions))

    async def close(self) -> None:
        await self.toolbox.thread.run(_all(session.left() for session in self._sessions.values()))


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
