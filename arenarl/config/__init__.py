"""A run's settings: one YAML with a base, changed from the command line, typed and checked before any work starts.

    python -m arenarl.config --config configs/quickstart.yaml        # resolved, or one line that says what is wrong

Every script begins here, and hands each part the section that it needs. Open `schema` first: it lists all keys, each with its source in the
papers; `load` makes a `Config` of a file, `checks` refuses what no run can work with.
"""
