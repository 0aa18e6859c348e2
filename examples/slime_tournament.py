"""slime with the tournament as its reward: every group of samples is ranked.

pip install .                                  # into slime's environment
PYTHONPATH=examples python train.py … --group-rm --custom-rm-path slime_tournament.reward

slime refuses evaluation with --group-rm, so leave --eval-interval out.
"""

import os

from arenarl.integrations.slime import group_reward
from arenarl.rank import Ranker

reward = group_reward(
    Ranker(
        os.environ.get("ARENARL_JUDGE", "openai"),
        rubric=os.environ.get("ARENARL_RUBRIC", "helpful, true and well written"),
        topology=os.environ.get("ARENARL_TOPOLOGY", "balanced"),
        run="slime",  # the budget's name, for all processes and restarts
        max_cost=20.0,
    )
)
