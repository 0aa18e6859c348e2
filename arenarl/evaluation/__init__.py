"""Evaluation: trajectories against stored baselines give win rates, and the ground truth gives noise-free metrics.

evaluate.py and the curve during RL use it. Open `evaluation` first. `statistics` adds intervals over test queries,
`playoffs` plays all checkpoints against each other, and `inference_scaling` spends more compute at test time.
"""
