"""Environments: tools with JSON schemas and the worlds behind them, all seeded and, but for the web,
without network access.

What the rollout engine needs from one, arenarl/rollout/environment.py says.
Imports of one domain's world stay behind `make_environment`.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from arenarl.config.schema import EnvironmentConfig, JudgesConfig
from arenarl.rollout.environment import Environment
from arenarl.rollout.foreign_environments import OpenEnvEnvironment, TRLEnvironment, is_client
from arenarl.system.errors import UserError
from arenarl.system.user_input import named

if TYPE_CHECKING:
    from arenarl.llm.client import LLMClient
    from arenarl.rollout.mcp_environment import Toolbox

ENVIRONMENTS = {
    "travel": "arenarl.domains.travel.tools:TravelEnvironment",
    "research": "arenarl.domains.research.environment:ResearchEnvironment",
    "textcraft": "arenarl.domains.agentgym.textcraft:TextCraftEnvironment",
    "babyai": "arenarl.domains.agentgym.babyai:BabyAIEnvironment",
    "sciworld": "arenarl.domains.agentgym.sciworld:SciWorldEnvironment",
    "mcp": "arenarl.rollout.mcp_environment:MCPEnvironment",
    "none": "arenarl.rollout.environment:NoTools",
}


def environment_class(name: str) -> Any:
    """What `environment.name` names: an environment of this project, or a class as package.module:Class.
    Raises UserError if it cannot be imported."""
    return named(ENVIRONMENTS.get(name, name), "environment.name")


def environment_maker(
    config: EnvironmentConfig, language: str, client: "LLMClient | None" = None, limits: JudgesConfig | None = None
) -> Callable[[], Environment]:
    """Makes instances of what `environment.name` names. With a `client`, an LLM invents tickets or writes snippets
    where the config says so; with `limits`, the store that they name keeps the calls of MCP servers.
    Raises UserError if the class that `name` names cannot be had. What is made raises it for one that fits no kind."""
    if config.name == "mcp":
        open_toolbox = cache(partial(_open_toolbox, config, language, client, limits))
        return lambda: open_toolbox().make()
    made = environment_class(config.name)
    if config.name in ENVIRONMENTS:
        make = partial(made.from_config, config, language, client)
    elif is_client(made):
        make = partial(OpenEnvEnvironment, made, config.server)
    else:
        make = partial(_own, made, config, language)
    return cache(make) if getattr(made, "shared", False) else make


_CALLED_WITH = {"reset": ("query",), "call": ("name", "arguments")}  # of a world of one's own, by position


def _own(maker: Any, config: EnvironmentConfig, language: str) -> Environment:
    """What a class or a function makes: a world with call and tools is one of ours, of (config, language) or of
    nothing; any other is TRL's.
    Raises UserError if it is neither, or one of ours that the engine could not call."""
    # where all arguments are optional, the kind decides
    ways = [(config, language), ()] if hasattr(maker, "call") else [(), (config, language)]
    arguments = next((way for way in ways if _takes(maker, way)), None)
    named = f"environment.name: {config.name}"
    if arguments is None:
        raise UserError(f"{named} must be a class or a function of (config, language), or of nothing, as TRL's are")
    world = maker(*arguments)
    if not (arguments or hasattr(world, "call") and hasattr(world, "tools")):
        return TRLEnvironment(world)
    if missing := [name for name in ("call", "tools", "reset") if not hasattr(world, name)]:
        like = "takes (config, language)" if arguments else "has call and tools"
        raise UserError(f"{named} {like}, as our worlds do, but has no {' and no '.join(missing)}")
    wrong = [name for name, given in _CALLED_WITH.items() if not _takes(getattr(world, name), given)]
    if wrong:
        what = " and ".join(f"{name} takes no ({', '.join(_CALLED_WITH[name])})" for name in wrong)
        raise UserError(f"{named}.{what}; docs/domains.md shows a class")
    return world


def _takes(maker: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether it can be called with them. Of what has no signature nobody knows."""
    try:
        inspect.signature(maker).bind(*arguments)
    except TypeError:
        return False
    except ValueError:
        pass
    return True


def _open_toolbox(
    config: EnvironmentConfig, language: str, client: "LLMClient | None", limits: JudgesConfig | None
) -> "Toolbox":
    """Raises UserError where the SDK, a server or a tool that the config names cannot be had."""
    try:
        from arenarl.rollout.mcp_environment import Toolbox
    except ImportError as error:
        needed = f"environment.name=mcp needs a package that is not installed ({error})"
        raise UserError(f"{needed}: pip install mcp==2.3.0") from error

    @cache
    def world_of(name: str) -> Environment:
        return make_environment(replace(config, name=name), language, client)

    return Toolbox(config.mcp, world_of, limits)


def make_environment(config: EnvironmentConfig, language: str, client: "LLMClient | None" = None) -> Environment:
    """One instance. Raises UserError if the class, or what its search needs, cannot be had."""
    return environment_maker(config, language, client)()
