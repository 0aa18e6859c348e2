"""docs/config.md's tables: every config key with its values, default and meaning, from the schema.

The comment of each key in the schema is its documentation.
"""

import ast
import io
import json
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from arenarl.config import schema
from arenarl.report import markdown

Classes = dict[str, ast.ClassDef]

_LOWER = {"minimum": "≥", "ge": "≥", "exclusiveMinimum": ">", "gt": ">"}
_UPPER = {"maximum": "≤", "le": "≤", "exclusiveMaximum": "<", "lt": "<"}
_TYPES = {"string": "text", "boolean": "true, false", "object": "mapping", None: "any"}


def config_tables() -> str:
    """Return a table for each section, in the schema's order. A section used in several places is shown once."""
    source = Path(schema.__file__).read_text(encoding="utf-8")
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    comments = _comments(source)
    parts = []
    for prefix, name in _sections(classes, "Config", "", set()):
        inherited = [base.id for base in classes[name].bases if isinstance(base, ast.Name)]
        fields = {field.target.id: field for part in (*inherited, name) for field in _fields(classes[part])}
        section = getattr(schema, name)
        types, defaults, rows = get_type_hints(section, include_extras=True), section(), []
        for key, field in fields.items():
            values, default = "", ""
            if not _classes_in(field.annotation, classes):  # a section's keys have their own rows
                value = getattr(defaults, key)
                default = f"`{value if isinstance(value, str) else json.dumps(value)}`"
                values = in_words(TypeAdapter(types[key]).json_schema())
            if any(cells := [values, default, _meaning(field, comments)]):
                rows.append([f"`{prefix}{key}`", *cells])
        doc = " ".join((ast.get_docstring(classes[name]) or "").split())
        table = markdown.table(["key", "values", "default", "meaning"], rows)
        parts.append("\n\n".join(filter(None, [f"## {prefix.rstrip('.') or 'A run'}", doc, table])))
    return "\n\n".join(parts)


def _sections(classes: Classes, name: str, prefix: str, seen: set[str]) -> Iterator[tuple[str, str]]:
    """Yield (dotted prefix, class name) of a section and of all sections within it."""
    if name in seen:
        return
    seen.add(name)
    yield prefix, name
    for field in _fields(classes[name]):
        for inner in _classes_in(field.annotation, classes):
            yield from _sections(classes, inner, f"{prefix}{field.target.id}.", seen)


def _classes_in(annotation: ast.expr, classes: Classes) -> list[str]:
    return [node.id for node in ast.walk(annotation) if isinstance(node, ast.Name) and node.id in classes]


def _fields(section: ast.ClassDef) -> list[ast.AnnAssign]:
    return [node for node in section.body if isinstance(node, ast.AnnAssign)]


def in_words(kind: dict[str, Any]) -> str:
    """Describe a JSON schema in words, with its tightest bounds.

    >>> in_words({"anyOf": [{"exclusiveMinimum": 0, "type": "integer"}, {"type": "null"}]})
    'integer > 0, null'
    >>> in_words({"type": "number", "minimum": 0, "exclusiveMinimum": 0, "maximum": 1})
    'number > 0 and ≤ 1'
    """
    if "anyOf" in kind:
        return ", ".join(map(in_words, kind["anyOf"]))
    if "enum" in kind or "const" in kind:
        return ", ".join(f"`{value}`" for value in kind.get("enum", [kind.get("const")]))
    if kind.get("type") == "array":
        return f"list of {in_words(kind['items'])}"
    lower = sorted((kind[name], sign == ">", sign) for name, sign in _LOWER.items() if name in kind)[-1:]
    upper = sorted((kind[name], sign == "≤", sign) for name, sign in _UPPER.items() if name in kind)[:1]
    bounds = " and ".join(f"{sign} {bound:g}" for bound, _, sign in lower + upper)
    return f"{_TYPES.get(kind.get('type'), kind.get('type'))} {bounds}".strip()


def _meaning(field: ast.AnnAssign, comments: dict[int, tuple[str, bool]]) -> str:
    """Return the comments on the field's lines, and on the comment lines that follow it."""
    texts = [comments[number][0] for number in range(field.lineno, field.end_lineno + 1) if number in comments]
    line = field.end_lineno + 1
    while line in comments and comments[line][1]:
        texts.append(comments[line][0])
        line += 1
    return " ".join(texts).replace("<", "\\<")  # without a backslash, <name> would be HTML


def _comments(source: str) -> dict[int, tuple[str, bool]]:
    """Return line number -> (comment, True if the line holds only the comment)."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    return {token.start[0]: (token.string.lstrip("# "), token.line.strip().startswith("#")) for token in comments}
