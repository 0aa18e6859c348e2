"""Turn a run's YAML, its `base:` and `--set key=value` into a checked `Config`, and back.

Layers are merged in order: bases, file, overrides. A base may have a base. The source of each key is recorded for
errors. pydantic checks types and ranges (`schema`); `checks` refuses keys that contradict each other. A section can
have its own `base:`, as in `judge: {train: {base: judges/qwen3_max.yaml}}`; keys that this file omits get their
defaults. The path of a base is relative to the file that names it. A file missing in the working directory is looked
up in the repository.
"""

import difflib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from arenarl.config.checks import check, check_secrets, variables_of
from arenarl.config.schema import Config
from arenarl.system.errors import UserError, current_folder, did_you_mean, missing, one_line
from arenarl.system.masking import mask_variables
from arenarl.system.prompt_files import use_folder
from arenarl.system.repository import CONFIGS, ROOT, file_named
from arenarl.system.user_input import home_path, text_of_file
from arenarl.system.yaml_text import MAX_DEPTH, read_yaml, write_yaml

_WORDS = {  # pydantic's error type -> our words
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must not be below {ge}",
    "less_than_equal": "must not be above {le}",
    "missing": "is missing",
    "too_short": "must name at least {min_length}",
    "bool_type": "must be true or false",
    "string_type": "must be text; what looks like a number or a truth value needs quotes",
}
_SECRET = frozenset(  # keys whose value may contain an API key by mistake
    "api_key_variable variables env command url base_url endpoint server server_url extra_body parameters".split()
)
_SPACE = "; YAML needs a space after the colon"
_types = cache(get_type_hints)  # section -> types of its keys
_validator = cache(lambda schema: TypeAdapter(with_config(ConfigDict(allow_inf_nan=False))(schema)))


@dataclass(frozen=True)
class Source:
    where: str  # a file, or an option of the command line
    folder: Path  # base paths are relative to it
    is_file: bool = False


def load_config(path: str | Path, overrides: Iterable[str] | None = None) -> Config:
    """Read a run's YAML, its `base:` and the `key=value` overrides into a checked `Config`.

    `configure` also puts `prompts.folder` into effect.

    Raises:
        UserError: the file is missing or not YAML, a key is unknown, or a value is invalid.
    """
    return _checked(load(Config, asdict(Config()), Path(path), overrides or ()))


def configure(path: str | Path, overrides: Iterable[str] | None = None) -> Config:
    """Load the config of this process. From then on, all its prompts come from `prompts.folder`.

    Raises:
        UserError: as in `load_config`, or a file of `prompts.folder` does not fit.
    """
    config = load_config(path, overrides)
    use_folder(config.prompts.folder)
    return config


def config_of_keys(keys: dict[str, Any], where: str) -> Config:
    """Return a checked `Config` with these keys, nested as in a YAML, for callers without a file.

    Raises UserError like `load_config`; the message starts with `where`.
    """
    return _checked(_over_layers(Config, asdict(Config()), [(Source(where, Path()), keys)]))


def _checked(config: Config) -> Config:
    check(config)
    values = asdict(config)
    check_secrets(values)
    mask_variables(variables_of(values))
    return config


def load(schema: type, values: dict[str, Any], path: Path, overrides: Iterable[str] = ()) -> Any:
    """Return the dataclass `schema` with the plain `values`, changed by a YAML, its `base:` and the overrides.

    Raises UserError like `load_config`.
    """
    layers = _read_layers(Path(_home(str(path), "--config")), [])
    layers += [(Source(_place(override), Path()), _read_override(override)) for override in overrides]
    return _over_layers(schema, values, layers)


def _over_layers(schema: type, values: dict[str, Any], layers: Iterable[tuple[Source, dict[str, Any]]]) -> Any:
    sources: dict[str, str] = {}
    for source, layer in layers:
        values = _set_keys(values, layer, schema, source, sources)
    try:
        return _validator(schema).validate_python(values)
    except ValidationError as error:
        first, *others = error.errors()
        missing_keys = [".".join(map(str, other["loc"])) for other in others if other["type"] == "missing"]
        also = f"; also missing: {', '.join(missing_keys)}" if missing_keys and first["type"] == "missing" else ""
        raise UserError(_describe(first, sources) + also) from error


