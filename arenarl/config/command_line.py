"""The command line that all scripts share: `--config FILE [--set key=value ...]`."""

import argparse
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from arenarl.config.load import configure
from arenarl.config.schema import Config
from arenarl.system.yaml_text import read_yaml


def parse_arguments(description: str, add_arguments=None) -> tuple[Config, argparse.Namespace]:
    """Parse `--config FILE [--set key=value ...]` and the options that `add_arguments(parser)` adds."""
    parser = argparse.ArgumentParser(description=description.split("\n\n")[0])
    parser.add_argument("--config", required=True, help="the run's YAML")
    add_overrides(parser)
    if add_arguments:
        add_arguments(parser)
    arguments = parser.parse_args()
    return configure(arguments.config, arguments.overrides), arguments


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Add `--set KEY=VALUE`, stored as the list `overrides`."""
    options = {"action": "append", "default": [], "dest": "overrides", "metavar": "KEY=VALUE"}
    parser.add_argument("--set", help="change a config key; may be repeated", **options)


def refuse_overrides_without_config(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse `--set` without `--config`, in scripts where the config is optional."""
    if arguments.overrides and not arguments.config:
        parser.error("--set changes a key of a config; name the config with --config")


def in_range(number: type, least: float, most: float = math.inf) -> Callable[[str], float]:
    """Return an argparse type: a finite int or float that is at least `least` and at most `most`.

    >>> in_range(float, 0, 1)("2")
    Traceback (most recent call last):
    argparse.ArgumentTypeError: 2: must be at most 1
    """

    def read(text: str) -> float:
        value = number(text)
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"{text}: must be at least {least}")
        if value > most:
            raise argparse.ArgumentTypeError(f"{text}: must be at most {most}")
        return value

    read.__name__ = number.__name__  # argparse names the type in its error
    return read


def as_overrides(changes: Mapping[str, Any]) -> list[str]:
    """Return the changes as `key=value` overrides.

    >>> as_overrides({"rl.steps": 40, "sft.deepspeed": None,
    ...               "evaluate.decodings": ["sampled"], "name": "a", "policy.model": "1.0"})
    ['rl.steps=40', 'sft.deepspeed=null', 'evaluate.decodings=["sampled"]', 'name=a', 'policy.model="1.0"']
    """
    return [f"{key}={value if _is_plain(value) else json.dumps(value)}" for key, value in changes.items()]


def _is_plain(value: Any) -> bool:
    """True if the value is text that YAML reads back without quotes."""
    try:
        return isinstance(value, str) and read_yaml(value) == value
    except ValueError:
        return False


def command_line(config: str, overrides: Iterable[str]) -> tuple[str, ...]:
    """Return the arguments that `parse_arguments` reads, to start a script from another.

    >>> command_line("a.yaml", ["seed=1"])
    ('--config', 'a.yaml', '--set', 'seed=1')
    """
    return ("--config", config, *(word for override in overrides for word in ("--set", override)))


def add_check(parser: argparse.ArgumentParser) -> None:
    """Add `--check`, to run before torchrun, which hides a one-line error and its exit code."""
    parser.add_argument("--check", action="store_true", help="check all inputs, then stop before training")
