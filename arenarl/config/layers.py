"""What a run's YAML, its `base:` and the command line set, key by key, each with the place that says so.

A section can have a `base:` too, as in `judge: {train: {base: judges/qwen3_max.yaml}}`: the file holds keys of that section, and
what they leave out is the default. `config` puts the keys into its schema. A key that the schema does not have is refused here,
with the nearest that it has.
"""

import difflib
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from arenarl.system.errors import UserError


def read_layers(path: Path, overrides: list[str]) -> list[tuple[str, Path, dict[str, Any]]]:
    """(where it stands, the folder that its paths start from, nested values) of the base, the file and every `key=value` override.

    In the order in which they count.

    Raises:
        UserError: a file is missing or holds no YAML mapping, a base has a base, an override is no assignment.
    """
    values = _read_yaml(path)
    base = values.pop("base", None)
    layers = [(str(path), path.parent, values)]
    layers += [(f"--set {override}", Path(), _read_override(override)) for override in overrides]
    return layers if base is None else [_read_base(str(path), path.parent, base), *layers]


def assignments(value: Any, hint: Any, where: str, folder: Path, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of all that `value` sets in a section of type `hint`, items of a list of sections as `list.0.key`,
    sections with names of their own as `mapping.name.key`.

    The path of a section's base starts from `folder`, where the file stands that names it.

    Raises:
        UserError: a key that a section does not have, or something else where a section or a list of them belongs.
    """
    item = next((argument for argument in get_args(hint) if is_dataclass(argument)), None)  # in a list or mapping of sections
    if item is None and not is_dataclass(hint):
        yield key, value
        return
    if item and get_origin(hint) is not dict and isinstance(value, list):
        yield key, [{} for _ in value]
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        kind = "section" if item is None else "mapping from names to sections" if get_origin(hint) is dict else "list of sections"
        raise UserError(f"{where}: {key} is a {kind} with keys of its own, not {value!r}")
    value = {str(name): inner for name, inner in value.items()}
    if key and item is None and "base" in value:
        yield key, hint()
        base_where, base_folder, base = _read_base(where, folder, value.pop("base"))
        yield from assignments(base, hint, base_where, base_folder, key)
    if get_origin(hint) is dict:
        if odd := [name for name in value if not re.fullmatch(r"[\w-]+", name)]:
            raise UserError(f"{where}: {key}: the name {odd[0]!r} may hold letters, digits, - and _ only")
        hints = dict.fromkeys(value, item)
        yield key, {name: {} for name in value}  # what they hold already stays
    else:
        hints = {"0": item} | {name: item for name in value if name.isdigit()} if item else get_type_hints(hint)
    prefix = f"{key}." if key else ""
    for name, inner in value.items():
        if name not in hints:
            raise UserError(f"{where}: unknown key {prefix}{name}{_nearest(name, list(hints), prefix)}")
        yield from assignments(inner, hints[name], where, folder, f"{prefix}{name}")


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        known = [str(p) for p in Path("configs").rglob("*.yaml")]
        raise UserError(f"{path} does not exist{_nearest(str(path), known)}")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold keys and values, not a {type(values).__name__}")
    return values


def _read_base(where: str, folder: Path, base: Any) -> tuple[str, Path, dict[str, Any]]:
    if not isinstance(base, str):
        raise UserError(f"{where}: base must be the path of a YAML, not {base!r}")
    path = folder / base
    values = _read_yaml(path)
    if "base" in values:
        raise UserError(f"{where}: its base {base} has a base of its own; one level of inheritance is allowed")
    return str(path), path.parent, values


def _read_override(override: str) -> dict[str, Any]:
    """`a.b.c=value` as nested dictionaries."""
    dotted, is_assignment, text = override.partition("=")
    if not is_assignment:
        raise UserError(f"--set {override}: write it as key=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"--set {override}: the value is not valid YAML: {' '.join(str(error).split())}") from error
    for key in reversed(dotted.split(".")):
        value = {key: value}
    return value


def _nearest(name: str, known: list[str], prefix: str = "") -> str:
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {prefix}{matches[0]}?" if matches else f"; known: {', '.join(sorted(known)[:20])}"
