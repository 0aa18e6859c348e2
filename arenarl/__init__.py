"""ArenaRL: tournament-ranked reinforcement learning for open-ended LLM agents (arXiv 2601.06487).

`train_sft.py`, `train_rl.py` and `evaluate.py` at the repository's root are the recipe; this package holds what they share.
Importing it loads neither torch nor TRL: `from arenarl.tournament import run_tournament` works on its own.
"""
