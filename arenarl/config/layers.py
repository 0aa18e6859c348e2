"""What a run's YAML, its `base:` and the command line set, one over the other, and where each key was said.

A section can have a `base:` too, as in `judge: {train: {base: judges/qwen3_max.yaml}}`: the file holds keys of that
section, and what they leave out is the default. A key that the schema does not have is refused here, with the nearest
that it has; `load` has the values checked. A base's path starts from the folder of the file that names it. A file that
the working directory does not have is the repository's of that name, so that `--config configs/quickstart.yaml` works
anywhere.
"""

import difflib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from arenarl.config.yaml_text import MAX_DEPTH, read_yaml
from arenarl.system.errors import UserError
from arenarl.system.repository import CONFIGS, ROOT, file_named
from arenarl.system.user_input import text_of_file

_SPACE = "; YAML needs a space after the colon"
_types = cache(get_type_hints)  # of a section's keys


@dataclass(frozen=True)
class Source:
    where: str  # a file, or an option of the command line
    folder: Path  # that the paths of its bases start from


def read_layers(path: Path, overrides: Iterable[str]) -> list[tuple[Source, dict[str, Any]]]:
    """What the base, the file and every `key=value` override say, nested, in the order in which they count.

    Raises:
        UserError: a file is missing or holds no YAML mapping, a base has a base, an override is no assignment.
    """
    source, values = _read_yaml(path)
    base = values.pop("base", None)
    layers = [
        (source, values),
        *((Source(f"--set {shown(override)}", Path()), _read_override(override)) for override in overrides),
    ]
    return layers if base is None else [_read_base(source, base), *layers]


def set_keys(old: Any, new: Any, hint: Any, source: Source, said: dict[str, str], key: str = "") -> Any:
    """`old`, the plain values of a section of type `hint` (or of a list of sections, or a mapping of names to them),
    with what `new` sets.

    `said` gets where each dotted key was said, an item of a list as `list.0.key`.

    Raises:
        UserError: a key that a section does not have, or something else where a section or a list of them belongs.
    """
    said[key] = source.where
    # in a list or mapping of sections
    item = next((argument for argument in get_args(hint) if is_dataclass(argument)), None)
    if item is None and not is_dataclass(hint):
        if isinstance(new, str) and "${" in new:
            raise UserError(f"{source.where}: {key}={shown(new)}: nothing is put in for ${{…}}; write it out")
        return over(old, new)
    if item and get_origin(hint) is list and isinstance(new, list):
        old, new = [{} for _ in new], {str(index): inner for index, inner in enumerate(new)}
    if not isinstance(new, dict):
        kind = (
            "section"
            if item is None
            else "mapping from names to sections"
            if get_origin(hint) is dict
            else "list of sections"
        )
        spaced = _SPACE if isinstance(new, str) and re.match(r"[\w.]+:\S", new) else ""
        raise UserError(f"{source.where}: {key} is a {kind} with keys of its own, not {shown(new)}{spaced}")
    if key and item is None and "base" in new:
        base_source, base = _read_base(source, new["base"])
        old, new = (
            set_keys({}, base, hint, base_source, said, key),
            {name: inner for name, inner in new.items() if name != "base"},
        )
    if get_origin(hint) is dict and (odd := [name for name in new if not re.fullmatch(r"[\w-]+", name)]):
        raise UserError(f"{source.where}: {key}: the name {shown(odd[0])} may hold letters, digits, - and _ only")
    if get_origin(hint) is dict and not new:
        return {}
    values = dict(old) if isinstance(old, dict) else {str(index): value for index, value in enumerate(old)}
    hints = _types(hint) if item is None else dict.fromkeys(new if get_origin(hint) is dict else values, item)
    prefix = f"{key}." if key else ""
    for name, inner in new.items():
        if name not in hints:
            counted = (
                f"; {_count_of(key, len(hints))}" if isinstance(old, list) else _nearest(name, list(hints), prefix)
            )
            raise UserError(
                f"{source.where}: unknown key {prefix}{shown(name)}"
                f"{_SPACE if inner is None and ':' in name else counted}"
            )
        values[name] = set_keys(values.get(name, {}), inner, hints[name], source, said, f"{prefix}{name}")
    return values if isinstance(old, dict) else list(values.values())


def over(old: Any, new: Any) -> Any:
    """A mapping over a mapping, name by name; an empty one, and anything else, takes the place of what was there."""
    if not (isinstance(old, dict) and isinstance(new, dict) and new):
        return new
    return old | {name: over(old.get(name), value) for name, value in new.items()}


def _read_yaml(path: Path) -> tuple[Source, dict[str, Any]]:
    file = file_named(path)
    if not os.path.exists(file):
        known = [str(known.relative_to(ROOT)) for known in CONFIGS.rglob("*.yaml")]
        raise UserError(f"{shown(path)} does not exist{_nearest(str(path), known)}")
    try:
        values = read_yaml(text_of_file(file))
    except ValueError as error:
        raise UserError(f"{path} is not valid YAML: {shown(error)}") from error
    if values is not None and not isinstance(values, dict):
        raise UserError(f"{path} must hold keys and values, not a {type(values).__name__}")
    return Source(str(path), file.parent), values or {}


def _read_base(source: Source, base: Any) -> tuple[Source, dict[str, Any]]:
    if not isinstance(base, str):
        raise UserError(f"{source.where}: base must be the path of a YAML, not {shown(base)}")
    base_source, values = _read_yaml(source.folder / base)
    if "base" in values:
        raise UserError(f"{source.where}: its base {base} has a base of its own; one level of inheritance is allowed")
    return base_source, values


def _read_override(override: str) -> dict[str, Any]:
    """`a.b.c=value` as nested dictionaries."""
    dotted, is_assignment, text = override.partition("=")
    if not is_assignment or dotted.count(".") > MAX_DEPTH:
        raise UserError(f"--set {shown(override)}: write it as key=value")
    try:
        value = read_yaml(text)
    except ValueError as error:
        raise UserError(f"--set {shown(override)}: the value is not valid YAML: {shown(error)}") from error
    for key in reversed(dotted.split(".")):
        value = {key: value}
    return value


def shown(value: Any) -> str:
    """For a message of one line."""
    text = "".join(character if character.isprintable() else " " for character in str(value))
    return text if len(text) <= 200 else f"{text[:200]} …"


def _count_of(key: str, count: int) -> str:
    return f"{key} has {count} {'entry' if count == 1 else 'entries'}, numbered from 0; to add one, set the whole list"


def _nearest(name: str, known: list[str], prefix: str = "") -> str:
    matches = difflib.get_close_matches(name[:200], known, n=1, cutoff=0.5)
    return (
        f"; did you mean {prefix}{matches[0]}?"
        if matches
        else f"; known: {', '.join(sorted(known)[:20])}{', …' * (len(known) > 20)}"
    )
