"""What a reward is: how a group is rewarded, and what that takes, as data that `requirements` evaluates."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from arenarl.config.schema import Config
from arenarl.training.judging import IncomingGroup
from arenarl.training.rewards.outcome import GroupOutcome, Referee

RewardGroup = Callable[[Referee, IncomingGroup], Awaitable[GroupOutcome]]


@dataclass(frozen=True)
class Reward:
    """One value of `reward.name`; each has a file of this package."""

    reward_group: RewardGroup
    reads: tuple[str, ...] = ()  # dotted keys that only rewards which name them read
    asks_judge: bool = True
    needs_answers: bool = False  # every query must have a known answer
    adds_format: bool = False  # validity is part of its sum already
    plays_topology: bool = False  # its matches are those of tournament.topology
    # config -> the topology of its own matches, whose tournament.* parameters it reads
    own_topology: Callable[[Config], str | None] = lambda config: None
    compares: bool = False  # some of its judge calls show two trajectories, in tournament.bidirectional orders
    check: Callable[[Config], None] = lambda config: None  # raises UserError for keys that it cannot work with
