"""Classes written for TRL's `environment_factory`, and so OpenEnv's clients inside of one, as environments of ours,
unchanged.

Such a class has `reset(**row)`, public methods that are its tools, and perhaps `get_reward()`; a trajectory ends with a
turn that calls none. It may also say `done` and `reward`, as its authors' reward functions read them. Of what its
methods raise the policy gets to see what says that a call was wrong, as in TRL: a ValueError, TypeError and the like,
or an exception of the class's own module. All else, a server that is gone or a library that fails, is no fault of the
policy's, and makes the trajectory void.

A method that is not async is called as such: its result is there at once,
so that the trajectories of a step stay in one batch.
"""

import inspect
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

from arenarl.rollout.environment import Step, ToolError, check_call
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, text_of

_NO_TOOLS = ("reset", "get_reward", "close")
_OF_THE_CALL = (ValueError, TypeError, LookupError, ArithmeticError, AssertionError)


class TRLEnvironment:
    """An `Environment` around one instance of such a class."""

    needs_answer, may_stop, reusable = False, True, True  # TRL makes an instance once and resets it often

    def __init__(self, inner: Any):
        from transformers.utils import get_json_schema

        self.inner, kind = inner, type(inner)
        if not callable(getattr(inner, "reset", None)):
            raise UserError(
                f"environment.name: {kind.__name__} has neither call and tools, nor reset and public methods, "
                "as TRL's environments do"
            )
        names = [
            name for name, _ in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_" and name not in _NO_TOOLS
        ]
        try:
            self.tools = [get_json_schema(getattr(self.inner, name)) for name in names]
        except Exception as error:  # transformers has classes of its own for what a docstring or an annotation lacks
            raise UserError(f"environment.name: a method of {kind.__name__} cannot be a tool: {error}") from error

    def reset(self, query: Query) -> str | None | Awaitable[str | None]:
        """With the fields of the query and its constraints as TRL's row, as far as the class asks for them."""
        row = {
            "prompt": query.query,
            "query_id": query.query_id,
            "subtask": query.subtask,
            "language": query.language,
        } | query.constraints
        wanted = inspect.signature(self.inner.reset).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in wanted.values())
        shown = self.inner.reset(**{key: value for key, value in row.items() if takes_all or key in wanted})
        return _joined_later(shown) if inspect.isawaitable(shown) else _joined(shown)

    def call(self, name: str, arguments: dict[str, Any] | str) -> Step | Awaitable[Step]:
        checked = check_call(self.tools, name, arguments)
        with self._telling():
            result = getattr(self.inner, name)(**checked)
        return self._later(result) if inspect.isawaitable(result) else self._step(result)

    def score(self) -> float | None | Awaitable[float | None]:
        return self.inner.get_reward() if hasattr(self.inner, "get_reward") else getattr(self.inner, "reward", None)

    def close(self) -> Any:
        return self.inner.close() if hasattr(self.inner, "close") else None

    async def _later(self, result: Awaitable[Any]) -> Step:
        with self._telling():
            result = await result
        return self._step(result)

    def _step(self, result: Any) -> Step:
        return Step(str(_joined(result)), done=getattr(self.inner, "done", False) is True)

    @contextmanager
    def _telling(self) -> Iterator[None]:
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
    is_text = isinstance(shown, list) and all(
        isinstance(block, dict) and block.get("type") == "text" for block in shown
    )
    return text_of(shown) if shown and is_text else shown


async def _joined_later(shown: Awaitable[Any]) -> Any:
    return _joined(await shown)
