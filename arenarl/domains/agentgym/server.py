"""AgentGym's HTTP servers as environments: WebArena, SearchQA, TextCraft and others, with one action per turn.

A server (WooooDyy/AgentGym, agentenv-*) keeps numbered environments: POST /create makes one, /reset starts an item in
it, /step takes an action. The servers' fields and replies differ; each class below describes one, after its server's
code and AgentGym's client for it. As in AgentGym, a trajectory's reward is the reward of its last action. The rules of
a world are in AgentGym's clients, not in its servers; here `rollout.system_prompt` states them.

A request without a usable reply is a crash of the environment. `from_config` tries a server before work starts.
"""

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any, ClassVar, Self
from weakref import WeakValueDictionary

import aiohttp

from arenarl.config.schema import EnvironmentConfig
from arenarl.domains.agentgym.searchqa import SETS
from arenarl.domains.agentgym.world import (
    HERE,
    TOOLS,
    ItemDomain,
    item_of,
    official_items,
    read_action,
    read_whole_action,
)
from arenarl.domains.domain import Split, Watch
from arenarl.rollout.environment import Environment, Step, check_call
from arenarl.system.errors import MOST_SHOWN, UserError, one_line
from arenarl.system.event_loops import LoopThread
from arenarl.system.progress import say
from arenarl.trajectory import Query, parse_json

CONNECT_S = 30.0  # most seconds to connect to a server, and for the /close of an environment whose trial failed
TRY_S = 300.0  # most seconds for the environment that is tried at the start, and the default of AgentGym's clients
MOST_BYTES = 2**26  # of a reply; WebArena's replies have data besides the observation
_LOST_PAGE = re.compile(r"Error: Env \d+ is dead|\d*|\[Errno 32\] Broken pipe")  # WebArena: the environment is lost


class ServerFault(ConnectionError):
    """A server refuses a request, or its reply has another form."""


# server and number -> the instance that uses the environment. A restarted server counts from 0 again
_owners: WeakValueDictionary[tuple[str, int], "AgentGymServer"] = WeakValueDictionary()


class AgentGymServer:
    """An `Environment` that uses one environment of the server alone, and resets it for every trajectory.

    The class attributes describe a server. The values here fit TextCraft's server and most others.
    """

    tools = TOOLS
    reusable = True
    needs_answer = False
    one_call_a_turn = True

    world: ClassVar[str]  # its name in AgentGym
    greeting: ClassVar[str]  # the reply to GET / contains it
    id_field: ClassVar[str] = "id"
    item_field: ClassVar[str] = "data_idx"
    create_body: ClassVar[dict[str, Any]] = {}
    reset_body: ClassVar[dict[str, Any]] = {}  # besides environment and item
    has_close: ClassVar[bool] = True
    foreign_route: ClassVar[str | None] = None  # of another world's server, which would accept the same requests
    # fields of the reply to /step
    observation_field: ClassVar[str] = "observation"
    reward_field: ClassVar[str] = "reward"
    done_field: ClassVar[str] = "done"
    full_reward: ClassVar[float] = 1.0  # the largest reward, which becomes 1
    read = staticmethod(read_action)  # returns a call's action as AgentGym's client sends it

    @classmethod
    def from_config(cls, config: EnvironmentConfig, language: str, client: Any = None) -> Self:
        """Return an environment. Raises UserError if the config names no server, or one that does not fit."""
        if config.server is None:
            remedy = "set environment.server to the server's address, such as http://127.0.0.1:36001"
            raise UserError(f"environment.name={cls.world}_server needs a server; {remedy}")
        url = config.server.rstrip("/")
        _try_once(cls, url, min(config.timeout_s, TRY_S))
        return cls(url)

    def __init__(self, url: str):
        self.url, self.number, self.reward = url, None, 0.0

    async def reset(self, query: Query) -> str:
        return await self.start(item_of(query))

    async def start(self, item: int) -> str:
        """Start an item, in an environment that the first call creates, and return the first observation."""
        if self.number is None:
            reply = await self.request("create", self.create_body)
            number = reply.get(self.id_field) if isinstance(reply, dict) else reply
            self.number = _typed("create", self.id_field, number, int)
            _owners[self.url, self.number] = self
        self.reward = 0.0
        return await self.first_observation(await self.request("reset", {self.item_field: item} | self.reset_body))

    async def first_observation(self, reply: Any) -> str:
        """Return the text that AgentGym's client shows first, after the reply to /reset."""
        return field_of("reset", reply, "observation", str)

    async def call(self, name: str, arguments: dict[str, Any] | str) -> Step:
        reply = await self.request("step", {"action": self.read(name, arguments)})
        observation = field_of("step", reply, self.observation_field, str)
        self.reward = field_of("step", reply, self.reward_field, (int, float)) / self.full_reward
        return Step(observation, field_of("step", reply, self.done_field, bool))

    def score(self) -> float:
        return self.reward

    async def close(self) -> None:
        if self.has_close and self._is_owner:
            # no longer ours: the server may give the number to another trajectory before its reply arrives
            own, self.number = {self.id_field: self.number}, None
            with suppress(aiohttp.ClientConnectionError):  # the server has ended, and its environments with it
                await self.request("close", own)

    @property
    def _is_owner(self) -> bool:
        return self.number is not None and _owners.get((self.url, self.number)) is self

    def _require_ownership(self) -> None:
        if self.number is not None and not self._is_owner:
            problem = f"gave environment {self.number} to another trajectory: it was restarted, or has no more room"
            raise ServerFault(f"{self.url} {problem} (environment.instances)")

    async def request(self, route: str, body: dict[str, Any] | None = None) -> Any:
        """Post a body, or get a route without one, and return the reply's JSON.
        Raises ServerFault, or aiohttp's exceptions if the server cannot be reached."""
        own = {} if self.number is None else {self.id_field: self.number}
        self._require_ownership()
        method, data = ("GET", {"params": own}) if body is None else ("POST", {"json": own | body})
        status, text = await _exchange(method, self.url, route, **data)
        self._require_ownership()  # the other trajectory's /create may have come between request and reply
        shown = one_line(text, MOST_SHOWN)
        if status != 200:
            raise ServerFault(f"/{route}: status {status}: {shown}")
        try:
            reply = parse_json(text)
        except ValueError as error:
            raise ServerFault(f"/{route}: the reply is not JSON: {shown}") from error
        if isinstance(reply, dict) and "error" in reply:
            raise ServerFault(f"/{route}: {shown}")
        if own and isinstance(reply, dict) and reply.get(self.id_field, self.number) != self.number:
            raise ServerFault(f"/{route}: the reply is that of another environment than {self.number}: {shown}")
        return reply


