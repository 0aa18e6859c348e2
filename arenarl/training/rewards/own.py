"""A reward of one's own, held to what TRL can train on: a finite number or None for each trajectory.

Any other return value ends the run in one line: a wrong reward would be trained on. An exception keeps its traceback.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import AbstractContextManager
from typing import Any

from arenarl.judges.judge import Judge
from arenarl.system.errors import UserError
from arenarl.system.user_input import named
from arenarl.tournament.calls import is_number
from arenarl.training.rewards.group import GroupOutcome, IncomingGroup, Referee, Reward, rewarded_outcome

# as a list, these would be keys, in any order, or codes of characters
_UNORDERED = (Mapping, Set, str, bytes, bytearray)


def own_reward(name: str) -> Reward:
    """The reward by the function that package.module:function names; void trajectories are not passed to it,
    and have no reward.

    Raises:
        UserError: there is no such function, or it does not take a query, trajectories and a judge.
    """
    function = named(name, "reward.name", "function")
    try:
        inspect.signature(function).bind(None, [], None)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"reward.name: {name} does not fit ({error}); "
            "a reward is a function of (query, trajectories, judge), async or not"
        ) from error

    async def by_function(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
        trajectories, judge = (await incoming.complete()).trajectories, CountedJudge(referee.judge, incoming.calling)
        rewarded = [trajectory for trajectory in trajectories if not trajectory.is_void]
        returned = function(incoming.query, rewarded, judge) if rewarded else []
        returned = await returned if inspect.isawaitable(returned) else returned
        rewards = [returned]
        if isinstance(returned, Iterable) and not isinstance(returned, _UNORDERED):
            rewards = list(returned)
        is_sound = all(reward is None or (is_number(reward) and math.isfinite(reward)) for reward in rewards)
        if len(rewards) != len(rewarded) or not is_sound:
            raise UserError(
                f"reward.name={name} must return a finite number or None for each of the {len(rewarded)} trajectories; "
                f"for query {incoming.query.query_id} it returned {returned!r:.200}"
            )
        left = iter([None if reward is None else float(reward) for reward in rewards])
        rewards_G = [None if trajectory.is_void else next(left) for trajectory in trajectories]
        return rewarded_outcome(rewards_G, judge.calls, judge.failed)

    return Reward(by_function)


class CountedJudge:
    """A judge that counts its calls, and those without a verdict; `calling` is around each."""

    def __init__(self, judge: Judge, calling: Callable[[], AbstractContextManager]):
        self._judge, self._calling = judge, calling
        self.calls = self.failed = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._judge, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def ask(*arguments: Any, **keys: Any) -> Any:
            with self._calling():
                reply = await method(*arguments, **keys)
            self.calls += 1
            self.failed += reply is None
            return reply

        return ask
