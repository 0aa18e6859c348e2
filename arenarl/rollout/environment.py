"""What the rollout engine needs from an environment, and the checking of tool calls that all environments share.

A wrong call is an observation like any other: it starts with "Error: " and says what is wrong, so that the policy can
mend it. Whatever else an environment raises is a fault of its own, and never ends a run: the trajectory begins once
more in another instance, and is void if that crashes too. Only a setting that is wrong does (UserError).
"""

import asyncio
import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Protocol

from arenarl.rollout.arguments import Misfit, Schema, as_written, read_arguments, schema_fault
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, parse_json

# with one of these a schema may have arguments that its properties lack
_NAMES_MORE = {"$ref", "allOf", "anyOf", "oneOf", "patternProperties"}


@dataclass(frozen=True)
class Step:
    """What a world with a state answers to a call: a text, whether that was the end, and a reward,
    of which a trajectory gets the sum."""

    observation: str
    done: bool = False
    reward: float | None = None


class Environment(Protocol):
    """Tools a policy may call during a trajectory, and the world behind them:
    an instance of its own for each, unless it is `shared`.

    `reset`, `call`, `score` and `close` may be async. What is not there is as it stands here.
    """

    tools: list[Schema]  # JSON schemas in OpenAI's function form, ready for a chat template
    shared = False  # one instance serves all trajectories at once: it keeps nothing between calls
    reusable = False  # `reset` makes it as good as new, so that it serves one trajectory after another
    # False: the world ends a trajectory. One whose turns are up is valid,
    # and a turn without a call is told so and goes on
    needs_answer = True
    may_stop = False  # of such a world: a turn without a call ends the trajectory too
    one_call_a_turn = False  # a turn with more gets an error, and none of them is made

    def reset(self, query: Query) -> str | None:
        """Called before the first call of a trajectory, to begin the same world for the same query: a group is one
        query's trajectories. What is to be seen then, shown below the query; None: nothing."""

    def call(self, name: str, arguments: dict[str, Any] | str) -> str | Step:
        """What is to be seen after it, or a ToolError for a call that cannot be carried out."""

    def score(self) -> float | None:
        """At a trajectory's end, in place of the sum of its steps' rewards."""

    def take_metrics(self) -> dict[str, list[float]]:
        """By name, what is to be logged of the calls since it was last asked, as the values whose mean it is."""

    def close(self) -> None:
        """Once for each instance that is not shared, at the end of its last trajectory, however that ended."""


def trait(environment: Environment, name: str) -> bool:
    """One of the attributes above, as the environment or the protocol has it."""
    return getattr(environment, name, getattr(Environment, name))


class ToolError(Exception):
    """A tool call that cannot be carried out. The policy gets to see the message."""


class ToolCrash(Exception):
    """What a tool raised that is no ToolError stands behind it as its cause."""


@contextmanager
def crashing() -> Iterator[None]:
    """Around what an environment does: raises ToolCrash for all but a wrong setting, a machine without memory,
    and who ends what runs here."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and _is_cancelled():
            raise
        raise ToolCrash(f"{type(error).__name__}: {error}") from error


def _is_cancelled() -> bool:
    """Whether somebody has asked what runs here to end; a world may also raise CancelledError of its own."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs
        return False
    return task is not None and task.cancelling() > 0


async def settled(value: Any) -> Any:
    """What a function returned, whether it is async or not."""
    return await value if inspect.isawaitable(value) else value


async def begin(environment: Environment, query: Query) -> str | None:
    """What a world shows first. Raises ToolCrash, and UserError where `reset` returns what cannot be shown,
    as it would each time.

    The environment has a copy of the query: whatever it does with the constraints,
    the other trajectories and the truth find them as they were.
    """
    with crashing():
        seen = await settled(environment.reset(deepcopy(query)))
        if seen is not None and not isinstance(seen, str):
            raise UserError(
                f"environment.name: reset must return the text that is seen first, or None, not a {type(seen).__name__}"
            )
        return seen


async def step(environment: Environment, name: str, arguments: dict[str, Any] | str) -> Step:
    """What a call brings, or what its ToolError says. Raises ToolCrash.

    The environment has a copy of the arguments: whatever it does with them, the trajectory shows what the policy wrote.
    """
    with crashing():
        try:
            taken = await settled(environment.call(name, deepcopy(arguments)))
        except ToolError as error:
            return Step(f"Error: {error}")
        taken = taken if isinstance(taken, Step) else Step(taken)
        if not isinstance(taken.observation, str):
            raise TypeError(f"the tool {name} returned a {type(taken.observation).__name__}, not text")
        return taken if taken.reward is None else replace(taken, reward=finite(taken.reward))


def finite(reward: Any) -> float:
    """A reward as a number. Raises ValueError where it is none to train on."""
    if not math.isfinite(reward):
        raise ValueError(f"the reward {reward}")
    return float(reward)


async def observe(environment: Environment, name: str, arguments: dict[str, Any] | str) -> str:
    """What is to be seen after a call. Raises ToolCrash."""
    return (await step(environment, name, arguments)).observation


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
        raise ToolError(f"unknown tool {as_written(name)}.{nearest(name, list(schemas))} Tools: {', '.join(schemas)}.")
    properties = schemas[name].get("properties", {})
    names_all = schemas[name].get("additionalProperties", False) is False and not _NAMES_MORE & schemas[name].keys()
    for key in given:
        if names_all and key not in properties:
            raise ToolError(
                f"{name} has no argument {as_written(key)}.{nearest(key, list(properties))} Arguments: "
                f"{', '.join(properties)}."
            )
    try:
        return read_arguments(given, schemas[name])
    except Misfit as misfit:
        place, written = misfit.place or name, f", not {as_written(misfit.value)}" if misfit.has_other_value else ""
        raise ToolError(f"{place} {misfit}{written}.") from misfit


def check_tools(tools: list[Schema]) -> None:
    """Raises UserError, naming the tool, if one is not in OpenAI's function form,
    or its parameters are no JSON schema."""
    for number, tool in enumerate(tools, start=1):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not (isinstance(function, dict) and isinstance(function.get("name"), str) and "parameters" in function):
            raise UserError(
                f"environment.name: tool {number} is not in OpenAI's function form; "
                "tool_schema(name, description, properties) makes it"
            )
        if fault := schema_fault(function["parameters"]):
            raise UserError(
                f"environment.name: the parameters of its tool {function['name']} are no JSON schema: {fault}"
            )


def _as_object(arguments: dict[str, Any] | str) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except ValueError as error:
            raise ToolError(f"the arguments are not valid JSON ({error}).") from error
    if not isinstance(arguments, dict):
        raise ToolError(f"the arguments must be a JSON object, not {as_written(arguments)}.")
    return arguments


def nearest(name: str, valid: list[str]) -> str:
    matches = get_close_matches(name, valid, n=1)
    return f' Did you mean "{matches[0]}"?' if matches else ""
