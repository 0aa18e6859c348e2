"""A run's YAML, its `base:` and `--set key=value` → a checked `Config`, and back.

`layers` reads what was said, pydantic holds it against the types and ranges of `schema`, `checks` refuses keys that contradict each other.
"""

from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from arenarl.config.layers import read_layers, set_keys
from arenarl.config.schema import Config
from arenarl.system.errors import UserError

_RULES = ConfigDict(allow_inf_nan=False, coerce_numbers_to_str=True)  # `name: 12` is text
_WORDS = {"greater_than": "must be above {gt}", "greater_than_equal": "must not be below {ge}", "less_than_equal": "must not be above {le}"}


def load_config(path: str | Path, overrides: Iterable[str] | None = None) -> Config:
    """Read a run's YAML, its `base:` and the `key=value` overrides into a checked `Config`.

    Raises:
        UserError: the file is missing or no YAML, a key is unknown, a value has the wrong type or cannot work.
    """
    from arenarl.config.checks import check  # which needs the tournament's own

    config = load(Config, asdict(Config()), Path(path), overrides or ())
    check(config)
    return config


def load(schema: type, values: dict[str, Any], path: Path, overrides: Iterable[str] = ()) -> Any:
    """The dataclass `schema` of what a YAML, its `base:` and the overrides set over the plain `values`.

    Raises:
        UserError: one line that names the key, its value and what is allowed.
    """
    said: dict[str, str] = {}
    for source, layer in read_layers(path, overrides):
        values = set_keys(values, layer, schema, source, said)
    try:
        return _validator(schema).validate_python(values)
    except ValidationError as error:
        wrong = error.errors()[0]
        key = ".".join(str(part) for part in wrong["loc"])
        where = said[max((known for known in said if key.startswith(known)), key=len)]
        value = "" if wrong["type"] == "missing" else f"={wrong['input']}"
        words = _WORDS.get(wrong["type"], "").format(**wrong.get("ctx", {})) or wrong["msg"].replace("Input should be", "must be")
        raise UserError(f"{where}: {key}{value}: {words}") from error


def config_to_yaml(config: Config) -> str:
    """The resolved config as YAML, to be written beside a run's results; reads back to the same config."""
    return yaml.safe_dump(asdict(config), allow_unicode=True, sort_keys=False)


def named_class(name: str, key: str) -> Any:
    """What `package.module:Class` names: judges and environments that are not part of this package.

    Raises:
        UserError: it cannot be imported.
    """
    try:
        return resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{key}: {name} cannot be imported ({error}); name a class as package.module:Class, its module in this folder") from error


@cache
def _validator(schema: type) -> TypeAdapter:
    return TypeAdapter(with_config(_RULES)(schema))
