"""Open-DeepResearch, the paper's second domain: `search` and `browse` tools made for RL (Section 3, InfoAgent) and
queries that need them (5.1, ArenaRL).

`environment` offers the two tools and `search` implements them. `engines` supplies pages from the embedded corpus, a
local folder or the web. `corpus` holds entities and facts. `questions` and `open_queries` make queries from it,
`teacher` answers them, and `domain` writes a run's data.
"""
