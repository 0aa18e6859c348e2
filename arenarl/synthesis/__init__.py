"""Training data made by LLMs in three stages, with quality control (Section 5):
seed queries → queries → trajectories → inspection → splits.

`data/build.py` runs it. Calls are stored, budgeted and retried like all others and never paid for twice, so a killed
stage repeats its work from the store at no cost.
"""
