"""Public benchmarks by their official formulas: WritingBench, HelloBench, LongBench-Write, DeepResearch Bench,
BrowseComp and others.

Used by `evaluate.py --benchmark`. Read `benchmark` first, which defines the interface. `questions`, `writing` and
`race` implement it. `run` rolls out, judges and writes. `records` reads official files, `prompts` finds official
prompts, and `page` shows our runs beside the papers' columns.
"""
