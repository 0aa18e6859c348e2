"""Adapters for environments of other projects: TRL's `environment_factory` classes and OpenEnv's clients.

A TRL class has `reset(**row)`, public methods that are its tools, and maybe `get_reward()`. A turn without a call ends
the trajectory; so does the attribute `done`. As in TRL, the policy sees a ValueError, TypeError and the like, and any
exception of the class's own module. Methods that are not async return at once, which keeps a step's batch whole.

An OpenEnv client (`EnvClient[Action, Observation, State]`) opens a session at `environment.server` for each trajectory.
The action's fields are the arguments of its only tool. The policy sees an observation without `done`, `reward` and
`metadata`. An action that the server's world refuses gives an error as observation.

Any other failure, such as a lost server, makes the trajectory void.
"""

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from arenarl.rollout.environment import Step, ToolError, check_call, maybe_await
from arenarl.system.errors import UserError
from arenarl.system.user_input import first_problem
from arenarl.trajectory import Query, text_of

_NO_TOOLS = ("reset", "get_reward", "close")
_CALL_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, AssertionError)
_HIDDEN_FIELDS = {"done", "reward", "metadata"}
# the error of openenv 0.10's clients for a refused action
_REFUSED_ACTION = re.compile(r"Server error: (.*) \(code: (?:EXECUTION|VALIDATION)_ERROR\)", re.DOTALL)


class TRLEnvironment:
    """An `Environment` around an instance of a TRL class."""

    needs_answer, may_stop, reusable = False, True, True  # TRL resets an instance many times

    def __init__(self, inner: Any):
        from transformers.utils import get_json_schema

        self.inner, kind = inner, type(inner)
        if not callable(getattr(inner, "reset", None)):
            problem = "has neither call and tools, nor reset and public methods as TRL's environments have"
            raise UserError(f"environment.name: {kind.__name__} {problem}")
        methods = [name for name, _ in inspect.getmembers(kind, inspect.isfunction)]
        names = [name for name in methods if not name.startswith("_") and name not in _NO_TOOLS]
        try:
            self.tools = [get_json_schema(getattr(inner, name)) for name in names]
        except Exception as error:  # transformers has several exceptions for an incomplete docstring or annotation
            raise UserError(f"environment.name: a method of {kind.__name__} cannot be a tool: {error}") from error

    def reset(self, query: Query) -> str | None | Awaitable[str | None]:
        """Pass the query's fields and constraints, as a TRL row, to the parameters that the class's `reset` has."""
        fields = {"query_id": query.query_id, "subtask": query.subtask, "language": query.language}
        row = {"prompt": query.query, **fields, **query.constraints}
        parameters = inspect.signature(self.inner.reset).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        result = self.inner.reset(**{key: value for key, value in row.items() if takes_all or key in parameters})
        return _join_blocks_later(result) if inspect.isawaitable(result) else _join_blocks(result)

    def call(self, name: str, arguments: dict[str, Any] | str) -> Step | Awaitable[Step]:
        checked = check_call(self.tools, name, arguments)
        with self._tool_errors():
            result = getattr(self.inner, name)(**checked)
        return self._later(result) if inspect.isawaitable(result) else self._step(result)

    def score(self) -> float | None | Awaitable[float | None]:
        return self.inner.get_reward() if hasattr(self.inner, "get_reward") else getattr(self.inner, "reward", None)

    def close(self) -> Any:
        return self.inner.close() if hasattr(self.inner, "close") else None

    async def _later(self, result: Awaitable[Any]) -> Step:
        with self._tool_errors():
            result = await result
        return self._step(result)

    def _step(self, result: Any) -> Step:
        return Step(str(_join_blocks(result)), done=_is_true(getattr(self.inner, "done", False)))

    @contextmanager
    def _tool_errors(self) -> Iterator[None]:
        """Convert an exception to ToolError if it means that the call was wrong."""
        try:
            yield
        except Exception as error:
            is_call_error = isinstance(error, _CALL_ERRORS) or type(error).__module__ == type(self.inner).__module__
            if isinstance(error, OSError) or not is_call_error:
                raise
            raise ToolError(str(error) or type(error).__name__) from error


def _is_true(value: Any) -> bool:
    """Return True for True, also in numpy's or torch's type; False for any other value, such as a list or a method."""
    is_array = str(getattr(value, "dtype", "")) in ("bool", "torch.bool")
    return value is True or (is_array and bool(value.all()))


def _join_blocks(result: Any) -> Any:
    """Return the joined text of a list of text blocks; return anything else unchanged."""
    is_list = isinstance(result, list) and bool(result)
    is_text = is_list and all(isinstance(block, dict) and block.get("type") == "text" for block in result)
    return text_of(result) if is_text else result


async def _join_blocks_later(result: Awaitable[Any]) -> Any:
    return _join_blocks(await result)


def is_client(named: Any) -> bool:
    """Return True for an OpenEnv client, recognised by its base's name, so OpenEnv need not be installed here."""
    return isinstance(named, type) and any(base.__name__ == "EnvClient" for base in named.__mro__)


class OpenEnvEnvironment:
    """An `Environment` around an OpenEnv client."""

    needs_answer, one_call_a_turn = False, True

    def __init__(self, client: Callable[..., Any], server: str | None):
        if server is None:
            remedy = "set environment.server to its server's address"
            raise UserError(f"environment.name: {client.__name__} is an OpenEnv client without a server; {remedy}")
        self.action = _action_class(client)
        if self.action is None:
            problem = "does not declare its action's type, which defines the tool; name a typed client"
            raise UserError(f"environment.name: {client.__name__} {problem}")
        self.client = client(base_url=server)
        schema = self.action.model_json_schema()
        if "$ref" in schema:  # a recursive action
            schema |= schema["$defs"][schema.pop("$ref").rpartition("/")[2]]
        schema["properties"].pop("metadata", None)
        description = inspect.cleandoc(self.action.__doc__ or "Does one action in the world.").partition("\n")[0]
        function = {"name": "act", "description": description, "parameters": schema}
        self.tools = [{"type": "function", "function": function}]

    async def reset(self, query: Query) -> str | None:
        """Pass the query's constraints to the server, for example a seed, and return its first observation."""
        return _observation((await maybe_await(self.client.reset(**query.constraints))).observation)

    async def call(self, name: str, arguments: dict[str, Any] | str) -> Step:
        checked = check_call(self.tools, name, arguments)
        try:
            action = self.action(**checked)
        except ValidationError as error:
            raise ToolError(first_problem(error)) from error
        try:
            result = await maybe_await(self.client.step(action))
        except RuntimeError as error:
            if refusal := _REFUSED_ACTION.fullmatch(str(error)):
                raise ToolError(refusal[1]) from error
            raise
        return Step(_observation(result.observation), bool(result.done), result.reward)

    async def close(self) -> None:
        await maybe_await(self.client.close())


def _action_class(client: type) -> type[BaseModel] | None:
    """Return the action type in the client's type arguments, or None if it declares none."""
    for base in getattr(client, "__orig_bases__", ()):
        action = next(iter(get_args(base)), None)
        if isinstance(action, type) and issubclass(action, BaseModel):
            return action
    return None


def _observation(observation: Any) -> str:
    """Return the only text of an observation, or several fields as JSON."""
    if isinstance(observation, BaseModel):
        observation = observation.model_dump(mode="json", exclude=_HIDDEN_FIELDS)
    values = list(observation.values()) if isinstance(observation, dict) else [observation]
    is_text = len(values) == 1 and isinstance(values[0], str)
    return values[0] if is_text else json.dumps(observation, ensure_ascii=False)
