"""Rewards → advantages → loss: a file for each method, with its formula, source, keys and requirements.

A config may combine methods, such as GSPO's ratios with GRPO's advantages. To add a method, write its file, and add it
to METHODS; docs/methods.md (Add a method) lists the rest.
"""

from operator import attrgetter

from arenarl.config.schema import Config, RLConfig
from arenarl.training.methods.method import Method, OfflineMethod, OnlineMethod

from arenarl.training.methods import (  # isort: skip
    agentevol, brpo, dapo, dpo, dr_grpo, gdpo, gigpo, grpo, gspo, ppo, reinforce_plus_plus, reinforce_plus_plus_global,
    rloo, rtmc, step_credit,
)  # fmt: skip

__all__ = ["METHODS", "Method", "chosen_methods", "offline_method", "online_method"]

METHODS: list[Method] = [module.METHOD for module in (
    grpo, gspo, dr_grpo, dapo, rloo, reinforce_plus_plus, reinforce_plus_plus_global, gdpo, brpo, ppo, step_credit,
    gigpo, rtmc, dpo, agentevol,
)]  # fmt: skip


def chosen_methods(config: Config) -> list[Method]:
    """Return the methods whose keys the config sets; with an offline `rl.method`, only that method."""
    return [
        method
        for method in METHODS
        if all(attrgetter(key)(config) == value for key, value in method.keys.items())
        and isinstance(method, OfflineMethod) == (config.rl.method != "online")
    ]


def online_method(rl: RLConfig) -> OnlineMethod:
    """Return the method that `rl.advantage` names."""
    (method,) = [method for method in METHODS if method.keys.get("rl.advantage") == rl.advantage]
    return method


def offline_method(rl: RLConfig) -> OfflineMethod:
    """Return the method that `rl.method` names."""
    (method,) = [method for method in METHODS if method.keys.get("rl.method") == rl.method]
    return method
