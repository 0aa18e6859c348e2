"""A user's own reward function, which must return a number or None for each trajectory. Like an environment's rewards,
numbers beyond ±1e15 are refused: as float32, their squares are infinite, and all advantages of the group would be 0.

Any other return value stops the run with a one-line error. An exception in the function keeps its traceback.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import AbstractContextManager
from typing import Any

from arenarl.judges.judge import JUDGE_CALLS, Judge
from arenarl.rollout.environment import LARGEST_REWARD
from arenarl.system.errors import UserError
from arenarl.system.user_input import import_named
from arenarl.tournament.calls import as_number
from arenarl.training.rewards.group import GroupOutcome, IncomingGroup, Referee, Reward, rewarded_outcome

_NOT_REWARDS = (Mapping, Set, str, bytes, bytearray)  # iterables without an order, or of characters


def own_reward(name: str) -> Reward:
    """Return the reward of the function named package.module:function, which receives all trajectories that are not
    void.

    Raises UserError if the function does not exist, or does not take a query, trajectories and a judge.
    """
    function = import_named(name, "reward.name", "function")
    try:
        inspect.signature(function).bind(None, [], None)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"reward.name: {name} does not fit ({error}); "
            "a reward is a function of (query, trajectories, judge), async or not"
        ) from error

    async def by_function(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
        trajectories, judge = (await incoming.complete()).trajectories, CountedJudge(referee.judge, incoming.calling)
        sound = [trajectory for trajectory in trajectories if not trajectory.is_void]
        result = function(incoming.query, sound, judge) if sound else []
        result = await result if inspect.isawaitable(result) else result
        is_sequence = isinstance(result, Iterable) and not isinstance(result, _NOT_REWARDS)
        rewards = list(result) if is_sequence else [result]
        numbers = [as_number(reward) for reward in rewards if reward is not None]
        are_usable = all(number is not None and abs(number) <= LARGEST_REWARD for number in numbers)
        if len(rewards) != len(sound) or not are_usable:
            raise UserError(
                f"reward.name={name} must return a number within ±{LARGEST_REWARD:g}, or None, for each of the "
                f"{len(sound)} trajectories; for query {incoming.query.query_id} it returned {result!r:.200}"
            )
        next_reward = iter([None if reward is None else float(reward) for reward in rewards])
        rewards_G = [None if trajectory.is_void else next(next_reward) for trajectory in trajectories]
        return rewarded_outcome(rewards_G, judge.calls, judge.failed)

    return Reward(by_function)


class CountedJudge:
    """Wraps a judge and counts its calls and failed calls; each call runs inside the context `calling`."""

    def __init__(self, judge: Judge, calling: Callable[[], AbstractContextManager]):
        self._judge, self._calling = judge, calling
        self.calls = self.failed = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._judge, name)
        if name not in JUDGE_CALLS:
            return method

        async def ask(*arguments: Any, **keys: Any) -> Any:
            with self._calling():
                reply = await method(*arguments, **keys)
            self.calls += 1
            self.failed += reply is None
            return reply

        return ask
