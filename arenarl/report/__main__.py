"""Figures and page of a run.

    python -m arenarl.report quickstart

draws the figures of a run (its name, its folder in runs/, or --config with its YAML) and writes its page, results/<run>/report.html.
"""

import argparse
from pathlib import Path

from arenarl.config.command_line import add_overrides, refuse_overrides_without_config
from arenarl.config.load import load_config
from arenarl.system.errors import guarded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("run", nargs="?", help="the run's name, or its folder in runs/")
    what.add_argument("--config", help="the run's YAML instead of its name")
    add_overrides(parser)
    arguments = parser.parse_args()
    refuse_overrides_without_config(parser, arguments)
    from arenarl.report.page import write_page  # only here: it needs matplotlib

    if arguments.config:
        config = load_config(arguments.config, arguments.overrides)
        run_dir, results_dir = config.run_dir, config.results_dir
    else:
        run_dir, results_dir = (Path(folder) / Path(arguments.run).name for folder in ("runs", "results"))
    print(f"written: {write_page(run_dir, results_dir)}")


if __name__ == "__main__":
    guarded(main)
