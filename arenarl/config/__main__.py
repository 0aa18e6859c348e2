"""Prints the resolved YAML of a run, or one line that says what is wrong with it.

    python -m arenarl.config --config configs/quickstart.yaml [--set key=value ...] [--processes 2]
"""

import argparse

from arenarl.config.command_line import parse_arguments
from arenarl.config.load import config_to_yaml
from arenarl.system.errors import guarded


def main() -> None:
    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--processes", type=int, help="also check that RL can use so many")
        parser.add_argument("--run-name", action="store_true", help="print only what the run's folders are called")

    config, arguments = parse_arguments(__doc__, add_options)
    if arguments.processes is not None:
        from arenarl.config.checks import check_groups

        check_groups(config, arguments.processes)
    print(config.run_name if arguments.run_name else config_to_yaml(config).rstrip("\n"))


if __name__ == "__main__":
    guarded(main)