async def _exchange(method: str, url: str, route: str, **data: Any) -> tuple[int, str]:
    """Return status and text of a reply, over a new connection, because idle connections may close.
    Raises ServerFault for a redirect, which would turn a POST into a GET, and for a reply that is too long or not text.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)  # environment.timeout_s limits the whole call
    request = {"allow_redirects": False} | data
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.request(method, f"{url}/{route}", **request) as reply,
    ):
        if 300 <= reply.status < 400:
            address = one_line(reply.headers.get("Location", ""), MOST_SHOWN)
            raise ServerFault(f"/{route}: redirected to {address} (status {reply.status}); name the final address")
        content = bytearray()
        async for part in reply.content.iter_any():
            content += part
            if len(content) > MOST_BYTES:
                raise ServerFault(f"/{route}: the reply has more than {MOST_BYTES:,} bytes")
    try:
        return reply.status, content.decode()
    except UnicodeDecodeError as error:
        raise ServerFault(f"/{route}: the reply is not text in UTF-8: {error}") from error


def field_of(route: str, reply: Any, name: str, kind: Any) -> Any:
    """Return a field of a reply. Raises ServerFault if it is missing or of another type."""
    return _typed(route, name, reply.get(name) if isinstance(reply, dict) else None, kind, reply)


def _typed(route: str, name: str, value: Any, kind: Any, reply: Any = None) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        shown = one_line(str(value if reply is None else reply), MOST_SHOWN)
        raise ServerFault(f"/{route}: the reply has no usable {name}: {shown}")
    return value


@cache
def _try_once(kind: type[AgentGymServer], url: str, timeout_s: float) -> None:
    """Create an environment, start item 0 and close it. Raises UserError if that fails."""
    thread = LoopThread("agentgym")
    try:
        thread.submit(asyncio.wait_for(_try(kind, url), timeout_s)).result()
    except (OSError, ValueError, aiohttp.ClientError) as error:
        slow = f"no reply within {timeout_s:g} s (environment.timeout_s, at most {TRY_S:g})"
        reason = one_line(error, MOST_SHOWN) or slow
        if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):  # their text is the address alone
            reason = "it is not an address such as http://127.0.0.1:36001"
        remedy = "start it, or change environment.server or environment.name"
        raise UserError(f"environment.server={url} is not a working {kind.world} server: {reason}; {remedy}") from error
    finally:
        thread.close()


async def _try(kind: type[AgentGymServer], url: str) -> None:
    status, text = await _exchange("GET", url, "")
    if status != 200 or kind.greeting not in text:
        raise ServerFault(f'it says {one_line(text, MOST_SHOWN)} (status {status}) instead of "{kind.greeting}"')
    environment = kind(url)
    try:
        await environment.start(0)
    except (OSError, aiohttp.ClientError, asyncio.CancelledError):  # a server keeps an environment that is not closed
        with suppress(OSError, aiohttp.ClientError):
            await asyncio.wait_for(environment.close(), CONNECT_S)
        raise
    if kind.foreign_route and (await _exchange("GET", url, kind.foreign_route))[0] != 404:
        raise ServerFault(f"it has a route /{kind.foreign_route}, so it serves another world")
    await environment.close()


class TextCraftServer(AgentGymServer):
    world, greeting = "textcraft", "TextCraft"


class BabyAIServer(AgentGymServer):
    world, greeting = "babyai", "BabyAI"
    reward_field = "score"


class SciWorldServer(AgentGymServer):
    world, greeting = "sciworld", "ScienceWorld"
    reward_field, full_reward = "score", 100.0
    read = staticmethod(read_whole_action)

    async def first_observation(self, reply: Any) -> str:
        return f"{field_of('reset', reply, 'task_description', str)}\n{await super().first_observation(reply)}"


class ALFWorldServer(AgentGymServer):
    world, greeting = "alfworld", "AlfWorld"
    item_field, reset_body, has_close = "game", {"world_type": "Text"}, False
    read = staticmethod(read_whole_action)

    async def first_observation(self, reply: Any) -> str:
        """Return the observation and the first possible actions; later replies to /step do not list actions."""
        actions = _typed("available_actions", "list", await self.request("available_actions"), list)
        texts = [_typed("available_actions", "action", action, str, actions) for action in actions]
        return f"{await super().first_observation(reply)}\nAVAILABLE ACTIONS: {','.join(texts)}"


class NumberedServer(AgentGymServer):
    """Base class of servers that number environments by `env_idx` and read the action from a text themselves."""

    greeting = "ok"
    id_field = "env_idx"

    async def first_observation(self, reply: Any) -> str:
        return _typed("observation", "text", await self.request("observation"), str)

    def read(self, name: str, arguments: dict[str, Any] | str) -> str:
        return check_call(TOOLS, name, arguments)["action"].strip()


class SearchQAServer(NumberedServer):
    world = "searchqa"
    item_field, create_body = "id", {"id": 0}


class WebArenaServer(NumberedServer):
    world = "webarena"
    item_field, reset_body, done_field = "idx", {"seed": 0}, "terminated"

    async def first_observation(self, reply: Any) -> str:
        if field_of("reset", reply, "observation", str) == "TimeoutError":
            raise ServerFault("/reset: the sites did not answer in time")
        return await super().first_observation(reply)

    def read(self, name: str, arguments: dict[str, Any] | str) -> str:
        """Return the action in the three backticks that the server looks for."""
        return f"```{super().read(name, arguments).strip('` ')}```"

    async def call(self, name: str, arguments: dict[str, Any] | str) -> Step:
        """Take an action. Until the end, the server's reward only means that the action could be carried out."""
        step = await super().call(name, arguments)
        self.reward *= step.done
        return step

    async def request(self, route: str, body: dict[str, Any] | None = None) -> Any:
        """Raise ServerFault also for a lost environment, which the server reports as an observation."""
        reply = await super().request(route, body)
        if route == "step" and field_of(route, reply, "info", (dict, type(None))) is None:
            if _LOST_PAGE.fullmatch(observation := field_of(route, reply, "observation", str)):
                raise ServerFault(f"/step: the environment is lost: {observation}")
        return reply


