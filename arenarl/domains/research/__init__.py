"""Open-DeepResearch, the paper's second domain: `search` and `browse`, made for RL, and the queries to use them on (3,
InfoAgent; 5.1, ArenaRL).

`environment` offers the two tools; `search` is the pipeline behind them, `engines` say where pages come from: the
embedded corpus, a local folder, the web. `corpus` is that encyclopedia, or one of your own; `questions` and
`open_queries` make queries of it, `teacher` answers them, `domain` puts a run's data together.
"""
