"""An MCP server's tools and results in the form that the policy reads: JSON schemas (maybe renamed) and text.

A result is the text of its contents; an image or a sound becomes a note with its type and size. A ToolError is raised
for `isError`, for a text that begins with "Error", and for JSON whose only key is `error`.
"""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, get_type_hints

from mcp_types import CallToolResult, Tool

from arenarl.config.schema import MCPServerConfig, RenamedToolConfig
from arenarl.rollout.environment import Schema, ToolError, maybe_await, suggestion
from arenarl.system.errors import UserError
from arenarl.system.user_input import import_named
from arenarl.trajectory import parse_json, storable

Call = Callable[..., Awaitable[str]]  # call(tool, **arguments) returns the text of a server's tool; raises ToolError


@dataclass(frozen=True)
class OfferedTool:
    """A tool under the policy's name and schema; `answer(call, arguments)` makes the calls of the server's tools."""

    schema: Schema
    answer: Callable[[Call, dict[str, Any]], Awaitable[str]]

    @property
    def name(self) -> str:
        return self.schema["function"]["name"]


def offered_tools(
    server: MCPServerConfig, key: str, listed: list[Schema], like: Callable[[str], list[Schema]]
) -> list[OfferedTool]:
    """Return the tools that `allow` admits, in the server's order, followed by the tools of `rename`.
    `key` is the server's key in the config; `like` returns the tools of a built-in environment.
    Raises UserError if the config names a tool or an argument that does not exist."""
    known = _by_name(listed)
    for name in server.allow or []:
        _require_name(name, known, f"{key}.allow: {server.label}", "tool")
    renamed = {rule.tool for rule in server.rename.values()}
    allowed = known.keys() if server.allow is None else known.keys() & server.allow
    unchanged = [_unchanged_tool(tool) for tool in listed if tool["function"]["name"] in allowed - renamed]
    rules = server.rename.items()
    return unchanged + [_renamed_tool(name, rule, server, f"{key}.rename.{name}", known, like) for name, rule in rules]


def schema_of(tool: Tool) -> Schema:
    """Return a server's tool in OpenAI's function form."""
    parameters = {"type": "object", "properties": {}, **tool.input_schema}
    return _function(tool.name, {"description": tool.description or "", "parameters": parameters})


def _function(name: str, fields: dict[str, Any]) -> Schema:
    """Build a schema with the name first, because the chat template writes the keys in this order."""
    return {"type": "function", "function": {"name": name} | fields | {"name": name}}


def _by_name(tools: list[Schema]) -> dict[str, Schema]:
    return {tool["function"]["name"]: tool for tool in tools}


def result_text(result: CallToolResult) -> str:
    """Return a result as text. Raises ToolError if the result is an error."""
    text = "\n".join(map(_content_text, result.content))
    if not result.content and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    return require_success(text, bool(result.is_error))


def require_success(text: str, is_error: bool = False) -> str:
    """Return a result's text. Raises ToolError if it states an error."""
    text = storable(text)
    if is_error or text.startswith(("Error:", "Error ")):
        raise ToolError(text.removeprefix("Error: ") or "the tool failed and does not say why.")
    if text.startswith("{") and '"error"' in text[:20]:
        with suppress(ValueError):
            value = parse_json(text)
            if isinstance(value, dict) and value.keys() == {"error"}:
                raise ToolError(str(value["error"]))
    return text


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}… [{len(text) - length:,} more characters]"


def _content_text(content: Any) -> str:
    if content.type == "text":
        return content.text
    if content.type == "resource":
        hidden = f"[{content.resource.uri}, {content.resource.mime_type or 'data'}, not shown]"
        return getattr(content.resource, "text", None) or hidden
    if content.type == "resource_link":
        return f"[{content.name}: {content.uri}]"
    return f"[{content.type}, {content.mime_type}, {len(content.data) * 3 // 4:,} bytes, not shown]"


def _unchanged_tool(tool: Schema) -> OfferedTool:
    return OfferedTool(tool, lambda call, arguments: call(tool["function"]["name"], **arguments))


