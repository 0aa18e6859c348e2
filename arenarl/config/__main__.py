"""Prints a run's resolved YAML, or a one-line error.

python -m arenarl.config --config configs/quickstart.yaml [--set key=value ...] [--processes 2]
"""

import argparse

from arenarl.config.command_line import parse_arguments
from arenarl.config.load import config_to_yaml
from arenarl.system.errors import guarded


def main() -> None:
    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--processes", type=int, help="also check that RL can use this many processes")
        parser.add_argument("--run-name", action="store_true", help="print only the name of the run's folders")

    config, arguments = parse_arguments(__doc__, add_options)
    if arguments.processes is not None:
        from arenarl.config.checks import check_groups

        check_groups(config, arguments.processes)
    print(config.run_name if arguments.run_name else config_to_yaml(config).rstrip("\n"))


if __name__ == "__main__":
    guarded(main)
