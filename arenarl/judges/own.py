"""Check the replies of a user's own judge: a number from 0 to 10 for each trajectory shown.

Any other return value, and any error, is a missing verdict in training and evaluation, never a score. Each method's
first failure is printed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import iscoroutinefunction, signature
from numbers import Integral
from typing import Any

from arenarl.config.schema import JudgeConfig
from arenarl.judges.judge import JUDGE_CALLS, Judge, Verdict, rubric_of
from arenarl.system.errors import UserError, did_you_mean, show
from arenarl.system.user_input import import_named
from arenarl.tournament.calls import as_number, attempt
from arenarl.trajectory import Query, Trajectory, read_turns


class OwnJudge:
    """A user's own judge with checked replies. `name` is its class, as in the config; with `names_turns`, its
    comparisons must name pivotal turns. Raises UserError if a judge call is not async."""

    def __init__(self, judge: Judge, name: str, names_turns: bool = False):
        for method in JUDGE_CALLS:
            if hasattr(judge, method) and not iscoroutinefunction(getattr(judge, method)):
                raise UserError(f"{name}: {method} must be async; docs/judges.md shows a judge")
        self.judge, self.name, self.names_turns, self.is_strict = judge, name, names_turns, False
        self._reported: set[str] = set()  # methods whose first failure was printed

    @classmethod
    def of(cls, config: JudgeConfig) -> "OwnJudge":
        """Create the judge of the class `config.name`.
        Raises UserError if the class cannot be imported or does not take the config."""
        kind = import_named(config.name, "judge")
        try:
            signature(kind).bind(config)
        except (TypeError, ValueError) as error:
            remedy = "write a class that takes its section of the config"
            raise UserError(f"judge: {config.name} does not fit ({error}); {remedy}") from error
        return cls(kind(config), config.name, config.name_turns)

    def weights(self, query: Query) -> dict[str, float]:
        return self._check_weights("weights", self.judge.weights(query))

    async def compare(self, query: Query, first: Trajectory, second: Trajectory, repeat: int = 0) -> Verdict | None:
        turns = [len(read_turns(trajectory.messages)) for trajectory in (first, second)] if self.names_turns else None
        return await self._ask(lambda reply: _verdict(reply, 2, turns), "compare", query, first, second, repeat)

    async def score(
        self, query: Query, trajectory: Trajectory, answer_only: bool = False, repeat: int = 0
    ) -> Verdict | None:
        return await self._ask(lambda reply: _verdict(reply, 1), "score", query, trajectory, answer_only, repeat)

    async def choose(
        self, query: Query, trajectories: Sequence[Trajectory], winners: int, repeat: int = 0
    ) -> list[int] | None:
        count = len(trajectories)
        return await self._ask(lambda reply: _positions(reply, count), "choose", query, trajectories, winners, repeat)

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
        return await self._ask(lambda reply: _scores(reply, count), "score_together", query, trajectories, repeat)

    def checklist(self, query: Query) -> dict[str, float]:
        if not hasattr(self.judge, "checklist"):
            needed = "which reward.name=rubric_checklist and evolving_rubrics need; docs/judges.md shows an example"
            raise UserError(f"{self.name} has no checklist, {needed}")
        return self._check_weights("checklist", self.judge.checklist(query))

    async def check_items(
        self, query: Query, trajectory: Trajectory, repeat: int = 0, rubrics: Sequence[str] = ()
    ) -> dict[str, bool] | None:
        items, more = [*self.checklist(query), *rubrics], [rubrics] if rubrics else []  # a class may lack `rubrics`
        return await self._ask(lambda reply: _answers(reply, items), "check_items", query, trajectory, repeat, *more)

    async def propose_rubrics(
        self, query: Query, trajectories: Sequence[Trajectory], rubrics: Sequence[str], repeat: int = 0
    ) -> dict[str, float] | None:
        return await self._ask(_new_rubrics, "propose_rubrics", query, trajectories, rubrics, repeat)

    async def require(self, key: str, method: str, *arguments: Any, **options: Any) -> None:
        """Make one call of the judge at the config's `key`.
        Raises UserError if the class lacks the method, the call gives no verdict, or a dimension is unknown."""
        if not self._defines(method):
            how = f"define its method {method} (docs/judges.md)"
            raise UserError(f"{key}.name={self.name}: the class has no method {method}, which this run calls; {how}")
        strict = OwnJudge(self.judge, self.name, self.names_turns)
        strict.is_strict = True
        verdict = await getattr(strict, method)(*arguments, **options)
        if isinstance(verdict, Verdict):
            query = arguments[0]
            known = [*rubric_of(query).names, *(self.weights(query) if self._defines("weights") else ())]
            for name in (name for scores in verdict.dimensions for name in scores if name not in known):
                what = f"{method} scores {name!r}, a dimension of neither the rubric nor the judge's weights"
                raise UserError(f"{key}.name={self.name}: {what}{did_you_mean(str(name), known)}")

    def _defines(self, method: str) -> bool:
        own = getattr(self.judge, method, None)
        return own is not None and getattr(own, "__func__", own) is not getattr(Judge, method)

    def _check_weights(self, method: str, weights: Any) -> dict[str, float]:
        if isinstance(weights, Mapping) and weights and all((as_number(w) or 0) > 0 for w in weights.values()):
            return dict(weights)
        raise UserError(f"{self.name}.{method} must return a weight above 0 for each item, not {weights!r}")

    async def _ask(self, read: Callable[[Any], Any], method: str, *arguments: Any) -> Any:
        verdict, error = await attempt(lambda: getattr(self.judge, method)(*arguments), read, None)
        if error and self.is_strict:
            raise UserError(f"{self.name}.{method} gave no verdict on an invented answer: {error}")
        if error and method not in self._reported:
            self._reported.add(method)
            show(f"{self.name}.{method}: {error}; this call has no verdict (further failures are not shown)")
        return verdict


def _verdict(reply: Any, count: int, turns: Sequence[int] | None = None) -> Verdict:
    """Check a verdict; with `turns`, the number of turns of each trajectory, also its pivotal turns."""
    if not isinstance(reply, Verdict) or len(reply.dimensions) != count:
        raise ValueError(f"not a Verdict on {count} trajectories: {reply!r:.200}")
    scores = tuple({name: _score(score) for name, score in scores.items()} for scores in reply.dimensions)
    if not isinstance(reply.reason, str):
        raise ValueError(f"its reason is not a text: {reply.reason!r:.200}")
    pivotal_turns = _turn_numbers(reply.pivotal_turns, turns) if turns is not None else ()
    verdict = Verdict(scores, reply.total, reply.reason, pivotal_turns)
    for total in verdict.totals:
        _score(total)
    return verdict


def _turn_numbers(reply: Any, turns: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Check the numbers of pivotal turns; `turns` are the numbers of turns of the trajectories."""
    are_numbers = len(reply) == len(turns) and all(
        isinstance(number, Integral) and as_number(number) is not None and 1 <= number <= most
        for numbers, most in zip(reply, turns, strict=True)
        for number in numbers
    )
    if not are_numbers:
        problem = "pivotal_turns must list, for each trajectory, numbers of its turns"
        raise ValueError(f"{problem} (1 to {' and 1 to '.join(map(str, turns))}), not {reply!r:.200}")
    return tuple(tuple(map(int, numbers)) for numbers in reply)


