"""A run's YAML, its `base:` and `--set key=value` → a checked `Config`, and back.

`layers` reads what was said, pydantic holds it against the types and ranges of `schema`,
`checks` refuses keys that contradict each other.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from arenarl.config.checks import check
from arenarl.config.layers import Source, read_layers, set_keys, shown
from arenarl.config.schema import Config
from arenarl.config.yaml_text import write_yaml
from arenarl.system.errors import UserError, did_you_mean

_RULES = ConfigDict(allow_inf_nan=False)
_WORDS = {  # for what pydantic says in words of its own
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must not be below {ge}",
    "less_than_equal": "must not be above {le}",
    "missing": "is missing",
    "too_short": "must name at least {min_length}",
    "bool_type": "must be true or false",
    "string_type": "must be text; what looks like a number or a truth value needs quotes",
}
_SECRET = ("api_key_variable", "base_url")  # where somebody may have put a key


def load_config(path: str | Path, overrides: Iterable[str] | None = None) -> Config:
    """Read a run's YAML, its `base:` and the `key=value` overrides into a checked `Config`.

    Raises:
        UserError: the file is missing or no YAML, a key is unknown, a value has the wrong type or cannot work.
    """
    return _checked(load(Config, asdict(Config()), Path(path), overrides or ()))


def config_of_keys(keys: dict[str, Any], where: str) -> Config:
    """A checked `Config` with these keys, nested as in a YAML, for who has none. Raises UserError as `load_config`
    does; `where` begins its line."""
    return _checked(_over_layers(Config, asdict(Config()), [(Source(where, Path()), keys)]))


def _checked(config: Config) -> Config:
    check(config)
    return config


def load(schema: type, values: dict[str, Any], path: Path, overrides: Iterable[str] = ()) -> Any:
    """The dataclass `schema` of what a YAML, its `base:` and the overrides set over the plain `values`.

    Raises:
        UserError: one line that names the key, its value and what is allowed.
    """
    return _over_layers(schema, values, read_layers(path, overrides))


def _over_layers(schema: type, values: dict[str, Any], layers: Iterable[tuple[Source, dict[str, Any]]]) -> Any:
    said: dict[str, str] = {}
    for source, layer in layers:
        values = set_keys(values, layer, schema, source, said)
    try:
        return _validator(schema).validate_python(values)
    except ValidationError as error:
        raise UserError(_refusal(error.errors()[0], said)) from error


def _refusal(wrong: Any, said: dict[str, str]) -> str:
    """What pydantic found wrong: where it was said, the key, its value and what is allowed."""
    path = [str(part) for part in wrong["loc"] if part != "[key]"]  # of a mapping, which itself is wrong
    key, where = (
        ".".join(path),
        next(said[known] for end in range(len(path), -1, -1) if (known := ".".join(path[:end])) in said),
    )
    value = (
        wrong["input"]
        if isinstance(wrong["input"], str)
        else json.dumps(wrong["input"], ensure_ascii=False, default=str)
    )
    value = "" if wrong["type"] == "missing" or "[key]" in wrong["loc"] or path[-1] in _SECRET else f"={value}"
    words = _WORDS.get(wrong["type"], "").format(**wrong.get("ctx", {}))
    if not words:
        words = wrong["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if wrong["type"] == "literal_error" and isinstance(wrong["input"], str):
        choices = re.findall(r"'([^']*)'", wrong["ctx"]["expected"])
        words += did_you_mean(wrong["input"], choices)
    return f"{where}: {shown(key + value)}: {words}"


def config_to_yaml(config: Config) -> str:
    """The resolved config as YAML, to be written beside a run's results; reads back to the same config."""
    return write_yaml(asdict(config))


@cache
def _validator(schema: type) -> TypeAdapter:
    return TypeAdapter(with_config(_RULES)(schema))
