"""Classes written for TRL's `environment_factory`, and so OpenEnv's clients inside of one, as environments of ours, unchanged.

Such a class has `reset(**row)`, public methods that are its tools, and perhaps `get_reward()`; a trajectory ends with a turn that calls
none. It may also say `done` and `reward`, as its authors' reward functions read them. What its methods raise the policy gets to see, as in
TRL; but what goes wrong between machines (OSError: connections, time-outs) is no fault of the policy's, and makes the trajectory void.
"""

import inspect
from collections.abc import Callable
from typing import Any

from arenarl.rollout.environment import Step, ToolError, check_call, settled
from arenarl.system.errors import UserError
from arenarl.trajectory import Query

_NO_TOOLS = ("reset", "get_reward", "close")


class TRLEnvironment:
    """An `Environment` around one instance of such a class."""

    needs_answer, may_stop, reusable = False, True, True  # TRL makes an instance once and resets it often

    def __init__(self, make: Callable[[], Any]):
        from transformers.utils import get_json_schema

        self.inner = make()
        if not callable(getattr(self.inner, "reset", None)):
            raise UserError(f"environment.name: {make.__name__} has neither call and tools, nor reset and public methods, as TRL's environments do")
        names = [name for name, _ in inspect.getmembers(type(self.inner), inspect.isfunction) if name[0] != "_" and name not in _NO_TOOLS]
        try:
            self.tools = [get_json_schema(getattr(self.inner, name)) for name in names]
        except Exception as error:  # transformers has classes of its own for what a docstring or an annotation lacks
            raise UserError(f"environment.name: a method of {make.__name__} cannot be a tool: {error}") from error

    async def reset(self, query: Query) -> str | None:
        """With the fields of the query and its constraints as TRL's row, as far as the class asks for them."""
        row = {"prompt": query.query, "query_id": query.query_id, "subtask": query.subtask, "language": query.language} | query.constraints
        wanted = inspect.signature(self.inner.reset).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in wanted.values())
        return await settled(self.inner.reset(**{key: value for key, value in row.items() if takes_all or key in wanted}))

    async def call(self, name: str, arguments: dict[str, Any] | str) -> Step:
        checked = check_call(self.tools, name, arguments)
        try:
            result = await settled(getattr(self.inner, name)(**checked))
        except (OSError, MemoryError):
            raise
        except Exception as error:
            raise ToolError(str(error)) from error
        return Step(str(result), done=getattr(self.inner, "done", False) is True)

    async def score(self) -> float | None:
        if hasattr(self.inner, "get_reward"):
            return await settled(self.inner.get_reward())
        return getattr(self.inner, "reward", None)

    async def close(self) -> None:
        await settled(self.inner.close() if hasattr(self.inner, "close") else None)
