"""Open-Travel (Section 5, ArenaRL): an embedded world, six tools, queries, a scripted teacher, and the truth.

Read `world` first, then `tools`, which answer from it, and `truth`, by which the embedded judge scores. `queries` and
`teacher` make the data. Other packages use this one through its domain and its tools.
"""
