"""A judge of one's own, held to what `Judge` promises: numbers from 0 to 10, of each trajectory shown.

Whatever else its class returns, and whatever it raises, is a missing verdict in training and evaluation alike, and said once; never a score.
"""

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

from arenarl.judges.judge import Judge, Verdict
from arenarl.system.errors import UserError, show
from arenarl.tournament.calls import attempt, is_number
from arenarl.trajectory import Query, Trajectory


class OwnJudge:
    """Args:
    name: of its class, as the config has it.
    """

    def __init__(self, judge: Judge, name: str):
        self.judge, self.name = judge, name
        self._said: set[str] = set()

    def weights(self, query: Query) -> dict[str, float]:
        weights = self.judge.weights(query)
        if not isinstance(weights, Mapping) or not weights or not all(is_number(weight) and weight > 0 for weight in weights.values()):
            raise UserError(f"{self.name}.weights must return what each dimension of the rubric weighs, above 0, not {weights!r}")
        return dict(weights)

    async def compare(self, query: Query, first: Trajectory, second: Trajectory, repeat: int = 0) -> Verdict | None:
        return await self._ask(_verdict_on(2), "compare", query, first, second, repeat)

    async def score(self, query: Query, trajectory: Trajectory, answer_only: bool = False, repeat: int = 0) -> Verdict | None:
        return await self._ask(_verdict_on(1), "score", query, trajectory, answer_only, repeat)

    async def choose(self, query: Query, trajectories: Sequence[Trajectory], winners: int, repeat: int = 0) -> list[int] | None:
        return await self._ask(_positions_in(len(trajectories)), "choose", query, trajectories, winners, repeat)

    async def score_overall(self, query: Query, trajectory: Trajectory, repeat: int = 0) -> float | None:
        return await self._ask(_score, "score_overall", query, trajectory, repeat)

    async def score_dimension(self, query: Query, trajectory: Trajectory, dimension: str, repeat: int = 0) -> float | None:
        return await self._ask(_score, "score_dimension", query, trajectory, dimension, repeat)

    async def _ask(self, read: Callable[[Any], Any], method: str, *arguments: Any) -> Any:
        said, error = await attempt(lambda: getattr(self.judge, method)(*arguments), read, None)
        if error and method not in self._said:
            self._said.add(method)
            show(f"{self.name}.{method}: {error}; that call has no verdict, nor have others like it")
        return said


def _verdict_on(shown: int) -> Callable[[Any], Verdict]:
    def read(said: Any) -> Verdict:
        if not isinstance(said, Verdict) or len(said.dimensions) != shown:
            raise ValueError(f"not a Verdict on {shown} trajectories: {said!r:.200}")
        verdict = Verdict(tuple({name: _score(score) for name, score in scores.items()} for scores in said.dimensions), said.total)
        for total in verdict.totals:
            _score(total)
        return verdict

    return read


def _positions_in(shown: int) -> Callable[[Any], list[int]]:
    def read(said: Any) -> list[int]:
        """How many they must be, and that they differ, the tournament knows."""
        if isinstance(said, bytes) or not all(is_number(place) and isinstance(place, Integral) and 0 <= place < shown for place in said):
            raise ValueError(f"not positions among the {shown} shown: {said!r:.200}")
        return list(map(int, said))

    return read


def _score(said: Any) -> float:
    if not (is_number(said) and 0 <= said <= 10):
        raise ValueError(f"not a number from 0 to 10: {said!r:.200}")
    return float(said)
