"""What a policy sees of an MCP server: its tools as JSON schemas, under the names of the renaming map,
and its results as text.

A result is the text of its contents; of an image or a sound only that there is one. An error, which servers say by
`isError`, in a text that begins so, or as JSON with an `error` and nothing else, is a ToolError.
"""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, get_type_hints

from mcp_types import CallToolResult, Tool

from arenarl.config.schema import MCPServerConfig, RenamedToolConfig
from arenarl.rollout.environment import Schema, ToolError, settled, suggestion
from arenarl.system.errors import UserError
from arenarl.system.user_input import named
from arenarl.trajectory import parse_json, storable

# call(tool, **arguments) → the text that the server's tool gives; raises ToolError
Call = Callable[..., Awaitable[str]]


@dataclass(frozen=True)
class OfferedTool:
    """A tool as the policy knows it, and what answers it: `answer(call, arguments)` makes the server's calls."""

    schema: Schema
    answer: Callable[[Call, dict[str, Any]], Awaitable[str]]

    @property
    def name(self) -> str:
        return self.schema["function"]["name"]


def offered_tools(
    server: MCPServerConfig, key: str, listed: list[Schema], like: Callable[[str], list[Schema]]
) -> list[OfferedTool]:
    """What the policy gets of the tools that a server lists: those that `allow` lets through, and those of `rename`.

    Args:
        key: the server's in the config, for messages.
        like: the tools of an environment of ours, by its name.

    Raises:
        UserError: a tool or an argument that the config names is not there.
    """
    known = _by_name(listed)
    for name in server.allow or []:
        _must_be_one(name, known, f"{key}.allow: {server.says}", "tool")
    renamed = {how.tool for how in server.rename.values()}
    allowed = known.keys() if server.allow is None else known.keys() & server.allow
    own = [_as_it_is(name, tool) for tool in listed if (name := tool["function"]["name"]) in allowed - renamed]
    others = server.rename.items()
    return own + [_renamed(name, how, server, f"{key}.rename.{name}", known, like) for name, how in others]


def schema_of(tool: Tool) -> Schema:
    """In OpenAI's function form."""
    parameters = {"type": "object", "properties": {}, **tool.input_schema}
    return _function(tool.name, {"description": tool.description or "", "parameters": parameters})


def _function(name: str, fields: dict[str, Any]) -> Schema:
    """The name comes first: the chat template writes the keys in this order."""
    return {"type": "function", "function": {"name": name} | fields | {"name": name}}


def _by_name(tools: list[Schema]) -> dict[str, Schema]:
    return {tool["function"]["name"]: tool for tool in tools}


def text_of(result: CallToolResult) -> str:
    """What a call brought, as a policy reads it. Raises ToolError for an error."""
    text = "\n".join(map(_shown, result.content))
    if not result.content and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    return sound(text, bool(result.is_error))


def sound(text: str, is_error: bool = False) -> str:
    """A result's text, if it is none of an error. Raises ToolError."""
    text = storable(text)
    if is_error or text.startswith(("Error:", "Error ")):
        raise ToolError(text.removeprefix("Error: ") or "the tool failed and does not say why.")
    if text.startswith("{") and '"error"' in text[:20]:
        with suppress(ValueError):
            value = parse_json(text)
            if isinstance(value, dict) and value.keys() == {"error"}:
                raise ToolError(str(value["error"]))
    return text


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… [{len(text) - most:,} more characters]"


def _shown(content: Any) -> str:
    """One content of a result."""
    if content.type == "text":
        return content.text
    if content.type == "resource":
        hidden = f"[{content.resource.uri}, {content.resource.mime_type or 'data'}, not shown]"
        return getattr(content.resource, "text", None) or hidden
    if content.type == "resource_link":
        return f"[{content.name}: {content.uri}]"
    return f"[{content.type}, {content.mime_type}, {len(content.data) * 3 // 4:,} bytes, not shown]"


