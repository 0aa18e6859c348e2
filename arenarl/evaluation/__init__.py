"""trajectory against a stored baseline → win rate, and noise-free metrics from the ground truth:
the numbers of every table.

What evaluate.py does, and the curve during RL. Open `evaluation` first; `statistics` adds intervals over test queries,
`playoffs` plays all checkpoints against each other, `inference_scaling` spends more compute at test time.
"""