class WebShopServer(NumberedServer):
    world = "webshop"
    item_field, observation_field, has_close = "session_id", "state", False


class SQLGymServer(NumberedServer):
    world = "sqlgym"
    item_field, observation_field, has_close = "item_id", "state", False
    foreign_route = "instruction_text"  # WebShop's server starts a random item when the item's field is unknown


class ServerDomain(ItemDomain):
    """Items of a world that runs on a server. The tasks are on the server only, so the domain has no truth and no
    teacher."""

    name = "agentgym"
    sources = (HERE / "server.py", HERE / "world.py")

    @property
    def subtasks(self) -> tuple[str, ...]:
        """The world's name, the only subtask of the queries that `splits` makes."""
        return (self.environment.name.removesuffix("_server"),)

    def splits(self, environment: Environment, watch: Watch = iter, client: Any = None) -> Iterator[Split]:
        """Yield test and RL queries from AgentGym-RL's item lists, at most `data.test_per_subtask` and `data.rl_size`.
        Raises UserError without a server or lists."""
        world = getattr(environment, "world", None)
        if not isinstance(environment, AgentGymServer) or self.data.items is None:
            needs = "environment.name of a server, such as webarena_server, and data.items, AgentGym-RL's item lists"
            raise UserError(f"environment.domain=agentgym needs {needs}; or write your own queries (docs/domains.md)")
        prefixes = "|".join(SETS) if world == "searchqa" else world
        test, rl = (official_items(self.data.items, world, split, prefixes=prefixes) for split in ("test", "train"))
        say(f"{world}: {len(test)} test and {len(rl)} training items, of which {len({*test} & {*rl})} are in both")
        yield "test_queries", [_query(world, item) for item in test[: self.data.test_per_subtask]]
        yield "rl_queries", [_query(world, item) for item in rl[: self.data.rl_size]]


def _query(world: str, item: int) -> Query:
    return Query(f"{world}_{item}", "agentgym", world, "en", "Complete the following task.", {"item": item})
