"""The types of methods: the YAML keys that choose a method, its requirements, and how it computes advantages.

TRL's formula is (value - the group's mean of values) / `scale`, with advantage 0 for None. `scale` is the standard
deviation (ddof 1, plus 1e-4) of the group or of the batch, or 1. A method that this formula covers defines the values;
any other method returns its own advantages, one per trajectory (B,) or per token (B, T).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from arenarl.config.schema import Config, RLConfig
from arenarl.training.rewards.group import GroupOutcome
from arenarl.trajectory import RolloutGroup

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import Trainer
    from trl import GRPOTrainer
else:  # requirements are checked before these are loaded, which takes seconds
    Tensor = Trainer = GRPOTrainer = Any

Rewards = Sequence[float | None]  # (G,)
Scale = Literal["group", "batch", "none"]
Values = Callable[[Rewards], Rewards]  # rewards (G,) -> the values (G,) that TRL receives
Example = dict[str, list[int]]
# (the trainer's batch, rewards (B,) with NaN for none) -> advantages (B,) or (B, T)
Advantages = Callable[[dict[str, Any], Tensor], Tensor]
# () -> the groups of the current step, in the batch's order, with their outcomes
Judged = Callable[[], Sequence[tuple[RolloutGroup, GroupOutcome]]]


@dataclass(frozen=True, kw_only=True)
class Method:
    title: str
    keys: Mapping[str, str]  # dotted YAML keys with the values that choose the method
    requires: Mapping[str, tuple] = field(default_factory=dict)  # dotted key -> allowed values
    excludes: Mapping[str, tuple] = field(default_factory=dict)  # dotted key -> forbidden values
    reads: tuple[str, ...] = ()  # dotted keys that only this method, and others that list them, read
    needs_matches: bool = False  # needs the matches of tournament.topology
    learns_from_equal: bool = False  # a group of equal rewards may have other advantages than 0


@dataclass(frozen=True, kw_only=True)
class OnlineMethod(Method):
    """A value of `rl.advantage`: TRL's GRPOTrainer takes a step after each rollout."""

    # by default, TRL only subtracts the group's mean
    for_trl: Callable[[RLConfig], tuple[Scale, Values]] = lambda rl: ("none", list)
    # TRL standardises the reward, or its parts, and validity separately, sums, standardises again
    keeps_rewards_apart: bool = False
    # takes trainer, policy, config, and a function that returns this process's judged groups
    make_advantages: Callable[[GRPOTrainer, str, Config, Judged], Advantages] | None = None


@dataclass(frozen=True, kw_only=True)
class OfflineMethod(Method):
    """A value of `rl.method`: rounds of rollouts, each followed by training on examples (`offline`)."""

    examples: str  # plural noun for log lines
    find_examples: Callable[[RolloutGroup, GroupOutcome, RLConfig], Iterator[Example]]
    # takes config, policy, examples, folder, tokenizer
    make_trainer: Callable[[Config, str, list[Example], Path, Any], Trainer]
    restarts: bool = False  # each round trains the first policy on the examples of all rounds so far


def offline_arguments(config: Config, folder: Path, trajectories: int = 1) -> dict[str, Any]:
    """Return TRL's arguments for one epoch over examples of `trajectories` each, `rl.batch_size` examples per step.

    On a CPU, the micro-batch is one example: larger micro-batches save no time and add padding.
    """
    import torch

    from arenarl.run.trainer_arguments import common_arguments
    from arenarl.system.progress import process_count

    rl, share = config.rl, config.rl.batch_size // process_count()
    most = max(1, min(rl.micro_batch_size // trajectories, share)) if torch.cuda.is_available() else 1
    size = next(size for size in range(most, 0, -1) if share % size == 0)  # so that steps have batch_size examples
    return common_arguments(config, folder) | {
        "num_train_epochs": 1,
        "learning_rate": rl.learning_rate,
        "lr_scheduler_type": rl.lr_scheduler,
        "warmup_steps": rl.warmup_steps,
        "max_grad_norm": rl.max_grad_norm,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": share // size,
        "max_length": None,
        "logging_steps": 1,
        "save_steps": rl.save_steps,
    }
