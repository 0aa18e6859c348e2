"""A run's settings: one YAML with a base, changed from the command line, typed and checked before any work starts.

    python -m arenarl.config --config configs/quickstart.yaml        # resolved, or a one-line error

Every script starts here and gives each part the section that it needs. Open `schema` first: it lists all keys, each
with its source in the papers; `load` turns a file into a `Config`, `checks` refuses combinations that cannot work.
"""
