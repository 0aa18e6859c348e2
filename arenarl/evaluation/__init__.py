"""trajectory against a stored baseline → win rate, and what is true of it: the figures of every table.

What evaluate.py does, and the curve during RL. Open `evaluation` first; `statistics` gives figures their intervals over test queries,
`playoffs` sets all checkpoints against each other, `inference_scaling` spends more compute at test time.
"""
