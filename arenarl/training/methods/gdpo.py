"""GDPO (arXiv 2601.05242): reward and validity, each standardised in the group, summed, standardised over the step.

`rl.advantage: decoupled`. With `reward.name: pointwise_explicit`, each dimension of the rubric is a reward of its own
(4.2, Tournament-GRPO). The sum has no weights, so importances do not count. Excludes other rewards that already include
validity, which would count twice. TRL computes it from columns with `multi_objective_aggregation: normalize_then_sum`.
A group whose second trajectory is invalid:

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
        "reward.name": tuple(name for name, reward in REWARDS.items() if reward.adds_format and not reward.has_parts),
    },
    learns_from_equal=True,
    for_trl=lambda rl: ("group", list),
    keeps_rewards_apart=True,
)