def _positions(reply: Any, count: int) -> list[int]:
    """Check positions. The tournament checks their number, and that they differ."""
    if isinstance(reply, bytes) or not all(
        isinstance(k, Integral) and as_number(k) is not None and 0 <= k < count for k in reply
    ):
        raise ValueError(f"not positions of the {count} trajectories shown: {reply!r:.200}")
    return list(map(int, reply))


def _scores(reply: Any, count: int) -> list[float]:
    if not isinstance(reply, list | tuple) or len(reply) != count:
        raise ValueError(f"not one score for each of the {count} trajectories shown: {reply!r:.200}")
    return list(map(_score, reply))


def _answers(reply: Any, items: Collection[str]) -> dict[str, bool]:
    is_complete = isinstance(reply, Mapping) and set(reply) == set(items)
    if not is_complete or not all(isinstance(is_met, bool) for is_met in reply.values()):
        raise ValueError(f"not true or false for each of {', '.join(items)}: {reply!r:.200}")
    return {item: reply[item] for item in items}


def _new_rubrics(reply: Any) -> dict[str, float]:
    if not isinstance(reply, Mapping) or not all(
        isinstance(text, str) and text.strip() and as_number(weight) in (1, -1) for text, weight in reply.items()
    ):
        raise ValueError(f"not a weight of 1 or -1 for each text of a new rubric: {reply!r:.200}")
    return {text: float(weight) for text, weight in reply.items()}


def _score(score: Any) -> float:
    number = as_number(score)
    if number is None or not 0 <= number <= 10:
        raise ValueError(f"not a number from 0 to 10: {score!r:.200}")
    return number
