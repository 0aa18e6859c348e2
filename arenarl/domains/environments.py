"""Environments: tools with JSON schemas and the worlds behind them, all seeded and without network access.

`base` defines what the rollout engine needs from one. `travel` offers the six Open-Travel tools over `travel_world`; `research`, a
package of its own, searches and reads pages.
"""

from typing import TYPE_CHECKING

from arenarl.config.load import named_class
from arenarl.config.schema import EnvironmentConfig
from arenarl.domains.travel.schemas import Language
from arenarl.domains.travel.tools import TravelEnvironment
from arenarl.domains.travel.world import build_world
from arenarl.rollout.environment import Environment

if TYPE_CHECKING:
    from arenarl.llm.client import LLMClient


def make_environment(config: EnvironmentConfig, language: Language, client: "LLMClient | None" = None) -> Environment:
    """The tool set that `environment.name` names. With a `client`, an LLM invents tickets or writes snippets where the config says so.

    Raises:
        UserError: the class that `name` names, or what its search needs, cannot be had.
    """
    if config.name == "research":
        from arenarl.domains.research.environment import ResearchEnvironment

        return ResearchEnvironment.from_config(config, language, client)
    if config.name != "travel":
        return named_class(config.name, "environment.name")(config, language)
    world, timetable = build_world(config.world_seed), None
    if client and config.tickets.name == "llm":
        from arenarl.domains.travel.llm_timetable import LLMTimetable

        timetable = LLMTimetable(config.tickets, client, world, language)
    return TravelEnvironment(world, config.results, language, timetable)
