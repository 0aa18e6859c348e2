"""What a judge is: who compares trajectories, with a verdict of scores by the rubric's dimensions, or None;
and what is true of a trajectory.

Rewards and evaluation know this protocol alone; `embedded` and `llm` are the judges that there are, a class of one's
own a third, which `own` holds to it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from arenarl.config.schema import JudgeConfig
from arenarl.domains.domain import Domain, Truth, ViewKind
from arenarl.domains.rubrics import Rubric, domain_rubric
from arenarl.judges.view import View
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, Trajectory

NO_TRUTH = (
    "its constraints lack what the domain's truth goes by; take an LLM judge (configs/judges), or one of your own"
)
# (query, trajectory or view) -> its truth; None if the query has none
Examiner = Callable[[Query, Trajectory | View], Truth | None]


@dataclass(frozen=True)
class Verdict:
    """One judge call's scores: for each trajectory that it showed, in that order, dimension -> 0..10."""

    dimensions: tuple[dict[str, float], ...]
    total: Callable[[Mapping[str, float]], float]  # of such scores, 0..10: `Rubric.total`

    @property
    def totals(self) -> tuple[float, ...]:
        """Computed here and never read from a judge's arithmetic."""
        return tuple(map(self.total, self.dimensions))


class Judge(Protocol):
    """Who judges trajectories. A method that a class leaves out gives no verdict."""

    def __init__(self, config: JudgeConfig):
        """Of its part of the config, which a class without this method ignores."""

    def weights(self, query: Query) -> dict[str, float]:
        """What each dimension of this query's rubric weighs in the total."""

    async def compare(self, query: Query, first: Trajectory, second: Trajectory, repeat: int = 0) -> Verdict | None:
        """One call that shows `first` before `second` (3.3). None if no verdict could be had."""

    async def score(
        self, query: Query, trajectory: Trajectory, answer_only: bool = False, repeat: int = 0
    ) -> Verdict | None:
        """One pointwise call (3.2). None if no verdict could be had."""

    async def choose(
        self, query: Query, trajectories: Sequence[Trajectory], winners: int, repeat: int = 0
    ) -> list[int] | None:
        """One call that shows all in this order: positions of the best `winners`. Eq. 4, Tournament-GRPO.
        None: no verdict."""

    async def score_overall(self, query: Query, trajectory: Trajectory, repeat: int = 0) -> float | None:
        """One call for one number, 0..10, that the judge itself weighs.
        Implicit scoring (Appendix E), Tournament-GRPO."""

    async def score_dimension(
        self, query: Query, trajectory: Trajectory, dimension: str, repeat: int = 0
    ) -> float | None:
        """One call about one dimension of the rubric, 0..10. Explicit scoring (Appendix E), Tournament-GRPO."""

    async def score_together(
        self, query: Query, trajectories: Sequence[Trajectory], repeat: int = 0
    ) -> list[float] | None:
        """One listwise call that shows all in this order: a score each, 0..10 (RULER).
        None: no verdict on all of them."""

    def checklist(self, query: Query) -> dict[str, float]:
        """What each item of this query's checklist weighs."""

    async def check_items(self, query: Query, trajectory: Trajectory, repeat: int = 0) -> dict[str, bool] | None:
        """One call that says of every item of the checklist whether it is met (Rubrics as Rewards).
        None: no verdict on all of them."""


def rubric_of(query: Query) -> Rubric:
    """Its domain's."""
    return domain_rubric(query.domain, query.language)


def true_quality(examine: Examiner, query: Query, trajectory: Trajectory) -> float:
    """Noise-free total of the embedded judge, 0 to 10; 0 if the trajectory is invalid.
    Raises UserError if the query has no truth."""
    if (truth := examine(query, trajectory)) is None:
        raise UserError(f"query {query.query_id} has no truth: {NO_TRUTH}")
    return rubric_of(query).total(truth.dimensions()) if trajectory.valid else 0.0


def make_examiner(domain: Domain) -> Examiner | None:
    """Return the domain's examiner; None if the domain has no truth."""
    if domain.examine is None:
        return None
    return cached_examiner(
        lambda query, messages: domain.examine(query, messages) if domain.has_truth(query) else None,
        lambda query, messages: domain.examine_view(query, messages) if domain.has_truth(query) else None,
    )


def cached_examiner(
    examine: Callable[[Query, list[dict]], Truth | None],
    examine_view: Callable[[Query, list[dict]], Truth | None] | None = None,
) -> Examiner:
    """Return an examiner that examines each trajectory or view once.
    Views without tool results go to `examine_view`, if given."""

    @lru_cache(maxsize=4096)
    def by_text(query: Query, text: str, kind: ViewKind) -> Truth | None:
        messages = json.loads(text)
        return examine(query, messages) if kind == "results" or examine_view is None else examine_view(query, messages)

    return lambda query, shown: by_text(
        query, json.dumps(shown.messages), shown.kind if isinstance(shown, View) else "results"
    )


def scores_and_detail(verdict: Verdict | None) -> tuple | None:
    """A verdict on two as a tournament takes it: their totals, and the scores by dimension to keep with the match."""
    return None if verdict is None else (*verdict.totals, list(verdict.dimensions))
