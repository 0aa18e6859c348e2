"""Clients of OpenEnv's servers (`EnvClient[Action, Observation, State]`) as environments of ours, unchanged.

A trajectory has a session of its own at `environment.server`. The action's fields are the one tool's arguments; of an
observation, all but `done`, `reward` and `metadata` is shown. An action that the server's world refuses is an
observation; what goes wrong between here and the server makes the trajectory void.
"""

import inspect
import json
import re
from collections.abc import Callable
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from arenarl.rollout.environment import Step, ToolError, check_call, settled
from arenarl.system.errors import UserError
from arenarl.system.user_input import first_problem
from arenarl.trajectory import Query

_ABOUT_THE_STEP = {"done", "reward", "metadata"}
# what a client raises then, of openenv 0.10
_OF_THE_ACTION = re.compile(r"Server error: (.*) \(code: (?:EXECUTION|VALIDATION)_ERROR\)", re.DOTALL)


def is_client(made: Any) -> bool:
    """By the name of what all clients inherit: OpenEnv need not be installed here."""
    return isinstance(made, type) and any(base.__name__ == "EnvClient" for base in made.__mro__)


def action_class(client: type) -> type[BaseModel] | None:
    """What the client says that it takes as an action; None if it takes what it likes."""
    for base in getattr(client, "__orig_bases__", ()):
        action = next(iter(get_args(base)), None)
        if isinstance(action, type) and issubclass(action, BaseModel):
            return action
    return None


class OpenEnvEnvironment:
    """An `Environment` around one client."""

    needs_answer, one_call_a_turn = False, True

    def __init__(self, client: Callable[..., Any], server: str | None):
        if server is None:
            raise UserError(
                f"environment.name: {client.__name__} is a client of OpenEnv's; "
                "set environment.server to its server's address"
            )
        self.action = action_class(client)
        if self.action is None:
            raise UserError(
                f"environment.name: {client.__name__} does not say which action it takes, "
                "of which the tool is made; name a typed client"
            )
        self.client = client(base_url=server)
        schema = self.action.model_json_schema()
        if "$ref" in schema:  # an action that holds others of its kind
            schema |= schema["$defs"][schema.pop("$ref").rpartition("/")[2]]
        schema["properties"].pop("metadata", None)
        description = inspect.cleandoc(self.action.__doc__ or "Does one action in the world.").partition("\n")[0]
        self.tools = [
            {"type": "function", "function": {"name": "act", "description": description, "parameters": schema}}
        ]

    async def reset(self, query: Query) -> str | None:
        """A query's constraints go to the server, as a seed or whatever it takes; what it shows first comes back."""
        return _text((await settled(self.client.reset(**query.constraints))).observation)

    async def call(self, name: str, arguments: dict[str, Any] | str) -> Step:
        checked = check_call(self.tools, name, arguments)
        try:
            action = self.action(**checked)
        except ValidationError as error:
            raise ToolError(first_problem(error)) from error
        try:
            result = await settled(self.client.step(action))
        except RuntimeError as error:
            if told := _OF_THE_ACTION.fullmatch(str(error)):
                raise ToolError(told[1]) from error
            raise
        return Step(_text(result.observation), bool(result.done), result.reward)

    async def close(self) -> None:
        await settled(self.client.close())


def _text(observation: Any) -> str:
    """A text as it is, several fields as JSON."""
    fields = (
        observation.model_dump(mode="json", exclude=_ABOUT_THE_STEP)
        if isinstance(observation, BaseModel)
        else observation
    )
    only = list(fields.values()) if isinstance(fields, dict) else [fields]
    return only[0] if len(only) == 1 and isinstance(only[0], str) else json.dumps(fields, ensure_ascii=False)
