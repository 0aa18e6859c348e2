"""Rewards → advantages → loss: a file for each method, with its formula, source, keys and requirements.

A config may choose several at once, such as GSPO's ratios with GRPO's advantages. To add one: its file, its row here,
its value among the keys of config/schema.py, a YAML in configs/methods.
"""

from operator import attrgetter

from arenarl.config.schema import Config, RLConfig
from arenarl.training.methods import (
    agentevol,
    brpo,
    dapo,
    dpo,
    dr_grpo,
    gdpo,
    grpo,
    gspo,
    ppo,
    reinforce_plus_plus,
    rloo,
)
from arenarl.training.methods.method import Method, OfflineMethod, OnlineMethod

__all__ = ["METHODS", "Method", "chosen_methods", "offline_method", "online_method"]

METHODS: list[Method] = [
    module.METHOD for module in (grpo, gspo, dr_grpo, dapo, rloo, reinforce_plus_plus, gdpo, brpo, ppo, dpo, agentevol)
]


def chosen_methods(config: Config) -> list[Method]:
    """The methods whose keys the config sets; offline, none of the keys of online methods is read."""
    return [
        method
        for method in METHODS
        if all(attrgetter(key)(config) == value for key, value in method.keys.items())
        and isinstance(method, OfflineMethod) == (config.rl.method != "online")
    ]


def online_method(rl: RLConfig) -> OnlineMethod:
    """The method that `rl.advantage` names."""
    (method,) = [method for method in METHODS if method.keys.get("rl.advantage") == rl.advantage]
    return method


def offline_method(rl: RLConfig) -> OfflineMethod:
    """The method that `rl.method` names."""
    (method,) = [method for method in METHODS if method.keys.get("rl.method") == rl.method]
    return method
