"""Environments: tools with JSON schemas and the worlds behind them, all seeded and, but for the web, without network access.

What the rollout engine needs from one, arenarl/rollout/environment.py says. Imports of one domain's world stay behind `make_environment`.
"""

from typing import TYPE_CHECKING, Any

from arenarl.config.schema import EnvironmentConfig
from arenarl.rollout.environment import Environment
from arenarl.system.imports import named

if TYPE_CHECKING:
    from arenarl.llm.client import LLMClient

ENVIRONMENTS = {"travel": "arenarl.domains.travel.tools:TravelEnvironment", "research": "arenarl.domains.research.environment:ResearchEnvironment"}


def environment_class(name: str) -> Any:
    """What `environment.name` names: an environment of this project, or a class as package.module:Class.

    Raises:
        UserError: it cannot be imported.
    """
    return named(ENVIRONMENTS.get(name, name), "environment.name")


def make_environment(config: EnvironmentConfig, language: str, client: "LLMClient | None" = None) -> Environment:
    """The tool set that `environment.name` names. With a `client`, an LLM invents tickets or writes snippets where the config says so.

    Raises:
        UserError: the class that `name` names, or what its search needs, cannot be had.
    """
    made = environment_class(config.name)
    return made.from_config(config, language, client) if config.name in ENVIRONMENTS else made(config, language)
