"""Every config key with its values, default and meaning, for docs/config.md: read off the schema, where each key's
comment is its documentation."""

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

_BOUNDS = {
    "minimum": "≥", "ge": "≥", "exclusiveMinimum": ">", "gt": ">",
    "maximum": "≤", "le": "≤", "exclusiveMaximum": "<", "lt": "<",
}  # fmt: skip


def config_tables() -> str:
    """A table a section, in the order of the schema; a section that stands in several places only where it is first."""
    source = Path(schema.__file__).read_text(encoding="utf-8")
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    comments = _comments(source)
    parts = []
    for prefix, name in _sections(classes, "Config", "", set()):
        inherited = [base.id for base in classes[name].bases if isinstance(base, ast.Name)]
        fields = {field.target.id: field for one in (*inherited, name) for field in _fields(classes[one])}
        section = getattr(schema, name)
        types, defaults, rows = get_type_hints(section, include_extras=True), section(), []
        for key, field in fields.items():
            values, default = "", ""
            if not _classes_in(field.annotation, classes):  # of a section, whose keys have their own
                values, default = in_words(TypeAdapter(types[key]).json_schema()), _default(getattr(defaults, key))
            if any(cells := [values, default, _meaning(field, comments)]):
                rows.append([f"`{prefix}{key}`", *cells])
        doc = " ".join((ast.get_docstring(classes[name]) or "").split())
        table = markdown.table(["key", "values", "default", "meaning"], rows)
        parts.append("\n\n".join(filter(None, [f"## {prefix.rstrip('.') or 'A run'}", doc, table])))
    return "\n\n".join(parts)


def _sections(classes: dict[str, ast.ClassDef], name: str, prefix: str, seen: set[str]) -> Iterator[tuple[str, str]]:
    """(dotted prefix, class) of a section and of all within it."""
    if name in seen:
        return
    seen.add(name)
    yield prefix, name
    for field in _fields(classes[name]):
        for inner in _classes_in(field.annotation, classes):
            yield from _sections(classes, inner, f"{prefix}{field.target.id}.", seen)


def _classes_in(annotation: ast.expr, classes: dict[str, ast.ClassDef]) -> list[str]:
    return [node.id for node in ast.walk(annotation) if isinstance(node, ast.Name) and node.id in classes]


def _fields(section: ast.ClassDef) -> list[ast.AnnAssign]:
    return [node for node in section.body if isinstance(node, ast.AnnAssign)]


def in_words(kind: dict[str, Any]) -> str:
    """A JSON schema as one would say it.

    >>> in_words({"anyOf": [{"exclusiveMinimum": 0, "type": "integer"}, {"type": "null"}]})
    'integer > 0, null'
    """
    if "anyOf" in kind:
        return ", ".join(map(in_words, kind["anyOf"]))
    if "enum" in kind or "const" in kind:
        return ", ".join(f"`{value}`" for value in kind.get("enum", [kind.get("const")]))
    if kind.get("type") == "array":
        return f"list of {in_words(kind['items'])}"
    names = {"string": "text", "boolean": "true, false", "object": "mapping", None: "any"}
    bounds = " and ".join(f"{sign} {kind[bound]:g}" for bound, sign in _BOUNDS.items() if bound in kind)
    return f"{names.get(kind.get('type'), kind.get('type'))} {bounds}".strip()


def _default(value: Any) -> str:
    """As YAML would have it."""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _meaning(field: ast.AnnAssign, comments: dict[int, tuple[str, bool]]) -> str:
    """The comments on the field's own lines, and on the lines of comment alone that follow it."""
    found = [comments[number][0] for number in range(field.lineno, field.end_lineno + 1) if number in comments]
    line = field.end_lineno + 1
    while line in comments and comments[line][1]:
        found.append(comments[line][0])
        line += 1
    return " ".join(found).replace("|", "\\|").replace("<", "\\<")  # a <name> would be taken for HTML


def _comments(source: str) -> dict[int, tuple[str, bool]]:
    """Line number -> (comment, whether it stands alone)."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {
        one.start[0]: (one.string.lstrip("# "), one.line.strip().startswith("#"))
        for one in tokens
        if one.type == tokenize.COMMENT
    }
