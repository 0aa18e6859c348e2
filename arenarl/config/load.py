"""A run's YAML, its `base:` and `--set key=value` → a checked `Config`, and back.

`layers` reads what was said, OmegaConf merges and types it, `checks` refuses numbers that no run can work with.
"""

from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from arenarl.config.layers import assignments, read_layers
from arenarl.config.schema import Config
from arenarl.system.errors import UserError


def load_config(path: str | Path, overrides: list[str] | None = None) -> Config:
    """Read a run's YAML, its `base:` and the `key=value` overrides into a checked `Config`.

    Raises:
        UserError: the file is missing or no YAML, a key is unknown, a value has the wrong type or cannot work.
    """
    from arenarl.config.checks import check  # which needs the sections above

    merged = OmegaConf.structured(Config)
    for where, folder, layer in read_layers(Path(path), overrides or []):
        for key, value in assignments(layer, Config, where, folder):
            try:
                OmegaConf.update(merged, key, value)
            except (OmegaConfBaseException, ValueError, TypeError) as error:
                raise UserError(f"{where}: {key}: {str(error).splitlines()[0]}") from error
    try:
        config = OmegaConf.to_object(merged)
        config_to_yaml(config)
    except OmegaConfBaseException as error:  # a ${reference} to nothing, a list within a list
        raise UserError(f"{path}: {error.full_key}: {str(error).splitlines()[0]}") from error
    check(config)
    return config


def config_to_yaml(config: Config) -> str:
    """The resolved config as YAML, to be written beside a run's results; reads back to the same config."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def named_class(name: str, key: str) -> Any:
    """What `package.module:Class` names: judges and environments that are not part of this package.

    Raises:
        UserError: it cannot be imported.
    """
    try:
        return resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{key}: {name} cannot be imported ({error}); name a class as package.module:Class, its module in this folder") from error
