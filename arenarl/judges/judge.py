"""The judge protocol, verdicts, and the true quality of a trajectory.

A judge compares trajectories and returns a verdict: scores on the rubric's dimensions, or None. Rewards and evaluation
depend only on this protocol. Judges: `embedded` (simulated), `llm`, and a user's own class, which `own` checks.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from inspect import iscoroutinefunction
from itertools import pairwise
from typing import Any, Protocol

from arenarl.config.schema import JudgeConfig
from arenarl.domains.domain import Domain, Truth, ViewKind, checked_truth
from arenarl.domains.rubrics import Rubric, domain_rubric
from arenarl.judges.view import View
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, Trajectory, messages_of

NO_TRUTH = "its constraints lack a key of the domain's truth; take an LLM judge (configs/judges), or your own judge"
# (query, trajectory or view) -> its truth; None if the query has no truth
Examiner = Callable[[Query, Trajectory | View], Truth | None]


@dataclass(frozen=True)
class Verdict:
    """The scores of one judge call: per trajectory, in the order shown, a dict of dimension -> 0..10.
    `total` turns such a dict into one score, 0..10; usually it is `Rubric.total`.

    With the judge's `name_turns`, a comparison also has the numbers, from 1, of each trajectory's pivotal turns.
    """

    dimensions: tuple[dict[str, float], ...]
    total: Callable[[Mapping[str, float]], float]
    reason: str = ""  # one sentence, if the judge was asked for one (`judge.train.explain`)
    pivotal_turns: tuple[tuple[int, ...], ...] = ()

    @property
    def totals(self) -> tuple[float, ...]:
        """One total per trajectory, computed with the rubric's weights. A total in a judge's reply is ignored."""
        return tuple(map(self.total, self.dimensions))


class Judge(Protocol):
    """The interface of judges. Each async method is one judge call; it returns None without a verdict.
    A class may leave out methods that its runs do not call. `repeat` distinguishes calls with equal arguments."""

    def __init__(self, config: JudgeConfig):
        """Receive the judge's section of the config. A class may omit this method."""

    def weights(self, query: Query) -> dict[str, float]:
        """Return the weight of each dimension of the query's rubric in the total."""

    async def compare(self, query: Query, first: Trajectory, second: Trajectory, repeat: int = 0) -> Verdict | None:
        """Score two trajectories in one call, `first` shown before `second` (Section 3.3)."""
        return None

    async def score(
        self, query: Query, trajectory: Trajectory, answer_only: bool = False, repeat: int = 0
    ) -> Verdict | None:
        """Score one trajectory (pointwise, Section 3.2). `answer_only` shows only the answer."""
        return None

    async def choose(
        self, query: Query, trajectories: Sequence[Trajectory], winners: int, repeat: int = 0
    ) -> list[int] | None:
        """Return the positions of the best `winners` in the order shown. Eq. 4, Tournament-GRPO."""
        return None

    async def score_overall(self, query: Query, trajectory: Trajectory, repeat: int = 0) -> float | None:
        """Return one overall score 0..10, weighted by the judge. Implicit scoring (Appendix E), Tournament-GRPO."""
        return None

    async def score_dimension(
        self, query: Query, trajectory: Trajectory, dimension: str, repeat: int = 0
    ) -> float | None:
        """Return the score 0..10 on one dimension. Explicit scoring (Appendix E), Tournament-GRPO."""
        return None

    async def score_together(
        self, query: Query, trajectories: Sequence[Trajectory], repeat: int = 0
    ) -> list[float] | None:
        """Return a score 0..10 for each trajectory, shown in this order in one listwise call (RULER)."""
        return None

    def checklist(self, query: Query) -> dict[str, float]:
        """Return the weight of each item of the query's checklist."""
        return {}

    async def check_items(
        self, query: Query, trajectory: Trajectory, repeat: int = 0, rubrics: Sequence[str] = ()
    ) -> dict[str, bool] | None:
        """Return for each item of the checklist (Rubrics as Rewards), and of `rubrics` (RLER), whether it is met."""
        return None

    async def propose_rubrics(
        self, query: Query, trajectories: Sequence[Trajectory], rubrics: Sequence[str], repeat: int = 0
    ) -> dict[str, float] | None:
        """Return new rubrics for a group that has `rubrics`: text → 1 for a merit, -1 for a fault (RLER)."""
        return None


JUDGE_CALLS = tuple(name for name, method in vars(Judge).items() if iscoroutinefunction(method))


def rubric_of(query: Query) -> Rubric:
    """Return the rubric of the query's domain and language."""
    return domain_rubric(query.domain, query.language)


def true_quality(examine: Examiner, query: Query, trajectory: Trajectory) -> float:
    """Return the simulated judge's total without noise, 0 to 10; 0 for an invalid trajectory.
    Raises UserError if the query has no truth."""
    if (truth := examine(query, trajectory)) is None:
        raise UserError(f"query {query.query_id} has no truth: {NO_TRUTH}")
    return rubric_of(query).total(truth.dimensions()) if trajectory.valid else 0.0


def truly_pivotal(examine: Examiner, query: Query, view: View) -> list[bool]:
    """Return for each turn of a view whether its tool results raise `Truth.information`.
    A turn with the answer does not. Raises UserError if the query has no truth."""
    turns = view.turns
    end = turns[-1:] if turns and turns[-1].answer is not None else []
    acting = turns[: len(turns) - len(end)]

    def information(count: int) -> float:
        truth = examine(query, View(view.kind, messages_of([*acting[:count], *end])))
        if truth is None:
            raise UserError(f"query {query.query_id} has no truth: {NO_TRUTH}")
        return truth.information()

    is_pivotal = [after > before for before, after in pairwise(map(information, range(len(acting) + 1)))]
    return is_pivotal + [False] * len(end)


def make_examiner(domain: Domain) -> Examiner | None:
    """Return the domain's examiner, with a cache; None if the domain has no truth."""
    examine = domain.examine
    if examine is None:
        return None

    def examined(examine: Callable[..., Truth], query: Query, messages: list[dict]) -> Truth | None:
        return checked_truth(domain, query, examine(query, messages)) if domain.has_truth(query) else None

    return cached_examiner(partial(examined, examine), partial(examined, domain.examine_view))


def cached_examiner(
    examine: Callable[[Query, list[dict]], Truth | None],
    examine_view: Callable[[Query, list[dict]], Truth | None] | None = None,
) -> Examiner:
    """Return an examiner that examines each trajectory or view once.
    Views without tool results go to `examine_view`, if it is not None."""

    @lru_cache(maxsize=4096)
    def by_text(query: Query, text: str, kind: ViewKind) -> Truth | None:
        messages = json.loads(text)
        return examine(query, messages) if kind == "results" or examine_view is None else examine_view(query, messages)

    return lambda query, shown: by_text(
        query, json.dumps(shown.messages), shown.kind if isinstance(shown, View) else "results"
    )


def scores_and_detail(verdict: Verdict | None) -> tuple | None:
    """Convert a verdict for the tournament: (total, total, the match's detail).
    The detail is a list: the scores by dimension of each trajectory, with `pivotal_turns` if the judge names them, and
    at the end the reason, if there is one."""
    if verdict is None:
        return None
    detail: list[Any] = list(verdict.dimensions)
    if verdict.pivotal_turns:
        pairs = zip(detail, verdict.pivotal_turns, strict=True)
        detail = [scores | {"pivotal_turns": list(turns)} for scores, turns in pairs]
    return (*verdict.totals, [*detail, *([verdict.reason] if verdict.reason else [])])
