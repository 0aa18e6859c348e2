"""What a method is: the YAML keys that choose it, what it takes, and how rewards become advantages.

TRL's own formula is (what it is handed - the group's mean) / `scale`, with advantage 0 for None; `scale` is a standard
deviation (ddof 1, plus 1e-4) of the group or of the batch, or none. A method that TRL's formula covers says what to
hand over; any other method returns its advantages itself, one a trajectory (B,) or one a token (B, T).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from arenarl.config.schema import Config, RLConfig

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor
    from transformers import Trainer
    from trl import GRPOTrainer

    from arenarl.training.rewards.group import GroupOutcome
    from arenarl.trajectory import RolloutGroup

Rewards = Sequence[float | None]  # (G,)
Example = dict[str, list[int]]
# (the trainer's batch, rewards (B,) with NaN for none) -> advantages (B,) or (B, T)
Advantages = Callable[[dict[str, Any], "Tensor"], "Tensor"]


@dataclass(frozen=True, kw_only=True)
class Method:
    title: str
    keys: Mapping[str, str]  # dotted YAML keys and their values: together they choose it
    requires: Mapping[str, tuple] = field(default_factory=dict)  # dotted key -> the values that it works with
    excludes: Mapping[str, tuple] = field(default_factory=dict)  # dotted key -> the values that it does not work with
    reads: tuple[str, ...] = ()  # dotted keys that only methods which name them read
    needs_matches: bool = False  # of tournament.topology


@dataclass(frozen=True, kw_only=True)
class OnlineMethod(Method):
    """A value of `rl.advantage`: TRL's GRPOTrainer takes a step after each rollout."""

    # rl -> (`scale`, what of a group's rewards (G,) TRL is handed)
    for_trl: Callable[[RLConfig], tuple[Literal["group", "batch", "none"], Callable[[Rewards], Rewards]]]
    keeps_validity_apart: bool = False  # TRL standardises rewards and validity each, sums them, and standardises again
    make_advantages: "Callable[[GRPOTrainer, str, Config], Advantages] | None" = None  # of (trainer, policy, config)


@dataclass(frozen=True, kw_only=True)
class OfflineMethod(Method):
    """A value of `rl.method`: rounds of rollouts, each followed by training on examples (`offline`)."""

    examples: str  # what they are called
    find_examples: "Callable[[RolloutGroup, GroupOutcome, RLConfig], Iterator[Example]]"
    make_trainer: "Callable[[Config, str, list[Example], Path, Any], Trainer]"  # of (…, folder, tokenizer)
    starts_anew: bool = False  # each round trains the first policy on all rounds' examples, not the last on its own


def offline_arguments(config: Config, folder: "Path", trajectories: int = 1) -> dict[str, Any]:
    """One pass over the examples of so many trajectories, `rl.batch_size`
    of them a step over all processes.

    A CPU reads one at a time: it gains nothing from several at once, and most of what it then reads is padding.
    """
    import torch

    from arenarl.run.trainer_arguments import common_arguments
    from arenarl.system.progress import process_count

    rl, use_cpu = config.rl, not torch.cuda.is_available()
    share = rl.batch_size // process_count()
    most = 1 if use_cpu else max(1, min(rl.micro_batch_size // trajectories, share))
    size = next(size for size in range(most, 0, -1) if share % size == 0)  # or a step would have fewer
    return common_arguments(config, folder, use_cpu) | {
        "num_train_epochs": 1,
        "learning_rate": rl.learning_rate,
        "lr_scheduler_type": rl.lr_scheduler,
        "max_grad_norm": rl.max_grad_norm,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": share // size,
        "max_length": None,
        "logging_steps": 1,
        "save_steps": rl.save_steps,
    }
