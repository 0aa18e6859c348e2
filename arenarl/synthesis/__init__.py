"""Training data made by LLMs with quality control (Section 5): seeds → queries → trajectories → inspection → splits.

`data/build.py` runs it. The LLM client stores, budgets and retries all calls. A killed stage repeats its work from the
stored replies, at no cost.
"""
