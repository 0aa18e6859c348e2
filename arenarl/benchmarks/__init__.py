"""Public benchmarks by their official formulas: WritingBench, HelloBench, LongBench-Write, DeepResearch Bench,
BrowseComp and others.

What evaluate.py does with `--benchmark`. Open `benchmark` first, which defines one; `questions`, `writing` and `race`
hold them. `run` rolls out, judges and writes; `records` reads the official files, `prompts` finds the official prompts,
`page` shows our runs beside the papers' columns.
"""
