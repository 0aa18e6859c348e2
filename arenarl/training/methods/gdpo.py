"""GDPO (arXiv 2601.05242): reward and validity, each standardised in the group, summed, standardised over the step.

`rl.advantage: decoupled`. Excludes rewards that already include validity, which would count twice. TRL computes it from
two columns with `multi_objective_aggregation: normalize_then_sum`. A group whose second trajectory is invalid:

>>> from arenarl.training.methods.grpo import standardize
>>> summed = standardize([1.0, 0.0, 0.5], eps=0) + standardize([1.0, 0.0, 1.0], eps=0)
>>> standardize(summed).round(2).tolist()
[0.82, -1.12, 0.3]
"""

from arenarl.training.methods.method import OnlineMethod
from arenarl.training.rewards import REWARDS

METHOD = OnlineMethod(
    title="GDPO",
    keys={"rl.advantage": "decoupled"},
    excludes={
        "rl.loss_type": ("dr_grpo",),
        "reward.name": tuple(name for name, reward in REWARDS.items() if reward.adds_format),
    },
    for_trl=lambda rl: ("group", list),
    keeps_validity_apart=True,
)
