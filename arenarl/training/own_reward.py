"""A reward of one's own, held to what TRL can train on: a finite number or None for each trajectory.

What its function returns else ends the run in one line: a reward that is wrong would be trained on.
What it raises keeps its traceback.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from typing import Any

from arenarl.judges.judge import Judge
from arenarl.system.errors import UserError
from arenarl.system.user_input import named
from arenarl.tournament.calls import is_number
from arenarl.trajectory import Query, Trajectory

# as a list, these would be keys, in any order, or codes of characters
_UNORDERED = (Mapping, Set, str, bytes, bytearray)
_TAKES = "a reward is a function of (query, trajectories, judge), async or not"


class OwnReward:
    """Args:
    name: package.module:function.

    Raises:
        UserError: there is no such function, or it does not take a query, trajectories and a judge.
    """

    def __init__(self, name: str):
        self.name, self.function = name, named(name, "reward.name", "function")
        try:
            inspect.signature(self.function).bind(None, [], None)
        except (TypeError, ValueError) as error:
            raise UserError(f"reward.name: {name} does not fit ({error}); {_TAKES}") from error

    async def __call__(self, query: Query, trajectories: Sequence[Trajectory], judge: Judge) -> list[float | None]:
        """A reward each. Raises UserError if that is not what the function returned."""
        if not trajectories:
            return []
        said = self.function(query, trajectories, judge)
        said = await said if inspect.isawaitable(said) else said
        rewards = list(said) if isinstance(said, Iterable) and not isinstance(said, _UNORDERED) else [said]
        if len(rewards) != len(trajectories) or not all(
            one is None or (is_number(one) and math.isfinite(one)) for one in rewards
        ):
            what = f"a finite number or None for each of the {len(trajectories)} trajectories"
            raise UserError(
                f"reward.name={self.name} must return {what}; for query {query.query_id} it returned {said!r:.200}"
            )
        return [None if one is None else float(one) for one in rewards]


class CountedJudge:
    """A judge that counts its calls, and those without a verdict; `calling` is around each."""

    def __init__(self, judge: Judge, calling: Callable[[], AbstractContextManager]):
        self._judge, self._calling = judge, calling
        self.calls = self.failed = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._judge, name)
        return self._counted(method) if inspect.iscoroutinefunction(method) else method

    def _counted(self, method: Callable) -> Callable:
        async def ask(*arguments: Any, **keys: Any) -> Any:
            with self._calling():
                reply = await method(*arguments, **keys)
            self.calls += 1
            self.failed += reply is None
            return reply

        return ask
