"""Training data made by LLMs in three stages, with quality control (Section 5): seed queries → queries → trajectories → inspection → splits.

`data/build.py` runs it. All calls go the way of all others: kept in the store, within the budget, tried again, never paid for twice; so a stage that
was killed does its work again from the store, and costs nothing.
"""
