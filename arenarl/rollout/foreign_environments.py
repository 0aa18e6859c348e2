"""Environments written for others, unchanged: TRL's `environment_factory` classes, and clients of OpenEnv's servers.

A class of TRL's has `reset(**row)`, public methods that are its tools, and perhaps `get_reward()`; a trajectory ends
with a turn that calls none. It may also say `done` and `reward`, as its authors' reward functions read them. Of what
its methods raise the policy gets to see what says that a call was wrong, as in TRL: a ValueError, TypeError and the
like, or an exception of the class's own module. A method that is not async is called as such: its result is there at
once, so that the trajectories of a step stay in one batch.

A client of OpenEnv's (`EnvClient[Action, Observation, State]`) has a session for each trajectory at
`environment.server`. The action's fields are the one tool's arguments; of an observation, all but `done`, `reward` and
`metadata` is shown. An action that the server's world refuses is an observation.

Whatever else goes wrong, a server that is gone or a library that fails, makes the trajectory void.
"""

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from arenarl.rollout.environment import Step, ToolError, check_call, settled
from arenarl.system.errors import UserError
from arenarl.system.user_input import first_problem
from arenarl.trajectory import Query, text_of

_NO_TOOLS = ("reset", "get_reward", "close")
_OF_THE_CALL = (ValueError, TypeError, LookupError, ArithmeticError, AssertionError)
_ABOUT_THE_STEP = {"done", "reward", "metadata"}
# what a client raises then, of openenv 0.10
_OF_THE_ACTION = re.compile(r"Server error: (.*) \(code: (?:EXECUTION|VALIDATION)_ERROR\)", re.DOTALL)


class TRLEnvironment:
    """An `Environment` around one instance of a class for TRL."""

    needs_answer, may_stop, reusable = False, True, True  # TRL makes an instance once and resets it often

    def __init__(self, inner: Any):
        from transformers.utils import get_json_schema

        self.inner, kind = inner, type(inner)
        if not callable(getattr(inner, "reset", None)):
            lacks = "has neither call and tools, nor reset and public methods, as TRL's environments do"
            raise UserError(f"environment.name: {kind.__name__} {lacks}")
        methods = [name for name, _ in inspect.getmembers(kind, inspect.isfunction)]
        try:
            self.tools = [
                get_json_schema(getattr(inner, name)) for name in methods if name[0] != "_" and name not in _NO_TOOLS
            ]
        except Exception as error:  # transformers has classes of its own for what a docstring or an annotation lacks
            raise UserError(f"environment.name: a method of {kind.__name__} cannot be a tool: {error}") from error

    def reset(self, query: Query) -> str | None | Awaitable[str | None]:
        """With the fields of the query and its constraints as TRL's row, as far as the class asks for them."""
        fields = {"query_id": query.query_id, "subtask": query.subtask, "language": query.language}
        row = {"prompt": query.query, **fields, **query.constraints}
        wanted = inspect.signature(self.inner.reset).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in wanted.values())
        shown = self.inner.reset(**{key: value for key, value in row.items() if takes_all or key in wanted})
        return _joined_later(shown) if inspect.isawaitable(shown) else _joined(shown)

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
        return Step(str(_joined(result)), done=getattr(self.inner, "done", False) is True)

    @contextmanager
    def _tool_errors(self) -> Iterator[None]:
        """Raises ToolError for what says that a call was wrong."""
        try:
            yield
        except Exception as error:
            is_of_the_call = isinstance(error, _OF_THE_CALL) or type(error).__module__ == type(self.inner).__module__
            if isinstance(error, OSError) or not is_of_the_call:
                raise
            raise ToolError(str(error) or type(error).__name__) from error


def _joined(shown: Any) -> Any:
    """The text of content blocks, if that is all they hold; anything else as it is."""
    is_list = isinstance(shown, list) and bool(shown)
    is_text = is_list and all(isinstance(block, dict) and block.get("type") == "text" for block in shown)
    return text_of(shown) if is_text else shown


async def _joined_later(shown: Awaitable[Any]) -> Any:
    return _joined(await shown)


def is_client(made: Any) -> bool:
    """By the name of what all clients inherit: OpenEnv need not be installed here."""
    return isinstance(made, type) and any(base.__name__ == "EnvClient" for base in made.__mro__)


class OpenEnvEnvironment:
    """An `Environment` around one client."""

    needs_answer, one_call_a_turn = False, True

    def __init__(self, client: Callable[..., Any], server: str | None):
        if server is None:
            remedy = "set environment.server to its server's address"
            raise UserError(f"environment.name: {client.__name__} is a client of OpenEnv's; {remedy}")
        self.action = action_class(client)
        if self.action is None:
            lacks = "does not say which action it takes, of which the tool is made; name a typed client"
            raise UserError(f"environment.name: {client.__name__} {lacks}")
        self.client = client(base_url=server)
        schema = self.action.model_json_schema()
        if "$ref" in schema:  # an action that holds others of its kind
            schema |= schema["$defs"][schema.pop("$ref").rpartition("/")[2]]
        schema["properties"].pop("metadata", None)
        description = inspect.cleandoc(self.action.__doc__ or "Does one action in the world.").partition("\n")[0]
        function = {"name": "act", "description": description, "parameters": schema}
        self.tools = [{"type": "function", "function": function}]

    async def reset(self, query: Query) -> str | None:
        """A query's constraints go to the server, as a seed or whatever it takes; what it shows first comes back."""
        return _shown((await settled(self.client.reset(**query.constraints))).observation)

    async def call(self, name: str, arguments: dict[str, Any] | str) -> Step:
        checked = check_call(self.tools, name, arguments)
        try:
            action = self.action(**checked)
        except ValidationError as error:
            raise ToolError(first_problem(error)) from error
        try:
            result = await settled(self.client.step(action))
        except RuntimeError as error:
            if refusal := _OF_THE_ACTION.fullmatch(str(error)):
                raise ToolError(refusal[1]) from error
            raise
        return Step(_shown(result.observation), bool(result.done), result.reward)

    async def close(self) -> None:
        await settled(self.client.close())


def action_class(client: type) -> type[BaseModel] | None:
    """What the client says that it takes as an action; None if it takes what it likes."""
    for base in getattr(client, "__orig_bases__", ()):
        action = next(iter(get_args(base)), None)
        if isinstance(action, type) and issubclass(action, BaseModel):
            return action
    return None


def _shown(observation: Any) -> str:
    """A text as it is, several fields as JSON."""
    if isinstance(observation, BaseModel):
        observation = observation.model_dump(mode="json", exclude=_ABOUT_THE_STEP)
    values = list(observation.values()) if isinstance(observation, dict) else [observation]
    is_text = len(values) == 1 and isinstance(values[0], str)
    return values[0] if is_text else json.dumps(observation, ensure_ascii=False)
