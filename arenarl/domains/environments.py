"""Environments: `make_environment` creates the tools, and the world behind them, that `environment.name` names.

All environments of this project are seeded, and only web search uses the network. arenarl/rollout/environment.py has
the interface that the rollout engine needs. A domain's world is imported only when it is created.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

from arenarl.config.schema import EnvironmentConfig, JudgesConfig
from arenarl.llm.client import LLMClient
from arenarl.rollout.environment import Environment
from arenarl.rollout.foreign_environments import OpenEnvEnvironment, TRLEnvironment, is_client
from arenarl.system.errors import UserError
from arenarl.system.user_input import import_named

ENVIRONMENTS = {
    "travel": "arenarl.domains.travel.tools:TravelEnvironment",
    "research": "arenarl.domains.research.environment:ResearchEnvironment",
    "textcraft": "arenarl.domains.agentgym.textcraft:TextCraftEnvironment",
    "babyai": "arenarl.domains.agentgym.babyai:BabyAIEnvironment",
    "sciworld": "arenarl.domains.agentgym.sciworld:SciWorldEnvironment",
    "textcraft_server": "arenarl.domains.agentgym.server:TextCraftServer",
    "babyai_server": "arenarl.domains.agentgym.server:BabyAIServer",
    "sciworld_server": "arenarl.domains.agentgym.server:SciWorldServer",
    "alfworld_server": "arenarl.domains.agentgym.server:ALFWorldServer",
    "searchqa_server": "arenarl.domains.agentgym.server:SearchQAServer",
    "webarena_server": "arenarl.domains.agentgym.server:WebArenaServer",
    "webshop_server": "arenarl.domains.agentgym.server:WebShopServer",
    "sqlgym_server": "arenarl.domains.agentgym.server:SQLGymServer",
    "mcp": "arenarl.rollout.mcp_environment:MCPEnvironment",
    "none": "arenarl.rollout.environment:NoTools",
}


def environment_class(name: str) -> Any:
    """Import the class of `environment.name`: one of ENVIRONMENTS, or package.module:Class. Raises UserError."""
    return import_named(ENVIRONMENTS.get(name, name), "environment.name")


def environment_maker(
    config: EnvironmentConfig, language: str, client: LLMClient | None = None, limits: JudgesConfig | None = None
) -> Callable[[], Environment]:
    """Return a function that creates instances of the environment that `environment.name` names.

    LLMs that invent tickets or write snippets use the `client`. `limits` names the store for calls of MCP servers. A
    class that cannot be imported raises UserError here; a class of an unknown kind raises it when it is called.
    """
    if config.name == "mcp":
        open_toolbox = cache(partial(_open_toolbox, config, language, client, limits))
        return lambda: open_toolbox().make()
    environment = environment_class(config.name)
    if config.name in ENVIRONMENTS:
        make = partial(environment.from_config, config, language, client)
    elif is_client(environment):
        make = partial(OpenEnvEnvironment, environment, config.server)
    else:
        make = partial(_make_own, environment, config, language)
    return cache(make) if getattr(environment, "shared", False) else make


_PARAMETERS = {"reset": ("query",), "call": ("name", "arguments")}  # positional, in a user's environment


def _make_own(maker: Any, config: EnvironmentConfig, language: str) -> Environment:
    """Call a user's class or function, with (config, language) or without arguments; raise UserError if neither works.

    An instance follows our interface if it was made with arguments or has `call` and `tools`. Any other instance
    follows TRL's.
    """
    # if the maker accepts both forms, `call` decides
    choices = [(config, language), ()] if hasattr(maker, "call") else [(), (config, language)]
    arguments = next((choice for choice in choices if _accepts(maker, choice)), None)
    key = f"environment.name: {config.name}"
    if arguments is None:
        raise UserError(f"{key} must be a class or a function of (config, language), or without parameters, as TRL's")
    world = maker(*arguments)
    if not (arguments or hasattr(world, "call") and hasattr(world, "tools")):
        return TRLEnvironment(world)
    if missing := [name for name in ("call", "tools", "reset") if not hasattr(world, name)]:
        like = "takes (config, language)" if arguments else "has call and tools"
        raise UserError(f"{key} {like}, as our worlds do, but has no {' and no '.join(missing)}")
    if wrong := [name for name, names in _PARAMETERS.items() if not _accepts(getattr(world, name), names)]:
        what = " and ".join(f"{name} does not take ({', '.join(_PARAMETERS[name])})" for name in wrong)
        raise UserError(f"{key}.{what}; docs/domains.md shows a class")
    return world


def _accepts(function: Any, arguments: tuple[Any, ...]) -> bool:
    """Return whether the function can be called with these arguments; True for a builtin without a signature."""
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError) as error:
        return isinstance(error, ValueError)
    return True


def _open_toolbox(
    config: EnvironmentConfig, language: str, client: LLMClient | None, limits: JudgesConfig | None
) -> Any:
    """Start the config's MCP servers; raise UserError if the SDK, a server or a tool is missing."""
    try:
        from arenarl.rollout.mcp_environment import Toolbox
    except ImportError as error:
        missing = f"environment.name=mcp needs a package that is not installed ({error})"
        raise UserError(f"{missing}: pip install mcp==2.3.0") from error

    @cache
    def world_of(name: str) -> Environment:
        return make_environment(replace(config, name=name), language, client)

    return Toolbox(config.mcp, world_of, limits)


def make_environment(config: EnvironmentConfig, language: str, client: LLMClient | None = None) -> Environment:
    """Create one instance; raise UserError if the class cannot be imported, or its search has no index or key."""
    return environment_maker(config, language, client)()
