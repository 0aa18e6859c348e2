"""What the rollout engine needs from an environment, and the checking of tool calls that all environments share.

A wrong call is an observation like any other: it starts with "Error: " and says what is wrong, so that the policy can mend it. Whatever
else a tool raises is a fault of the tool's, and never ends a run: the trajectory is void. Only a setting that is wrong does (UserError).
"""

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from difflib import get_close_matches
from typing import Any, Protocol

from arenarl.system.errors import UserError
from arenarl.trajectory import parse_json

Schema = dict[str, Any]
MAX_QUOTED = 80  # characters of a wrong value that an error repeats


class Environment(Protocol):
    """Tools a policy may call during a trajectory. One environment serves many trajectories at once.

    It may also have `take_metrics()`: by name, what is to be logged of the calls since it was last asked, as the values whose mean it is.
    """

    tools: list[Schema]  # JSON schemas in OpenAI's function form, ready for a chat template

    def reset(self, query: Any) -> None:
        """Called with the `Query` before the first call of a trajectory."""

    def call(self, name: str, arguments: dict[str, Any] | str) -> str:
        """The observation, or a ToolError for a call that cannot be carried out. May also be async: the rollout engine awaits awaitables."""


class ToolError(Exception):
    """A tool call that cannot be carried out. The policy gets to see the message."""


class ToolCrash(Exception):
    """What a tool raised that is no ToolError stands behind it as its cause."""


@contextmanager
def crashing() -> Iterator[None]:
    """Around what an environment does: raises ToolCrash for all but a wrong setting and a machine without memory."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise ToolCrash(f"{type(error).__name__}: {error}") from error


async def observe(environment: Environment, name: str, arguments: dict[str, Any] | str) -> str:
    """What a call returns, whether the environment's `call` is async or not, or what its ToolError says. Raises ToolCrash.

    The environment has a copy of the arguments: whatever it does with them, the trajectory shows what the policy wrote.
    """
    with crashing():
        try:
            observation = environment.call(name, deepcopy(arguments))
            observation = await observation if inspect.isawaitable(observation) else observation
        except ToolError as error:
            return f"Error: {error}"
        if not isinstance(observation, str):
            raise TypeError(f"the tool {name} returned a {type(observation).__name__}, not text")
        return observation


def tool_schema(name: str, description: str, properties: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    """One tool in OpenAI's function form; what is not optional is required."""
    required = [argument for argument in properties if argument not in optional]
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def check_call(tools: list[Schema], name: str, arguments: dict[str, Any] | str) -> dict[str, Any]:
    """The arguments, converted to the schema's types. Optional ones that are null are left out.

    Raises:
        ToolError: unknown tool, malformed JSON, or a missing, unknown or mistyped argument.
    """
    given = _as_object(arguments)
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    if name not in schemas:
        raise ToolError(f"unknown tool {quoted(name)}.{_nearest(name, list(schemas))} Tools: {', '.join(schemas)}.")
    properties, required = schemas[name]["properties"], schemas[name]["required"]
    given = {key: value for key, value in given.items() if value is not None or key not in properties}
    for key in given:
        if key not in properties:
            raise ToolError(f"{name} has no argument {quoted(key)}.{_nearest(key, list(properties))} Arguments: {', '.join(properties)}.")
    missing = [key for key in required if key not in given]
    if missing:
        raise ToolError(f"{name} needs the argument{'s' * (len(missing) > 1)} {', '.join(missing)}.")
    return {key: _convert(key, value, properties[key]) for key, value in given.items()}


def quoted(value: Any) -> str:
    """What the policy wrote, as JSON, shortened, and safe to tokenise: JSON escapes can spell lone surrogates."""
    text = json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()
    return text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 1] + "…"


def _as_object(arguments: dict[str, Any] | str) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except ValueError as error:
            raise ToolError(f"the arguments are not valid JSON ({error}).") from error
    if not isinstance(arguments, dict):
        raise ToolError(f"the arguments must be a JSON object, not {quoted(arguments)}.")
    return arguments


def _convert(key: str, value: Any, schema: Schema) -> Any:
    """The value in the schema's type. Numbers may be written as strings, as models often do."""
    if schema["type"] == "number":
        try:
            return float(value if isinstance(value, int | float | str) and not isinstance(value, bool) else "")
        except (ValueError, OverflowError) as error:
            raise ToolError(f"{key} must be a number, not {quoted(value)}.") from error
    if not isinstance(value, str):
        raise ToolError(f"{key} must be a string, not {quoted(value)}.")
    if value not in schema.get("enum", [value]):
        raise ToolError(f"{key} must be one of {', '.join(schema['enum'])}, not {quoted(value)}.")
    return value


def _nearest(name: str, valid: list[str]) -> str:
    matches = get_close_matches(name, valid, n=1)
    return f' Did you mean "{matches[0]}"?' if matches else ""
