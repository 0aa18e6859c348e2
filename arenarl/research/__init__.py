"""Open-DeepResearch, the paper's second domain: `search` and `browse`, made for RL as in Section 3.2, InfoAgent.

`environment` offers the two tools; `search` is the pipeline behind them, `engines` say where pages come from: the embedded corpus, a
local folder, the web. Nothing outside this package imports it but `environments`, by `environment.name: research`.
"""
