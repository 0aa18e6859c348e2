"""ms-swift with the tournament as its reward: a plugin for GRPO.

pip install ms-swift==4.6.0 .
swift rlhf --rlhf_type grpo --external_plugins examples/swift_tournament.py --reward_funcs tournament \
    --num_generations 8 --per_device_train_batch_size 8 --model <model> --dataset <dataset>

The judge comes from the environment: ARENARL_JUDGE, a name in configs/judges or a YAML, and ARENARL_RUBRIC, in words.
"""

import os
from functools import partial

from swift.rewards import orms

from arenarl.integrations.swift import TournamentORM
from arenarl.rank import Ranker

ranker = Ranker(
    os.environ.get("ARENARL_JUDGE", "openai"),
    rubric=os.environ.get("ARENARL_RUBRIC", "helpful, true and well written"),
    topology=os.environ.get("ARENARL_TOPOLOGY", "balanced"),
    run="swift",  # the budget's name, for all processes and restarts
    max_cost=20.0,
)
orms["tournament"] = partial(TournamentORM, ranker)
