"""Check a tool call's arguments against the tool's JSON schema, and describe a misfit in words for the policy.

Typed functions and third-party servers have every kind of JSON schema, so the library jsonschema validates. Models
often write numbers, lists and objects as strings: where the schema excludes strings, a string is parsed as JSON.

A pattern or a $ref may take exponential time. A worker process with a time limit therefore checks schemas and calls;
plain schemas need none.
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

from arenarl.system.workers import WorkerLost, Workers
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
# Keys whose schemas apply to the value itself, not to a part of it; some belong to earlier drafts
_SAME_VALUE = (
    "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies", "extends", "disallow",
    "type",
)  # fmt: skip
_REFERENCES = {"$ref", "$dynamicRef", "$recursiveRef"}
# A schema with these keys alone, and few parts, is plain: a check takes time in proportion to the value
_PLAIN_PARTS = {"items", "additionalProperties", "anyOf", "allOf", "oneOf", "type"}  # a schema, or a list of schemas
_PLAIN_KEYS = _PLAIN_PARTS | {
    "properties", "required", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "minLength", "maxLength", "minItems", "maxItems", "title", "description", "default", "examples", "format", "$ref",
    "$defs", "definitions", "$schema",
}  # fmt: skip
_MAX_PARTS = 1000  # of a plain schema, and of an example
_MAX_VALUES = 100_000  # of a schema
_EXAMPLES = {"integer": 0, "number": 0.5, "boolean": True, "array": [], "object": {}, "null": None}
_START_S, _CALL_S = 5.0, 2.0  # seconds for the check of a schema at the start, and of a call. Our choice
_workers = Workers("arenarl.rollout.arguments:_answer")
MAX_WRITTEN = 80  # characters of a wrong value in an error
MAX_REASON = 240  # characters of an error's reason


class Misfit(ValueError):
    """Arguments that do not fit the schema: the reason, and the place ("" for all arguments)."""

    def __init__(self, place: str, reason: str):
        super().__init__(reason)
        self.place = _cut(place, MAX_WRITTEN)


def schema_problem(parameters: Any) -> str | None:
    """Return why a tool's parameters are not a JSON schema that can check an object, or None if they are."""
    if _is_too_large(parameters):  # or circular; shared parts count each time
        return f"it has more than {_MAX_VALUES:,} values"
    try:
        task = json.dumps([parameters])
    except (TypeError, ValueError, RecursionError) as error:
        return f"it does not consist of JSON values ({type(error).__name__}: {error})"
    if _is_plain(parameters):
        return _schema_problem(parameters)
    try:
        return _workers.run(_START_S, task)
    except WorkerLost:
        return f"arguments cannot be checked against it within {_START_S:g} s and 2 GB"


def _schema_problem(parameters: Any) -> str | None:
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        return "its type is not object"
    if not isinstance(parameters.get("$schema", ""), str):
        return "its $schema is not a text"
    try:
        validator_for(parameters, default=Draft202012Validator).check_schema(parameters)
        if problem := _reference_problem(parameters):
            return problem
        example = _example(parameters, parameters, [_MAX_PARTS])
        example = example if isinstance(example, dict) else {}
        for arguments in (example, dict.fromkeys(example, "a"), {}):
            with suppress(Misfit):
                _read_arguments(arguments, parameters)
    except SchemaError as error:
        return _cut(error.message, MAX_REASON)
    except Exception as error:  # noqa: BLE001 - every call of the tool would fail in this way
        return _cut(f"arguments cannot be checked against it ({type(error).__name__}: {error})", MAX_REASON)
    return None


def _is_too_large(schema: Any) -> bool:
    waiting, count = [schema], 0
    while waiting and count <= _MAX_VALUES:
        part, count = waiting.pop(), count + 1
        waiting += part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else ()
    return bool(waiting)


def _is_plain(schema: Any) -> bool:
    waiting, parts = [schema], 0
    while waiting and parts <= _MAX_PARTS:
        part, parts = waiting.pop(), parts + 1
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            if not part.keys() <= _PLAIN_KEYS or ("$ref" in part and _target(part["$ref"], schema) is None):
                return False
            properties = part.get("properties")
            waiting += properties.values() if isinstance(properties, dict) else ()
            waiting += [part[key] for key in _PLAIN_PARTS & part.keys()]
            waiting += [_target(part["$ref"], schema)] if "$ref" in part else []
    return not waiting


def _example(schema: Any, root: Schema, budget: list[int], depth: int = 0) -> Any:
    """Return a value with an entry for each part of a schema, up to `budget[0]` parts. It may not fit the schema."""
    budget[0] -= 1
    if not isinstance(schema, dict) or budget[0] < 0 or depth > _MAX_REFERENCES:
        return {} if schema is root else "a"
    deeper = root, budget, depth + 1
    if "$ref" in schema:
        return _example(_target(schema["$ref"], root), *deeper)
    if schema is root or isinstance(schema.get("properties"), dict):
        return {key: _example(part, *deeper) for key, part in schema.get("properties", {}).items()}
    if items := schema.get("items"):
        return [_example(items[0] if isinstance(items, list) else items, *deeper)]
    if choices := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        return _example(choices[0], *deeper)
    types = _types(schema, root) or {"string"}
    return next((_EXAMPLES[name] for name in sorted(types) if name in _EXAMPLES), "a")


