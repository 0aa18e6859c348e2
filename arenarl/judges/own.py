"""A judge of one's own, held to what `Judge` promises: numbers from 0 to 10, of each trajectory shown.

Whatever else its class returns, and whatever it raises, is a missing verdict in training and evaluation alike,
and said once; never a score.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import iscoroutinefunction, signature
from numbers import Integral
from typing import Any

from arenarl.config.schema import JudgeConfig
from arenarl.judges.judge import Judge, Verdict
from arenarl.system.errors import UserError, show
from arenarl.system.user_input import named
from arenarl.tournament.calls import attempt, is_number
from arenarl.trajectory import Query, Trajectory


class OwnJudge:
    """A judge of one's own whose replies are checked.

    Args:
        name: of its class, as the config has it.

    Raises:
        UserError: it has a `compare` that is not async.
    """

    def __init__(self, judge: Judge, name: str):
        if hasattr(judge, "compare") and not iscoroutinefunction(judge.compare):
            raise UserError(f"{name}: compare must be async; docs/judges.md shows a judge")
        self.judge, self.name = judge, name
        self._said: set[str] = set()

    @classmethod
    def of(cls, config: JudgeConfig) -> "OwnJudge":
        """Made of the class that `name` of `judge.train` or `judge.eval` names. Raises UserError if it cannot be had,
        or does not take the config."""
        kind = named(config.name, "judge")
        try:
            signature(kind).bind(config)
        except (TypeError, ValueError) as error:
            wanted = "a judge is a class that takes its part of the config"
            raise UserError(f"judge: {config.name} does not fit ({error}); {wanted}") from error
        return cls(kind(config), config.name)

    def weights(self, query: Query) -> dict[str, float]:
        return self._checked("weights", self.judge.weights(query))

    async def compare(self, query: Query, first: Trajectory, second: Trajectory, repeat: int = 0) -> Verdict | None:
        return await self._ask(lambda said: _verdict(said, 2), "compare", query, first, second, repeat)

    async def score(
        self, query: Query, trajectory: Trajectory, answer_only: bool = False, repeat: int = 0
    ) -> Verdict | None:
        return await self._ask(lambda said: _verdict(said, 1), "score", query, trajectory, answer_only, repeat)

    async def choose(
        self, query: Query, trajectories: Sequence[Trajectory], winners: int, repeat: int = 0
    ) -> list[int] | None:
        count = len(trajectories)
        return await self._ask(lambda said: _positions(said, count), "choose", query, trajectories, winners, repeat)

    async def score_overall(self, query: Query, trajectory: Trajectory, repeat: int = 0) -> float | None:
        return await self._ask(_score, "score_overall", query, trajectory, repeat)

    async def score_dimension(
        self, query: Query, trajectory: Trajectory, dimension: str, repeat: int = 0
    ) -> float | None:
        return await self._ask(_score, "score_dimension", query, trajectory, dimension, repeat)

    async def score_together(
        self, query: Query, trajectories: Sequence[Trajectory], repeat: int = 0
    ) -> list[float] | None:
        count = len(trajectories)
        return await self._ask(lambda said: _scores(said, count), "score_together", query, trajectories, repeat)

    def checklist(self, query: Query) -> dict[str, float]:
        if not hasattr(self.judge, "checklist"):
            wanted = "which reward.name=rubric_checklist asks for; docs/judges.md shows one"
            raise UserError(f"{self.name} has no checklist, {wanted}")
        return self._checked("checklist", self.judge.checklist(query))

    async def check_items(self, query: Query, trajectory: Trajectory, repeat: int = 0) -> dict[str, bool] | None:
        items = self.checklist(query)
        return await self._ask(lambda said: _answers(said, items), "check_items", query, trajectory, repeat)

    def _checked(self, method: str, weights: Any) -> dict[str, float]:
        if isinstance(weights, Mapping) and weights and all(is_number(one) and one > 0 for one in weights.values()):
            return dict(weights)
        wanted = "what each dimension of the rubric weighs, above 0"
        raise UserError(f"{self.name}.{method} must return {wanted}, not {weights!r}")

    async def _ask(self, read: Callable[[Any], Any], method: str, *arguments: Any) -> Any:
        said, error = await attempt(lambda: getattr(self.judge, method)(*arguments), read, None)
        if error and method not in self._said:
            self._said.add(method)
            show(f"{self.name}.{method}: {error}; that call has no verdict, nor have others like it")
        return said


def _verdict(said: Any, count: int) -> Verdict:
    if not isinstance(said, Verdict) or len(said.dimensions) != count:
        raise ValueError(f"not a Verdict on {count} trajectories: {said!r:.200}")
    scores = tuple({name: _score(score) for name, score in scores.items()} for scores in said.dimensions)
    verdict = Verdict(scores, said.total)
    for total in verdict.totals:
        _score(total)
    return verdict


def _positions(said: Any, count: int) -> list[int]:
    """How many they must be, and that they differ, the tournament knows."""
    if isinstance(said, bytes) or not all(
        isinstance(one, Integral) and is_number(one) and 0 <= one < count for one in said
    ):
        raise ValueError(f"not positions among the {count} shown: {said!r:.200}")
    return list(map(int, said))


def _scores(said: Any, count: int) -> list[float]:
    if not isinstance(said, list | tuple) or len(said) != count:
        raise ValueError(f"not a score for each of the {count} shown: {said!r:.200}")
    return [_score(one) for one in said]


def _answers(said: Any, items: Collection[str]) -> dict[str, bool]:
    is_whole = isinstance(said, Mapping) and set(said) == set(items)
    if not is_whole or not all(isinstance(met, bool) for met in said.values()):
        raise ValueError(f"not true or false for each of {', '.join(items)}: {said!r:.200}")
    return {item: said[item] for item in items}


def _score(said: Any) -> float:
    if not (is_number(said) and 0 <= said <= 10):
        raise ValueError(f"not a number from 0 to 10: {said!r:.200}")
    return float(said)
