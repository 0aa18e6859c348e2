"""Print a run's resolved YAML, or a one-line error.

python -m arenarl.config --config configs/quickstart.yaml [--set key=value ...] [--run-name]
"""

from arenarl.config.command_line import parse_arguments
from arenarl.config.load import config_to_yaml
from arenarl.system.errors import run_cli


def main() -> None:
    flag = {"action": "store_true", "help": "print only the name of the run's folders"}
    config, arguments = parse_arguments(__doc__, lambda parser: parser.add_argument("--run-name", **flag))
    print(config.run_name if arguments.run_name else config_to_yaml(config).rstrip("\n"))


if __name__ == "__main__":
    run_cli(main)
