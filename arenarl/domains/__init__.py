"""Domains: queries, tools, rubric, truth and data of Open-Travel, Open-DeepResearch, writing, AgentGym and your own.

Judges, training and evaluation use a domain through the `Domain` interface only. Read `domain` first, then
`environments`. The packages `travel`, `research`, `writing` and `agentgym` do not import each other. `public_data`
reads published data sets.
"""
