"""A run's settings: one YAML with a base, changed from the command line, typed and checked before any work starts.

    python -m arenarl.config --config configs/quickstart.yaml        # prints the resolved config, or a one-line error

Every script starts here and passes each part its section of the config. Open `schema` first: it lists all keys with
their sources in the papers. `load` turns a file into a `Config`; `checks` refuses combinations that cannot work.
"""
