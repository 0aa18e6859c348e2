"""What the rollout engine needs from an environment, and the checking of tool calls that all environments share.

A wrong call is an observation like any other: it starts with "Error: " and says what is wrong, so that the policy can
mend it. Whatever else an environment raises is a fault of its own, and never ends a run: the trajectory begins once
more in another instance, and is void if that crashes too. Only a setting that is wrong does (UserError).
"""

import asyncio
import inspect
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Protocol, Self

from arenarl.rollout.arguments import Misfit, Schema, as_written, read_arguments, schema_fault
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, parse_json

# with one of these a schema may have arguments that its properties lack
_NAMES_MORE = {"$ref", "allOf", "anyOf", "oneOf", "patternProperties"}


@dataclass(frozen=True)
class Step:
    """What a world answers to a call: a text, whether it ended, and a reward; a trajectory gets the rewards' sum."""

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
    and the end of the task that runs here."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except asyncio.CancelledError as error:
        with suppress(RuntimeError):  # no loop runs
            if (task := asyncio.current_task()) and task.cancelling():
                raise
        raise ToolCrash(f"CancelledError: {error}") from error  # of the world's own
    except (Exception, SystemExit) as error:
        raise ToolCrash(f"{type(error).__name__}: {error}") from error


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
        if not isinstance(seen, str | None):
            wanted = "reset must return the text that is seen first, or None"
            raise UserError(f"environment.name: {wanted}, not a {type(seen).__name__}")
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
    """Return the arguments, converted to the schema's types, without optional ones that are null.
    Raises ToolError for an unknown tool, malformed JSON, or a missing, unknown or mistyped argument."""
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except ValueError as error:
            raise ToolError(f"the arguments are not valid JSON ({error}).") from error
    if not isinstance(arguments, dict):
        raise ToolError(f"the arguments must be a JSON object, not {as_written(arguments)}.")
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    if name not in schemas:
        raise ToolError(f"unknown tool {as_written(name)}.{suggestion(name, schemas)} Tools: {', '.join(schemas)}.")
    schema, known = schemas[name], schemas[name].get("properties", {})
    names_all = schema.get("additionalProperties", False) is False and not _NAMES_MORE & schema.keys()
    for key in arguments:
        if names_all and key not in known:
            near = suggestion(key, known)
            raise ToolError(f"{name} has no argument {as_written(key)}.{near} Arguments: {', '.join(known)}.")
    try:
        return read_arguments(arguments, schema)
    except Misfit as misfit:
        written = f", not {as_written(misfit.value)}" if misfit.has_other_value else ""
        raise ToolError(f"{misfit.place or name} {misfit}{written}.") from misfit


def check_tools(tools: list[Schema]) -> None:
    """Raises UserError for a tool that is not in OpenAI's function form, or whose parameters are no JSON schema."""
    for number, tool in enumerate(tools, start=1):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not (isinstance(function, dict) and isinstance(function.get("name"), str) and "parameters" in function):
            remedy = "tool_schema(name, description, properties) makes it"
            raise UserError(f"environment.name: tool {number} is not in OpenAI's function form; {remedy}")
        if fault := schema_fault(function["parameters"]):
            parameters = f"the parameters of its tool {function['name']}"
            raise UserError(f"environment.name: {parameters} are no JSON schema: {fault}")


def suggestion(name: str, valid: Iterable[str]) -> str:
    """The valid name nearest to a wrong one, as a question; empty where none is near."""
    return "".join(f' Did you mean "{match}"?' for match in get_close_matches(name, valid, n=1))


class NoTools:
    """An `Environment` without tools, for writing: a trajectory is the query, thinking and a text, in one turn."""

    shared = True
    tools: list[Schema] = []

    @classmethod
    def from_config(cls, config: Any, language: str, client: Any = None) -> Self:
        return cls()

    def reset(self, query: Query) -> None:
        """Nothing to begin."""

    def call(self, name: str, arguments: dict[str, Any] | str) -> str:
        raise ToolError("there are no tools; reply with your text")
