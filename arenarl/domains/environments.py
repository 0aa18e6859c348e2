"""Environments: tools with JSON schemas and the worlds behind them, all seeded, and without network access but for the web's search.

What the rollout engine needs from one is in `rollout/environment.py`. `travel` offers the six Open-Travel tools over an embedded world,
`research` searches and reads pages; a run loads only the one that it names.
"""

from typing import TYPE_CHECKING

from arenarl.config.load import named_class
from arenarl.config.schema import EnvironmentConfig
from arenarl.rollout.environment import Environment

if TYPE_CHECKING:
    from arenarl.llm.client import LLMClient


def make_environment(config: EnvironmentConfig, language: str, client: "LLMClient | None" = None) -> Environment:
    """The tool set that `environment.name` names. With a `client`, an LLM invents tickets or writes snippets where the config says so.

    Raises:
        UserError: the class that `name` names, or what its search needs, cannot be had.
    """
    if config.name == "travel":
        from arenarl.domains.travel.tools import TravelEnvironment

        return TravelEnvironment.from_config(config, language, client)
    if config.name == "research":
        from arenarl.domains.research.environment import ResearchEnvironment

        return ResearchEnvironment.from_config(config, language, client)
    return named_class(config.name, "environment.name")(config, language)
