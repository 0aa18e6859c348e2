"""A tool call's arguments by the tool's JSON schema: read in the schema's types, and where they do not fit,
said in words.

Typed functions and the tools of other people's servers bring every kind of JSON schema, so a library decides what fits.
Models often write numbers, lists and objects as strings; where the schema has no string, such a string is read as what
it spells.
"""

import json
import math
from contextlib import suppress
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.validators import validator_for
from jsonschema_specifications import REGISTRY
from referencing import Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from arenarl.trajectory import parse_json

Schema = dict[str, Any]
_WORDS = {
    "string": "a string",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_MOST_REFERENCES = 20  # that lead from one to the next
_ABOUT_THE_SAME = ("allOf", "anyOf", "oneOf")  # whose schemas are of the value itself, not of a part of it
MAX_WRITTEN = 80  # characters of a wrong value that an error repeats
MAX_REASON = 240  # of what it says in all


class Misfit(ValueError):
    """Why arguments do not fit, where ("": all of them), and the value there if another was expected."""

    def __init__(self, place: str, reason: str, *value: Any):
        super().__init__(_cut(reason, MAX_REASON))
        self.place = _cut(place, MAX_WRITTEN)
        self.has_other_value, self.value = bool(value), value[0] if value else None


def schema_fault(parameters: Any) -> str | None:
    """What is wrong with a tool's parameters as a JSON schema of an object; None: nothing."""
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        return "it is not of an object"
    if not isinstance(parameters.get("$schema", ""), str):
        return "its $schema is not a text"
    try:
        validator_for(parameters, default=Draft202012Validator).check_schema(parameters)
    except SchemaError as error:
        return _cut(error.message, MAX_REASON)
    return _reference_fault(parameters)


def as_written(value: Any) -> str:
    """What the policy wrote, as JSON, shortened, and safe to tokenise: JSON escapes can spell lone surrogates."""
    return _cut(json.dumps(value, ensure_ascii=False).encode(errors="replace").decode(), MAX_WRITTEN)


def read_arguments(given: dict[str, Any], parameters: Schema) -> dict[str, Any]:
    """Return the arguments in the schema's types, without those that are null and must not be.
    Raises Misfit if one is missing or does not fit."""
    properties, others = parameters.get("properties", {}), parameters.get("additionalProperties", True)
    read = {}
    for key, value in given.items():
        types = _types(properties.get(key, others), parameters)
        if value is not None or types is None or "null" in types:
            read[key] = _read(key, value, types)
    if missing := [key for key in parameters.get("required", []) if key not in read]:
        raise Misfit("", f"needs the argument{'s' * (len(missing) > 1)} {', '.join(missing)}")
    validator = validator_for(parameters, default=Draft202012Validator)(parameters)
    if error := best_match(validator.iter_errors(read)):
        raise _misfit(error, parameters)
    return read


def _reference_fault(schema: Schema) -> str | None:
    """What is wrong with its references, if anything; what lies elsewhere is not fetched."""
    root = Resource.from_contents(schema, default_specification=DRAFT202012)
    waiting, sound = [(root, REGISTRY.resolver_with_root(root))], set()
    try:
        while waiting:
            resource, resolver = waiting.pop()
            if _leads_back(resource.contents, resolver, (), sound):
                return "a $ref leads back to itself"
            waiting += [(part, resolver.in_subresource(part)) for part in resource.subresources()]
    except Unresolvable as error:
        return f"its $ref {as_written(error.ref)} leads nowhere"
    return None


def _leads_back(schema: Any, resolver: Any, passed: tuple[int, ...], sound: set[int]) -> bool:
    """Whether the schema leads back to a `passed` one without a step into the value. Raises Unresolvable."""
    if not isinstance(schema, dict) or id(schema) in sound:
        return False
    if id(schema) in passed:
        return True
    same = [part for key in _ABOUT_THE_SAME for part in schema.get(key, [])]
    parts = [(part, resolver.in_subresource(DRAFT202012.create_resource(part))) for part in same]
    if "$ref" in schema:
        target = resolver.lookup(schema["$ref"])
        parts.append((target.contents, target.resolver))
    if any(_leads_back(part, of_part, (*passed, id(schema)), sound) for part, of_part in parts):
        return True
    sound.add(id(schema))
    return False


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _read(key: str, value: Any, types: set[str] | None) -> Any:
    """A value in one of these types, if it spells one."""
    if types is None:
        return value
    if isinstance(value, str) and "string" not in types:
        value = _spelled(value, types)
    if _type_of(value) == "integer" and "integer" not in types and "number" in types:
        value = float(value) if abs(value) < 1e308 else math.inf
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        raise Misfit(key, f"must be {_one_of(types)}", value)
    return int(value) if value.is_integer() and "number" not in types and "integer" in types else value


def _spelled(text: str, types: set[str]) -> Any:
    """What JSON makes of it, or Python of a number: 5, true, [1, 2], .5; else the text itself."""
    with suppress(ValueError):
        return parse_json(text)
    with suppress(ValueError):
        return float(text) if types & {"number", "integer"} else text
    return text


def _types(schema: Any, root: Schema, followed: int = 0) -> set[str] | None:
    """The JSON types that a schema lets through by its own word; None: all."""
    if not isinstance(schema, dict) or followed > _MOST_REFERENCES:
        return None
    if reference := schema.get("$ref"):
        return _types(_at(root, reference), root, followed + 1)
    if types := schema.get("type"):
        return {types} if isinstance(types, str) else set(types)
    if choices := schema.get("anyOf", schema.get("oneOf")):
        parts = [_types(part, root, followed + 1) for part in choices]
        return None if None in parts else set().union(*parts)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return {_type_of(value) for value in values} if values else None


def _at(root: Schema, reference: str) -> Any:
    """What "#/a/b" points to; True, the schema of everything, for what lies elsewhere."""
    found: Any = root
    for part in reference.removeprefix("#/").split("/") if reference.startswith("#/") else [None]:
        found = found.get(part) if isinstance(found, dict) else None
    return True if found is None else found


def _type_of(value: Any) -> str:
    kinds = {"boolean": bool, "integer": int, "number": float, "string": str, "array": list, "object": dict}
    return next((name for name, kind in kinds.items() if isinstance(value, kind)), "null")


def _misfit(error: ValidationError, root: Schema) -> Misfit:
    place = ""
    for part in error.absolute_path:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else part
    types = _types(error.schema, root)
    if error.validator == "enum":
        return Misfit(place, f"must be one of {', '.join(map(str, error.validator_value))}", error.instance)
    if error.validator in ("type", "anyOf", "oneOf") and types and _type_of(error.instance) not in types:
        return Misfit(place, f"must be {_one_of(types)}", error.instance)
    shown = repr(error.instance)
    # the reason stands behind it
    message = error.message.replace(shown, as_written(error.instance)) if len(shown) > MAX_WRITTEN else error.message
    return Misfit(place, f"does not fit: {message}")


def _one_of(types: set[str]) -> str:
    return " or ".join(words for name, words in _WORDS.items() if name in types)