def _renamed_tool(
    name: str, rule: RenamedToolConfig, server: MCPServerConfig, key: str, known: Mapping[str, Schema],
    like: Callable[[str], list[Schema]],
) -> OfferedTool:  # fmt: skip
    schema = None
    if rule.like:
        builtin = _by_name(like(rule.like))
        _require_name(name, builtin, f"{key}.like: the environment {rule.like}", "tool")
        schema = builtin[name]
    if rule.function:
        function = import_named(rule.function, f"{key}.function", "function")

        async def answer(call: Call, arguments: dict[str, Any]) -> str:
            async def known_call(tool: str, /, **arguments: Any) -> str:
                _require_name(tool, known, f"{key}.function: {server.label}", "tool")
                return await call(tool, **arguments)

            return await maybe_await(function(known_call, **arguments))

        return OfferedTool(schema or _function_schema(name, function, key), answer)
    _require_name(rule.tool, known, f"{key}.tool: {server.label}", "tool")
    original = known[rule.tool]["function"]
    schema = schema or _renamed_schema(name, original, rule.arguments)
    _check_arguments(schema["function"]["parameters"]["properties"], original["parameters"], rule, key)

    async def call_original(call: Call, arguments: dict[str, Any]) -> str:
        renamed = {rule.arguments.get(argument, argument): value for argument, value in arguments.items()}
        return await call(rule.tool, **renamed)

    return OfferedTool(schema, call_original)


def _renamed_schema(name: str, original: Schema, arguments: Mapping[str, str]) -> Schema:
    """Return a server's schema with the policy's names; `arguments` maps the policy's to the server's."""
    policy_name = {server: policy for policy, server in arguments.items()}
    parameters = original["parameters"]
    properties = {policy_name.get(key, key): value for key, value in parameters["properties"].items()}
    required = [policy_name.get(key, key) for key in parameters.get("required", [])]
    return _function(name, {**original, "parameters": {**parameters, "properties": properties, "required": required}})


def _check_arguments(properties: Mapping[str, Any], parameters: Schema, rule: RenamedToolConfig, key: str) -> None:
    """Raise UserError unless the policy's `properties`, renamed, fit the `parameters` of the server's tool."""
    mapped = {rule.arguments.get(argument, argument) for argument in properties}
    for argument in [*rule.arguments.values(), *mapped]:
        _require_name(argument, parameters["properties"], f"{key}.arguments: {rule.tool}", "argument")
    for argument in rule.arguments:
        _require_name(argument, properties, f"{key}.arguments: the policy's tool", "argument")
    if missing := sorted(set(parameters.get("required", [])) - mapped):
        problem = f"{rule.tool} needs {missing[0]}, and no argument of the policy's tool maps to it"
        raise UserError(f"{key}.arguments: {problem}; add it, or name a function")


def _function_schema(name: str, function: Callable[..., Any], key: str) -> Schema:
    """Make a schema from a function's docstring and annotations, without its first argument, `call`."""
    from transformers.utils import get_json_schema

    def described() -> None: ...

    try:
        first, *arguments = inspect.signature(function).parameters.values()
        hints = get_type_hints(function)
        described.__name__, described.__doc__ = name, function.__doc__
        described.__annotations__ = {argument.name: hints[argument.name] for argument in arguments}
        described.__signature__ = inspect.Signature(arguments)
        return get_json_schema(described)
    except Exception as error:  # transformers has several exceptions for an incomplete docstring or annotation
        remedy = "make call its first argument, annotate the others, and describe them under Args: in its docstring"
        raise UserError(f"{key}.function cannot be a tool: {type(error).__name__}: {error}; {remedy}") from error


def _require_name(name: str, known: Mapping[str, Any], where: str, kind: str) -> None:
    if name not in known:
        near, names = suggestion(name, known), ", ".join(known) or "none"
        raise UserError(f"{where} has no {kind} {name}.{near} It has: {names}")