def as_written(value: Any) -> str:
    """Return a value as JSON for an error: shortened, and without lone surrogates, which cannot be tokenised."""
    return _cut(json.dumps(value, ensure_ascii=False).encode(errors="replace").decode(), MAX_WRITTEN)


def read_arguments(given: dict[str, Any], parameters: Schema) -> dict[str, Any]:
    """Return the arguments in the schema's types, without nulls that the schema forbids.
    Raises Misfit for a missing argument, or a value that does not fit or takes too long to check."""
    if _is_plain(parameters):
        return _read_arguments(given, parameters)
    try:
        read, misfit = _workers.run(_CALL_S, json.dumps([parameters, given]))
    except WorkerLost as error:
        raise Misfit("", f"cannot check these arguments within {_CALL_S:g} s; write them differently") from error
    if misfit:
        raise Misfit(*misfit)
    return read


def _answer(task: str) -> Any:
    """Return a worker's result for JSON of [parameters] or [parameters, arguments]: the schema's problem or None;
    (arguments, None) or (None, a Misfit's arguments)."""
    parameters, *given = json.loads(task)
    if not given:
        return _schema_problem(parameters)
    try:
        return _read_arguments(*given, parameters), None
    except Misfit as misfit:
        return None, (misfit.place, str(misfit))
    except Exception as error:  # noqa: BLE001 - these arguments alone; the start has checked the schema
        return None, ("", f"cannot check these arguments ({type(error).__name__})")


def _read_arguments(given: dict[str, Any], parameters: Schema) -> dict[str, Any]:
    properties, others = parameters.get("properties", {}), parameters.get("additionalProperties", True)
    read = {}
    for key, value in given.items():
        types = _types(properties.get(key, others), parameters)
        if value is not None or types is None or "null" in types:
            read[key] = _read(key, value, types)
    required = parameters.get("required")  # a boolean in draft 3
    if missing := [key for key in required if key not in read] if isinstance(required, list) else []:
        reason = f"needs the argument{'s' * (len(missing) > 1)} {', '.join(missing)}"
        raise Misfit("", _cut(reason, MAX_REASON))
    validator = validator_for(parameters, default=Draft202012Validator)(parameters)
    if error := best_match(validator.iter_errors(read)):
        raise _misfit(error, parameters)
    return read


def is_text(schema: Any, parameters: Schema) -> bool:
    """Return True if an argument's schema, a part of the tool's parameters, allows only strings."""
    return _types(schema, parameters) == {"string"}


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
    alternatives = [part for key in _SAME_VALUE for part in _schemas_in(schema.get(key))]
    parts = [(part, resolver.in_subresource(DRAFT202012.create_resource(part))) for part in alternatives]
    for key in _REFERENCES & schema.keys():
        target = resolver.lookup(schema[key])
        parts.append((target.contents, target.resolver))
    if any(_is_circular(part, of_part, (*path, id(schema)), checked) for part, of_part in parts):
        return True
    checked.add(id(schema))
    return False


def _schemas_in(value: Any) -> list[Schema]:
    """Return the schemas in the value of one of the keys `_SAME_VALUE`."""
    if isinstance(value, dict) and any(not isinstance(part, dict | list) for part in value.values()):
        return [value]  # a schema, not a mapping of schemas
    parts = value if isinstance(value, list) else [value, *value.values()] if isinstance(value, dict) else []
    return [part for part in parts if isinstance(part, dict)]


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
        raise Misfit(key, f"must be {_in_words(types)}, not {as_written(value)}")
    return int(value) if value.is_integer() and "number" not in types and "integer" in types else value


def _parse(text: str, types: set[str]) -> Any:
    """Parse a text as JSON, or as a number in Python's form such as .5; return it unchanged if both fail."""
    with suppress(ValueError):
        return parse_json(text)
    with suppress(ValueError):
        return float(text) if types & {"number", "integer"} else text
    return text


def _target(reference: Any, root: Schema) -> Any:
    """Return the part of the schema that a reference names: root["a"]["b"] for "#/a/b".
    Without such a part, and for a reference to another document, return None."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    target: Any = root
    for part in reference.removeprefix("#/").split("/"):
        target = target.get(part) if isinstance(target, dict) else None
    return target


def _types(schema: Any, root: Schema, depth: int = 0) -> set[str] | None:
    """Return the JSON types that a schema allows explicitly, or None if it lists no type."""
    if not isinstance(schema, dict) or depth > _MAX_REFERENCES:
        return None
    if reference := schema.get("$ref"):
        return _types(_target(reference, root), root, depth + 1)
    if types := schema.get("type"):
        types = [types] if isinstance(types, str) else types
        # draft 3 has the type "any", and schemas among the types
        return set(types) if all(isinstance(name, str) and name in _WORDS for name in types) else None
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
        choices = _cut(f"must be one of {', '.join(map(str, error.validator_value))}", MAX_REASON)
        return Misfit(place, f"{choices}, not {as_written(error.instance)}")
    if error.validator in ("type", "anyOf", "oneOf") and types and _type_of(error.instance) not in types:
        return Misfit(place, f"must be {_in_words(types)}, not {as_written(error.instance)}")
    value = repr(error.instance)  # jsonschema puts the whole value before the reason, at any length
    message = error.message.replace(value, as_written(error.instance)) if len(value) > MAX_WRITTEN else error.message
    return Misfit(place, _cut(f"does not fit: {message}", MAX_REASON))


def _in_words(types: set[str]) -> str:
    return " or ".join(words for name, words in _WORDS.items() if name in types)