def _describe(problem: Any, sources: dict[str, str]) -> str:
    """Return pydantic's problem as one line: source, key, value, and what is allowed."""
    path = [str(part) for part in problem["loc"] if part != "[key]"]  # pydantic's mark for an invalid key of a mapping
    keys = [".".join(path[:end]) for end in range(len(path), -1, -1)]
    kind, value = problem["type"], problem["input"]
    is_hidden = kind == "missing" or "[key]" in problem["loc"] or not _SECRET.isdisjoint(path)
    words = _WORDS.get(kind, "").format(**problem.get("ctx", {}))
    words = words or problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if kind == "literal_error" and isinstance(value, str):
        words += did_you_mean(value, re.findall(r"'([^']*)'", problem["ctx"]["expected"]))
    where = next(sources[key] for key in keys if key in sources)
    return f"{where}: {one_line(keys[0] if is_hidden else f'{keys[0]}={_as_yaml(value)}')}: {words}"


def _as_yaml(value: Any) -> str:
    """Return a value as it stands in a YAML: text without quotes, null, true."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def config_to_yaml(config: Config) -> str:
    """Return the resolved config as YAML, which reads back to an equal config."""
    return write_yaml(asdict(config))


def _set_keys(old: Any, new: Any, hint: Any, source: Source, sources: dict[str, str], key: str = "") -> Any:
    """Return the plain values `old`, changed by `new`; `hint` is the type: a section, a list or mapping of sections,
    or a plain value.

    Records in `sources` where each dotted key was set; `list.0.key` is a key of a list's first section. Raises
    UserError for an unknown key, and for a value where the schema has a section or a list of sections.
    """
    sources[key] = source.where
    # the section type in a list or mapping of sections
    item = next((argument for argument in get_args(hint) if is_dataclass(argument)), None)
    if item is None and not is_dataclass(hint):
        if isinstance(new, str) and "${" in new:
            raise UserError(f"{source.where}: {key}={one_line(new)}: ${{…}} is not replaced; write the value out")
        return over(old, new)
    if item and get_origin(hint) is list and isinstance(new, list):
        old, new = [{} for _ in new], {str(index): inner for index, inner in enumerate(new)}
    if not isinstance(new, dict):
        kinds = {list: "list of sections", dict: "mapping from names to sections"}
        kind = "section" if item is None else kinds[get_origin(hint)]
        spaced = _SPACE if isinstance(new, str) and re.match(r"[\w.]+:\S", new) else ""
        raise UserError(
            f"{source.where}: {key} is a {kind} with keys of its own, not {one_line(_as_yaml(new))}{spaced}"
        )
    if key and item is None and "base" in new:
        old = {}
        for base_source, base in _read_base(source, new["base"], []):
            old = _set_keys(old, base, hint, base_source, sources, key)
        new = {name: inner for name, inner in new.items() if name != "base"}
    if get_origin(hint) is dict and (bad := [name for name in new if not re.fullmatch(r"[\w-]+", name)]):
        raise UserError(f"{source.where}: {key}: the name {one_line(bad[0])} may hold letters, digits, - and _ only")
    if get_origin(hint) is dict and not new:
        return {}
    values = dict(old) if isinstance(old, dict) else {str(index): value for index, value in enumerate(old)}
    hints = _types(hint) if item is None else dict.fromkeys(new if get_origin(hint) is dict else values, item)
    prefix = f"{key}." if key else ""
    for name, inner in new.items():
        if name not in hints:
            how = _nearest(name, list(hints), prefix)
            if isinstance(old, list):
                count = f"{len(hints)} {'entry' if len(hints) == 1 else 'entries'}"
                how = f"; {key} has {count}, numbered from 0; to add one, set the whole list"
            how = _SPACE if inner is None and ":" in name else how
            raise UserError(f"{source.where}: unknown key {prefix}{one_line(name)}{how}")
        values[name] = _set_keys(values.get(name, {}), inner, hints[name], source, sources, f"{prefix}{name}")
    return values if isinstance(old, dict) else list(values.values())


def over(old: Any, new: Any) -> Any:
    """Merge two mappings name by name. If `new` is empty or not a mapping, it replaces `old`."""
    if not (isinstance(old, dict) and isinstance(new, dict) and new):
        return new
    return old | {name: over(old.get(name), value) for name, value in new.items()}


def _read_yaml(path: Path) -> tuple[Source, dict[str, Any]]:
    file = file_named(path)
    if not os.path.exists(file):
        raise UserError(missing(path, _like_file(str(path))))
    try:
        values = read_yaml(text_of_file(file))
    except ValueError as error:
        raise UserError(f"{path} is not valid YAML: {one_line(error)}") from error
    if values is not None and not isinstance(values, dict):
        raise UserError(f"{path} must hold keys and values, not a {type(values).__name__}")
    return Source(str(path), file.parent, is_file=True), values or {}


def _read_layers(path: Path, derived: list[Path]) -> list[tuple[Source, dict[str, Any]]]:
    """Return the keys of a YAML and of its bases, the first base first. `derived` are the files that lead to it."""
    source, keys = _read_yaml(path)
    file = file_named(path).resolve()
    if file in derived:
        circle = " → ".join(known.name for known in [*derived[derived.index(file) :], file])
        raise UserError(f"{source.where}: base leads back to the same file ({circle}); remove one of these bases")
    base = keys.pop("base", None)
    return ([] if base is None else _read_base(source, base, [*derived, file])) + [(source, keys)]


def _read_base(source: Source, base: Any, derived: list[Path]) -> list[tuple[Source, dict[str, Any]]]:
    if not isinstance(base, str):
        raise UserError(f"{source.where}: base must be the path of a YAML, not {one_line(_as_yaml(base))}")
    path = source.folder / _home(base, source.where)
    if not os.path.exists(file_named(path)):
        rule = "; the path is relative to the YAML that names it" if source.is_file else current_folder(path)
        near = _like_file(base, source.folder if source.is_file else ROOT)
        raise UserError(f"{source.where}: base={one_line(base)} does not exist{rule}{near}")
    return _read_layers(path, derived)


def _place(override: str) -> str:
    """Return option and key of an override, without its value, which may be an API key by mistake."""
    return f"--set {one_line(override.partition('=')[0])}"


def _home(path: str, where: str) -> str:
    try:
        return home_path(path)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def _read_override(override: str) -> dict[str, Any]:
    """Return `a.b.c=value` as nested dictionaries."""
    dotted, is_assignment, text = override.partition("=")
    if not is_assignment or dotted.count(".") > MAX_DEPTH:
        raise UserError(f"{_place(override)}: write it as key=value")
    try:
        value = read_yaml(text)
    except ValueError as error:
        raise UserError(f"{_place(override)}: the value is not valid YAML: {one_line(error)}") from error
    for key in reversed(dotted.split(".")):
        value = {key: value}
    return value


def _nearest(name: str, known: list[str], prefix: str) -> str:
    """Return a suggestion: the known key that is close to `name`; without one, up to 20 known keys, closest first."""
    if matches := difflib.get_close_matches(name[:200], known, n=1, cutoff=0.5):
        return f"; did you mean {prefix}{matches[0]}?"
    closest = sorted(known, key=lambda key: difflib.SequenceMatcher(None, name[:200], key).ratio(), reverse=True)
    return f"; known: {', '.join(closest[:20])}{', …' * (len(known) > 20)}"


def _like_file(path: str, folder: Path = ROOT) -> str:
    """Return a suggestion of this project's YAML whose name is closest to that of `path`, "" if none is close.
    The suggested path is relative to `folder`."""
    files = {str(file.relative_to(ROOT)): file.stem for file in CONFIGS.rglob("*.yaml")}
    stems = difflib.get_close_matches(Path(path).stem[:200], sorted(set(files.values())), n=1)
    named = sorted(file for file, stem in files.items() if stem in stems)
    matches = difflib.get_close_matches(path[-200:], named, n=1, cutoff=0.0)
    return "".join(f"; did you mean {os.path.relpath(ROOT / match, folder)}?" for match in matches)
