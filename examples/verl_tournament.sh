#!/usr/bin/env bash
# verl with the tournament as its reward. Before: pip install verl==0.9.1 . ; further arguments are verl's own.
#   examples/verl_tournament.sh data.train_files=train.parquet actor_rollout_ref.model.path=Qwen/Qwen3-1.7B
# The samples of a prompt meet in one worker, so num_workers is 1, and train_batch_size * rollout.n at most 1000.
# reward_kwargs are the arguments of arenarl.rank.Ranker, and deadline_s, after which a group is ranked as it is.
set -euo pipefail
exec python -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo \
  data.train_batch_size=64 \
  actor_rollout_ref.rollout.n=8 \
  reward.num_workers=1 \
  reward.reward_manager.source=importlib \
  reward.reward_manager.module.path=pkg://arenarl.integrations.verl \
  reward.reward_manager.name=TournamentRewardManager \
  +reward.reward_kwargs.judge=openai \
  +reward.reward_kwargs.rubric="helpful and well written" \
  +reward.reward_kwargs.topology=balanced \
  +reward.reward_kwargs.max_cost=20 \
  +reward.reward_kwargs.deadline_s=1800 \
  trainer.test_freq=-1 trainer.val_before_train=False \
  "$@"
