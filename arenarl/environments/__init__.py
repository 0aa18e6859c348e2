"""Environments: tools with JSON schemas and the worlds behind them, all seeded and without network access.

`base` defines what the rollout engine needs from one. `travel` offers the six Open-Travel tools over `travel_world`.
"""

from arenarl.config import EnvironmentConfig
from arenarl.environments.travel import TravelEnvironment
from arenarl.environments.travel_schemas import Language
from arenarl.environments.travel_world import build_world


def make_environment(config: EnvironmentConfig, language: Language) -> TravelEnvironment:
    """The tool set that `environment.name` names."""
    return TravelEnvironment(build_world(config.world_seed), config.results, language)
