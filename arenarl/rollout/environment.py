"""The environment interface of the rollout engine, and the check of tool calls that all environments share.

A wrong call gives an observation that starts with "Error: " and names the problem, so that the policy can correct it.
Any other exception of an environment is a crash, and so is a call that takes longer than `environment.timeout_s`: the
trajectory starts again in another instance, and is void if that crashes too. Only a wrong setting (UserError) or a lack
of memory stops the run.
"""

import asyncio
import inspect
import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Protocol, Self

from arenarl.rollout.arguments import Misfit, Schema, as_written, read_arguments, schema_problem
from arenarl.system.errors import MOST_SHOWN, UserError, one_line
from arenarl.trajectory import Query, parse_json

# A schema with one of these keys may allow arguments that its properties do not list.
_NAMES_MORE = {"$ref", "allOf", "anyOf", "oneOf", "patternProperties"}
LARGEST_REWARD = 1e15  # so that squares of rewards are finite in float32


@dataclass(frozen=True)
class Step:
    """The result of a tool call. `done` ends the trajectory, whose reward is the sum of its steps' rewards."""

    observation: str
    done: bool = False
    reward: float | None = None


class Environment(Protocol):
    """Tools that a policy may call during a trajectory, and the world behind them.

    Each trajectory has an instance of its own, unless it is `shared`. `reset`, `call`, `score` and `close` may be
    async. An attribute that an environment lacks has the default below.
    """

    tools: list[Schema]  # JSON schemas in OpenAI's function form, as chat templates take them
    shared: bool = False  # one instance serves all trajectories at once; it keeps no state between calls
    reusable: bool = False  # `reset` restores the initial state, so an instance serves several trajectories in turn
    # False: the world ends a trajectory. Running out of turns is then valid, and a turn without a call gets an error.
    needs_answer: bool = True
    may_stop: bool = False  # if needs_answer is False: a turn without a call ends the trajectory too
    one_call_a_turn: bool = False  # a turn with several calls gets an error, and none of them runs

    def reset(self, query: Query) -> str | None:
        """Start the world for a trajectory, in the same state for the same query, as in a group.
        Return a first observation, shown below the query, or None."""

    def call(self, name: str, arguments: dict[str, Any] | str) -> str | Step:
        """Run a tool call and return its observation. Raises ToolError for a call that cannot run."""

    def score(self) -> float | None:
        """Return the trajectory's reward at its end, which replaces its steps' sum. None: the sum stays."""

    def take_metrics(self) -> dict[str, list[float]]:
        """Return the values of each metric since the last call; the log takes their mean."""

    def close(self) -> None:
        """Free the instance. Called once after its last trajectory, however that ended; never if it is shared."""


def trait(environment: Environment, name: str) -> bool:
    """Return an attribute of the environment, or the protocol's default. Raises ToolCrash."""
    with wrap_crashes():
        return bool(getattr(environment, name, getattr(Environment, name)))


class ToolError(Exception):
    """A tool call that cannot run. The policy sees the message."""


class ToolCrash(Exception):
    """An unexpected exception of an environment, kept as `__cause__`."""


@contextmanager
def wrap_crashes() -> Iterator[None]:
    """Convert an environment's exceptions to ToolCrash, except UserError, MemoryError, Ctrl-C and a cancelled task."""
    try:
        yield
    except (UserError, MemoryError, KeyboardInterrupt, GeneratorExit):
        raise
    except asyncio.CancelledError as error:
        with suppress(RuntimeError):  # no running loop
            if (task := asyncio.current_task()) and task.cancelling():
                raise
        # the environment cancelled a task of its own
        raise ToolCrash(f"CancelledError: {one_line(error, MOST_SHOWN)}") from error
    except BaseException as error:  # SystemExit, and a panic of a library in Rust, derive from BaseException only
        raise ToolCrash(f"{type(error).__name__}: {one_line(error, MOST_SHOWN)}") from error


async def maybe_await(value: Any) -> Any:
    """Return the value, awaited first if it is awaitable."""
    return await value if inspect.isawaitable(value) else value


async def begin(environment: Environment, query: Query) -> str | None:
    """Reset the environment and return its first observation. Raises ToolCrash, or UserError if it is not a text.
    `reset` gets a copy of the query, so it cannot change the constraints of other trajectories or of the truth."""
    with wrap_crashes():
        observation = await maybe_await(environment.reset(deepcopy(query)))
        if not isinstance(observation, str | None):
            problem = f"reset returned a {type(observation).__name__}; return the text that is seen first, or None"
            raise UserError(f"environment.name: {problem}")
        return observation and plain_text(observation)


