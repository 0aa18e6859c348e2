"""Public benchmarks by their official formulas: WritingBench, HelloBench, LongBench-Write, DeepResearch Bench, BrowseComp and its kin.

What evaluate.py does with `--benchmark`. Open `benchmark` first: what one is; a module has each. `run` rolls out, judges and writes; `records`
reads files of others, `prompts` finds the official prompts, `page` sets what was run beside the papers' columns.
"""
