"""GSPO (arXiv 2507.18071): one ratio for a whole sequence, the geometric mean of its tokens' ratios.

`rl.importance_sampling_level: sequence`, with a narrow clip range `rl.epsilon`, `rl.epsilon_high` and several
`rl.updates_per_rollout`: with one update, all ratios are 1. TRL computes the loss. It needs the mean per trajectory
(`rl.loss_type: grpo`); other means would weigh a sequence's ratio by its length.

The ratio of a sequence whose two tokens became e^.2 and e^.4 times as likely:

>>> import math
>>> round(math.exp((0.2 + 0.4) / 2), 4)
1.3499
"""

from arenarl.training.methods.method import Method

METHOD = Method(title="GSPO", keys={"rl.importance_sampling_level": "sequence"}, requires={"rl.loss_type": ("grpo",)})