async def step(environment: Environment, name: str, arguments: dict[str, Any] | str) -> Step:
    """Run a call and return its result; a ToolError becomes an observation. Raises ToolCrash.
    The environment gets a copy of the arguments, so it cannot change the trajectory's record."""
    with wrap_crashes():
        try:
            result = await maybe_await(environment.call(name, deepcopy(arguments)))
        except ToolError as error:
            return Step(f"Error: {error}")
        result = result if isinstance(result, Step) else Step(result)
        if not isinstance(result.observation, str):
            raise TypeError(f"the tool {name} returned a {type(result.observation).__name__}, not text")
        reward = None if result.reward is None else _finite_reward(result.reward)
        return replace(result, observation=plain_text(result.observation), done=bool(result.done), reward=reward)


def plain_text(text: str) -> str:
    """Return a text without its class: Markup of Jinja would escape the chat template's own marks."""
    return str.__str__(text)


async def final_score(environment: Environment) -> float | None:
    """Return the environment's score for a trajectory that has ended, None if it gives none. Raises ToolCrash."""
    with wrap_crashes():
        score = await maybe_await(environment.score())
        return None if score is None else _finite_reward(score)


def sum_of_rewards(rewards: Iterable[float]) -> float:
    """Return the sum of a trajectory's rewards, which does not depend on their order. Raises ToolCrash."""
    with wrap_crashes():
        return _finite_reward(math.fsum(rewards))


def _finite_reward(reward: Any) -> float:
    if not abs(reward) <= LARGEST_REWARD:
        raise ValueError(f"the reward {reward} is not finite, or beyond ±{LARGEST_REWARD:g}")
    return float(reward)


async def observe(environment: Environment, name: str, arguments: dict[str, Any] | str) -> str:
    """Run a call and return its observation. Raises ToolCrash."""
    return (await step(environment, name, arguments)).observation


def tool_schema(name: str, description: str, properties: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    """Return a tool's schema in OpenAI's function form; arguments are required unless `optional` lists them."""
    required = [argument for argument in properties if argument not in optional]
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def check_call(tools: list[Schema], name: str, arguments: dict[str, Any] | str) -> dict[str, Any]:
    """Return the arguments converted to the schema's types, without optional arguments that are null.
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
        raise ToolError(f"{misfit.place or name} {misfit}.") from misfit


def check_tools(tools: list[Schema]) -> None:
    """Raise UserError for a tool that is not in OpenAI's function form or whose parameters are not a JSON schema."""
    if not isinstance(tools, list | tuple):
        raise UserError(f"environment.name: its tools are a {type(tools).__name__}; make them a list of JSON schemas")
    names: set[str] = set()
    for number, tool in enumerate(tools, start=1):
        function = tool.get("function") if isinstance(tool, dict) else None
        function = function if isinstance(function, dict) else {}
        name = function.get("name")
        if not (isinstance(name, str) and name and "parameters" in function):
            remedy = "make it with tool_schema(name, description, properties)"
            raise UserError(f"environment.name: tool {number} is not in OpenAI's function form; {remedy}")
        if problem := schema_problem(function["parameters"]):
            raise UserError(
                f"environment.name: the parameters of its tool {name} are not a valid JSON schema: {problem}"
            )
        if name in names:
            raise UserError(f"environment.name: two of its tools are called {name}; give each a name of its own")
        names.add(name)
        try:
            json.dumps(tool)
        except (TypeError, ValueError) as error:
            raise UserError(f"environment.name: its tool {name} does not consist of JSON values: {error}") from error


def suggestion(name: str, valid: Iterable[str]) -> str:
    """Return a question with the valid name nearest to a wrong name, or "" if none is near."""
    return "".join(f' Did you mean "{match}"?' for match in get_close_matches(name, valid, n=1))


class NoTools:
    """An `Environment` without tools, for writing: a trajectory is a single turn with a thought and a text."""

    shared = True
    tools: list[Schema] = []

    @classmethod
    def from_config(cls, config: Any, language: str, client: Any = None) -> Self:
        return cls()

    def reset(self, query: Query) -> None:
        pass

    def call(self, name: str, arguments: dict[str, Any] | str) -> str:
        raise ToolError("there are no tools; reply with your text")
