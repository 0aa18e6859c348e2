"""What methods and rewards require of other keys, evaluated: a contradiction costs one line, before torch is loaded.

The requirements are data beside each formula (`methods`, `rewards`); nothing here names a method.
"""

import json
from collections.abc import Collection, Iterator
from operator import attrgetter
from typing import Any

from arenarl.config.schema import Config
from arenarl.system.errors import UserError, shown
from arenarl.tournament.topologies import TOPOLOGIES, parameters_of
from arenarl.training.methods import METHODS, chosen_methods
from arenarl.training.rewards import REWARDS, Reward, reward_of

# keys of rl.method=online; rl.beta, which offline methods do not read either, comes to them from their base
OF_ONLINE = (
    "rl.loss_type", "rl.importance_sampling_level", "rl.epsilon", "rl.epsilon_high", "rl.updates_per_rollout",
    "rl.advantage", "rl.advantage_ddof", "rl.advantage_epsilon",
)  # fmt: skip


def check_method(config: Config) -> None:
    """Refuse a method or a reward whose requirements the config does not meet, and a key that is set and that nothing
    reads: an ablation of it would compare a run with itself.

    Raises:
        UserError: one line that says what to change.
    """
    reward = reward_of(config.reward.name)
    reward.check(config)
    for method in chosen_methods(config):
        title = f"{' and '.join(_setting(*key) for key in method.keys.items())} ({method.title})"
        for key, allowed in method.requires.items():
            if (value := attrgetter(key)(config)) not in allowed:
                raise UserError(f"{title} needs {_choice(key, allowed)}, not {_as_set(value)}")
        for key, excluded in method.excludes.items():
            if (value := attrgetter(key)(config)) in excluded:
                raise UserError(f"{title} does not go with {_setting(key, value)}; change one of them")
        if method.needs_matches and config.reward.name != "tournament" and not config.reward.tournament_if_equal:
            raise UserError(f"{title} takes its pairs from a tournament: set reward.name=tournament")
    for key, owner, owners, value in _unread_rules(config, reward):
        found, default = attrgetter(key)(config), attrgetter(key)(Config())
        if found != default and value not in owners:
            raise UserError(
                f"{_setting(key, found)} is of {owner}={' or '.join(sorted(owners))}, not of {value}; leave it out, "
                f"or set {_setting(key, default)}"
            )


def _unread_rules(config: Config, reward: Reward) -> Iterator[tuple[str, str, Collection[str], str]]:
    """(key, the key that decides whether it is read, the deciding values that do, the config's)."""
    name, tournament = config.reward.name, config.tournament
    for key in dict.fromkeys(key for one in REWARDS.values() for key in one.reads):
        yield key, "reward.name", {other for other, one in REWARDS.items() if key in one.reads}, name
    for key in OF_ONLINE:
        yield key, "rl.method", {"online"}, config.rl.method
    for key in dict.fromkeys(key for method in METHODS for key in method.reads):
        owners = [method for method in METHODS if key in method.reads]
        (owner,) = {owner for method in owners for owner in method.keys}
        yield key, owner, {method.keys[owner] for method in owners}, attrgetter(owner)(config)
    plays = reward.plays_topology or config.reward.tournament_if_equal
    if not plays:
        for key in ("tournament.topology", "tournament.ranking"):
            yield key, "reward.name", {other for other, one in REWARDS.items() if one.plays_topology}, name
        yield "tournament.bidirectional", "reward.name", {o for o, one in REWARDS.items() if one.compares}, name
    played = tournament.topology if plays else reward.own_topology(config)
    parameters = {topology: parameters_of(topology) for topology in {*TOPOLOGIES, *([played] if played else [])}}
    for key in dict.fromkeys(key for topology in TOPOLOGIES for key in parameters[topology]):
        owners = {topology for topology in parameters if key in parameters[topology]}
        yield f"tournament.{key}", "tournament.topology", owners, played or name


def _choice(key: str, values: Collection[Any]) -> str:
    return f"{key}={' or '.join(map(_as_set, values))}"


def _setting(key: str, value: Any) -> str:
    return f"{key}={_as_set(value)}"


def _as_set(value: object) -> str:
    """As --set takes it."""
    return shown(value if isinstance(value, str) else json.dumps(value))
