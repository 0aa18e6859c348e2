"""BRPO (Writing-Zero, arXiv 2506.00103): the advantage is the reward itself.

`rl.advantage: none`, with `reward.name: brpo`, which is 1 or -1 for beating or losing to a random member of the group.
TRL's formula would subtract the group's mean.

>>> import torch
>>> make_advantages()({"advantages": torch.zeros(3)}, torch.tensor([1.0, -1.0, float("nan")]))
tensor([ 1., -1.,  0.])
"""

from typing import Any

from arenarl.training.methods.method import Advantages, OnlineMethod


def make_advantages(*_: Any) -> Advantages:
    """Return a function that uses the rewards (B,) as advantages; 0 without a reward."""
    return lambda batch, rewards_B: rewards_B.nan_to_num().to(batch["advantages"])


METHOD = OnlineMethod(
    title="BRPO",
    keys={"rl.advantage": "none"},
    learns_from_equal=True,
    make_advantages=make_advantages,
)