def _as_it_is(name: str, tool: Schema) -> OfferedTool:
    return OfferedTool(tool, lambda call, arguments: call(name, **arguments))


def _renamed(
    name: str,
    how: RenamedToolConfig,
    server: MCPServerConfig,
    key: str,
    known: Mapping[str, Schema],
    like: Callable[[str], list[Schema]],
) -> OfferedTool:
    schema = None
    if how.like:
        ours = _by_name(like(how.like))
        _must_be_one(name, ours, f"{key}.like: the environment {how.like}", "tool")
        schema = ours[name]
    if how.function:
        function = named(how.function, f"{key}.function", "function")

        async def answer(call: Call, arguments: dict[str, Any]) -> str:
            async def known_call(tool: str, /, **arguments: Any) -> str:
                _must_be_one(tool, known, f"{key}.function: {server.says}", "tool")
                return await call(tool, **arguments)

            return await settled(function(known_call, **arguments))

        return OfferedTool(schema or _function_schema(name, function, key), answer)
    _must_be_one(how.tool, known, f"{key}.tool: {server.says}", "tool")
    theirs = known[how.tool]["function"]
    schema = schema or _with_names(name, theirs, how.arguments)
    _check_arguments(schema["function"]["parameters"]["properties"], theirs["parameters"], how, key)

    async def call_theirs(call: Call, arguments: dict[str, Any]) -> str:
        return await call(how.tool, **{how.arguments.get(ours, ours): value for ours, value in arguments.items()})

    return OfferedTool(schema, call_theirs)


def _with_names(name: str, theirs: Schema, arguments: Mapping[str, str]) -> Schema:
    """The server's schema of a tool with the policy's names in it."""
    ours_of = {server: policy for policy, server in arguments.items()}
    parameters = theirs["parameters"]
    properties = {ours_of.get(key, key): value for key, value in parameters["properties"].items()}
    required = [ours_of.get(key, key) for key in parameters.get("required", [])]
    return _function(name, {**theirs, "parameters": {**parameters, "properties": properties, "required": required}})


def _check_arguments(ours: Mapping[str, Any], parameters: Schema, how: RenamedToolConfig, key: str) -> None:
    """The policy's arguments are the server's under the names of the map."""
    reached = {how.arguments.get(argument, argument) for argument in ours}
    for argument in [*how.arguments.values(), *reached]:
        _must_be_one(argument, parameters["properties"], f"{key}.arguments: {how.tool}", "argument")
    for argument in how.arguments:
        _must_be_one(argument, ours, f"{key}.arguments: the tool as the policy knows it", "argument")
    if missing := sorted(set(parameters.get("required", [])) - reached):
        needs = f"{how.tool} needs {missing[0]}, which no argument of the policy's stands for"
        raise UserError(f"{key}.arguments: {needs}; name a function in its place")


def _function_schema(name: str, function: Callable[..., Any], key: str) -> Schema:
    """From the docstring and the annotations of a function, without its first argument, `call`."""
    from transformers.utils import get_json_schema

    def described() -> None: ...

    try:
        first, *arguments = inspect.signature(function).parameters.values()
        hints = get_type_hints(function)
        described.__name__, described.__doc__ = name, function.__doc__
        described.__annotations__ = {argument.name: hints[argument.name] for argument in arguments}
        described.__signature__ = inspect.Signature(arguments)
        return get_json_schema(described)
    except Exception as error:  # transformers has classes of its own for what a docstring or an annotation lacks
        how = "annotate its arguments and describe them under Args: in its docstring, after a first one, call"
        raise UserError(f"{key}.function cannot be a tool: {type(error).__name__}: {error}; {how}") from error


def _must_be_one(name: str, known: Mapping[str, Any], where: str, kind: str) -> None:
    if name not in known:
        near, all_names = suggestion(name, known), ", ".join(known) or "none"
        raise UserError(f"{where} has no {kind} {name}.{near} It has: {all_names}")
