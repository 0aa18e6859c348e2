"""REINFORCE++ with baseline (arXiv 2501.03262): the group's mean is the baseline, the step's standard deviation the
scale.

`rl.advantage: batch_std`. The standard deviation is over centred rewards, so TRL receives centred rewards. Departs from
REINFORCE++: KL by the k3 estimator, not k2. Its form without a group baseline is `reinforce_plus_plus_global`.

Two groups with rewards 1, 0 and 1, .5 are centred to +-.5 and +-.25; the step's standard deviation is .456:

>>> import numpy as np
>>> centered = [*center([1.0, 0.0]), *center([1.0, 0.5])]
>>> [round(float(advantage), 2) for advantage in centered / np.std(centered, ddof=1)]
[1.1, -1.1, 0.55, -0.55]
"""

from arenarl.training.methods.dr_grpo import center
from arenarl.training.methods.method import OnlineMethod

METHOD = OnlineMethod(
    title="REINFORCE++ with baseline",
    keys={"rl.advantage": "batch_std"},
    excludes={"rl.loss_type": ("dr_grpo",)},
    for_trl=lambda rl: ("batch", center),
)
