"""Check a tool call's arguments against the tool's JSON schema, and describe a misfit in words for the policy.

Typed functions and third-party servers have every kind of JSON schema, so the library jsonschema validates. Models
often write numbers, lists and objects as strings: where the schema excludes strings, a string is parsed as JSON.
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
_MAX_REFERENCES = 20  # length of a chain of $ref
_SAME_VALUE = ("allOf", "anyOf", "oneOf")  # keys whose schemas apply to the value itself, not to a part of it
MAX_WRITTEN = 80  # characters of a wrong value in an error
MAX_REASON = 240  # characters of an error's reason


class Misfit(ValueError):
    """Arguments that do not fit the schema: the place ("" for all arguments), the reason, and maybe the wrong value."""

    def __init__(self, place: str, reason: str, *value: Any):
        super().__init__(_cut(reason, MAX_REASON))
        self.place = _cut(place, MAX_WRITTEN)
        self.has_other_value, self.value = bool(value), value[0] if value else None


def schema_problem(parameters: Any) -> str | None:
    """Return why a tool's parameters are not a valid JSON schema of an object, or None if they are."""
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        return "its type is not object"
    if not isinstance(parameters.get("$schema", ""), str):
        return "its $schema is not a text"
    try:
        validator_for(parameters, default=Draft202012Validator).check_schema(parameters)
    except SchemaError as error:
        return _cut(error.message, MAX_REASON)
    return _reference_problem(parameters)


def as_written(value: Any) -> str:
    """Return a value as JSON for an error: shortened, and without lone surrogates, which cannot be tokenised."""
    return _cut(json.dumps(value, ensure_ascii=False).encode(errors="replace").decode(), MAX_WRITTEN)


def read_arguments(given: dict[str, Any], parameters: Schema) -> dict[str, Any]:
    """Return the arguments in the schema's types, without nulls that the schema forbids.
    Raises Misfit for a missing argument or a value that does not fit."""
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


def _reference_problem(schema: Schema) -> str | None:
    """Return the problem of an unusable $ref, or None. References to other documents are not fetched."""
    root = Resource.from_contents(schema, default_specification=DRAFT202012)
    waiting, checked = [(root, REGISTRY.resolver_with_root(root))], set()
    try:
        while waiting:
            resource, resolver = waiting.pop()
            if _is_circular(resource.contents, resolver, (), checked):
                return "a $ref leads back to itself"
            waiting += [(part, resolver.in_subresource(part)) for part in resource.subresources()]
    except Unresolvable as error:
        return f"its $ref {as_written(error.ref)} leads nowhere"
    return None


def _is_circular(schema: Any, resolver: Any, path: tuple[int, ...], checked: set[int]) -> bool:
    """Return True if the schema leads back to a schema of the `path` for the same value. Raises Unresolvable."""
    if not isinstance(schema, dict) or id(schema) in checked:
        return False
    if id(schema) in path:
        return True
    alternatives = [part for key in _SAME_VALUE for part in schema.get(key, [])]
    parts = [(part, resolver.in_subresource(DRAFT202012.create_resource(part))) for part in alternatives]
    if "$ref" in schema:
        target = resolver.lookup(schema["$ref"])
        parts.append((target.contents, target.resolver))
    if any(_is_circular(part, of_part, (*path, id(schema)), checked) for part, of_part in parts):
        return True
    checked.add(id(schema))
    return False


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _read(key: str, value: Any, types: set[str] | None) -> Any:
    """Convert a value to one of the types, if it can be. Raises Misfit for an infinite number."""
    if types is None:
        return value
    if isinstance(value, str) and "string" not in types:
        value = _parse(value, types)
    if _type_of(value) == "integer" and "integer" not in types and "number" in types:
        value = float(value) if abs(value) < 1e308 else math.inf
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        raise Misfit(key, f"must be {_in_words(types)}", value)
    return int(value) if value.is_integer() and "number" not in types and "integer" in types else value


def _parse(text: str, types: set[str]) -> Any:
    """Parse a text as JSON, or as a number in Python's form such as .5; return it unchanged if both fail."""
    with suppress(ValueError):
        return parse_json(text)
    with suppress(ValueError):
        return float(text) if types & {"number", "integer"} else text
    return text


def _types(schema: Any, root: Schema, depth: int = 0) -> set[str] | None:
    """Return the JSON types that a schema allows explicitly, or None if it lists no type."""
    if not isinstance(schema, dict) or depth > _MAX_REFERENCES:
        return None
    if reference := schema.get("$ref"):
        target: Any = root  # "#/a/b" leads to root["a"]["b"]; a reference to another document allows all types
        for part in reference.removeprefix("#/").split("/") if reference.startswith("#/") else [None]:
            target = target.get(part) if isinstance(target, dict) else None
        return _types(target, root, depth + 1)
    if types := schema.get("type"):
        return {types} if isinstance(types, str) else set(types)
    if choices := schema.get("anyOf", schema.get("oneOf")):
        parts = [_types(part, root, depth + 1) for part in choices]
        return None if None in parts else set().union(*parts)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return {_type_of(value) for value in values} if values else None


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
        return Misfit(place, f"must be {_in_words(types)}", error.instance)
    value = repr(error.instance)  # jsonschema puts it before the reason, however long it is
    message = error.message.replace(value, as_written(error.instance)) if len(value) > MAX_WRITTEN else error.message
    return Misfit(place, f"does not fit: {message}")


def _in_words(types: set[str]) -> str:
    return " or ".join(words for name, words in _WORDS.items() if name in types)
