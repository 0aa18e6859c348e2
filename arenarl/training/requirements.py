"""Check the requirements of methods and rewards against the config, before torch is loaded.

The requirements are data in the file of each formula (`methods`, `rewards`); no method is named here.
"""

from collections.abc import Callable, Collection, Iterator
from operator import attrgetter

from arenarl.config.checks import as_word, refuse_unread, setting
from arenarl.config.schema import Config
from arenarl.system.errors import UserError
from arenarl.tournament.topologies import TOPOLOGIES, parameters_of
from arenarl.training.methods import METHODS, chosen_methods
from arenarl.training.rewards import REWARDS, Reward, reward_of

# keys that only rl.method=online reads, but for rl.beta, which the YAMLs of offline methods inherit
ONLINE_KEYS = (
    "rl.loss_type", "rl.importance_sampling_level", "rl.epsilon", "rl.epsilon_high", "rl.updates_per_rollout",
    "rl.advantage", "rl.advantage_ddof", "rl.advantage_epsilon", "rl.resample_equal", "rl.balance_micro_batches",
    "rl.steps_ahead",
)  # fmt: skip


def check_method(config: Config) -> None:
    """Raise UserError for unmet requirements of the methods and the reward, and for keys that are set but never read.

    An ablation of a key that is never read would compare a run with itself.
    """
    reward = reward_of(config.reward.name)
    reward.check(config)
    for method in chosen_methods(config):
        title = f"{' and '.join(setting(*key) for key in method.keys.items())} ({method.title})"
        for key, allowed in method.requires.items():
            if (value := attrgetter(key)(config)) not in allowed:
                choice = " or ".join(map(as_word, allowed))
                raise UserError(f"{title} needs {key}={choice}, not {as_word(value)}")
        for key, excluded in method.excludes.items():
            if (value := attrgetter(key)(config)) in excluded:
                raise UserError(f"{title} does not go with {setting(key, value)}; change one of them")
        if method.needs_matches and config.reward.name != "tournament" and not config.reward.tournament_if_equal:
            raise UserError(f"{title} needs the matches of a tournament: set reward.name=tournament")
        if config.rl.resample_equal > 1 and method.learns_from_equal:
            factor = f"rl.resample_equal={config.rl.resample_equal:g}"
            raise UserError(f"{factor} would drop groups from which {title} learns; leave it out")
    for key, owner, owners, value in _readers(config, reward):
        if value not in owners:
            refuse_unread(config, key, f"{owner}={' or '.join(sorted(owners))}", value)


def _readers(config: Config, reward: Reward) -> Iterator[tuple[str, str, Collection[str], str]]:
    """Yield (key, owner, owners, value): `key` is read only if the key `owner`, now `value`, is one of `owners`."""

    def names_where(condition: Callable[[Reward], bool]) -> set[str]:
        return {name for name, other in REWARDS.items() if condition(other)}

    name, tournament = config.reward.name, config.tournament
    for key in dict.fromkeys(key for other in REWARDS.values() for key in other.reads):
        yield key, "reward.name", names_where(lambda other, key=key: key in other.reads), name
    for key in ONLINE_KEYS:
        yield key, "rl.method", {"online"}, config.rl.method
    has_ratios = config.rl.updates_per_rollout > 1  # else every ratio of Eq. 8 is 1
    # TRL's correction for another generator's probabilities has a weight per token, so the level matters with it
    is_corrected = config.rollout.backend != "transformers" or config.rl.steps_ahead > 0
    for key, is_read in {
        "rl.epsilon": has_ratios, "rl.epsilon_high": has_ratios,
        "rl.importance_sampling_level": has_ratios or is_corrected,
    }.items():  # fmt: skip
        yield key, "rl.updates_per_rollout", {"2 or more"}, "2 or more" if is_read else "1"
    for key in dict.fromkeys(key for method in METHODS for key in method.reads):
        methods = [method for method in METHODS if key in method.reads]
        (owner,) = {owner for method in methods for owner in method.keys}
        yield key, owner, {method.keys[owner] for method in methods}, attrgetter(owner)(config)
    yield "rl.credit_orders", "tournament.bidirectional", {"true"}, as_word(config.tournament.bidirectional)
    has_tournament = reward.plays_topology or config.reward.tournament_if_equal
    if not has_tournament:
        for key in ("tournament.topology", "tournament.ranking"):
            yield key, "reward.name", names_where(lambda other: other.plays_topology), name
        yield "tournament.bidirectional", "reward.name", names_where(lambda other: other.compares), name
    played = tournament.topology if has_tournament else reward.own_topology(config)
    parameters = {topology: parameters_of(topology) for topology in {*TOPOLOGIES, *([played] if played else [])}}
    for key in dict.fromkeys(key for topology in TOPOLOGIES for key in parameters[topology]):
        owners = {topology for topology in parameters if key in parameters[topology]}
        yield f"tournament.{key}", "tournament.topology", owners, played or name
