"""DAPO (arXiv 2503.14476): clip-higher, and token losses averaged over all tokens of an update.

`rl.loss_type: dapo`, `rl.epsilon_high` above `rl.epsilon`, `rl.beta: 0`, several `rl.updates_per_rollout`. TRL computes
the loss. Dynamic sampling is `rl.resample_equal` (training/step.py). Not included: overlong reward shaping (a
trajectory over its budget is invalid).

A ratio of 1.5 with advantage 1 is clipped at 1 + .28, not 1 + .2. Two trajectories with token losses 1, 1, 1 and 2 have
the mean 5/4; GRPO's mean is (1 + 2) / 2:

>>> -min(1.5 * 1, min(max(1.5, 1 - 0.2), 1 + 0.28) * 1), sum([1, 1, 1, 2]) / 4
(-1.28, 1.25)
"""

from arenarl.training.methods.method import Method

METHOD = Method(title="DAPO", keys={"rl.loss_type": "dapo"})
