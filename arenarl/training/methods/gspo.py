"""GSPO (arXiv 2507.18071): one ratio for a whole sequence, the geometric mean of its tokens' ratios.

`rl.importance_sampling_level: sequence`, with a narrow `rl.epsilon`, `rl.epsilon_high` and several
`rl.updates_per_rollout`: with one update all ratios are 1. TRL's loss computes it. Averaged over tokens in another way
than per trajectory (`rl.loss_type: grpo`), a sequence's ratio would weigh by its length.

A sequence whose two tokens became e^.2 and e^.4 times as likely:

>>> import math
>>> round(math.exp((0.2 + 0.4) / 2), 4)
1.3499
"""

from arenarl.training.methods.method import Method

METHOD = Method(title="GSPO", keys={"rl.importance_sampling_level": "sequence"}, requires={"rl.loss_type": ("grpo",)})
