"""Several training judges (`judge.alternates`): each query belongs to one, so that a policy must please all of them."""

from collections.abc import Callable, Sequence
from typing import Any

from arenarl.judges.judge import Judge
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import Query


class AlternatingJudge:
    """Passes each call to the judge of its query, drawn by `seed`, so that one judge scores a whole group and a group
    costs as many calls as with one judge."""

    def __init__(self, judges: Sequence[Judge], seed: int):
        self.judges, self.seed = judges, seed

    def judge_of(self, query: Query) -> Judge:
        return self.judges[stable_seed(self.seed, "judge of", query.query_id) % len(self.judges)]

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if not hasattr(Judge, method):
            raise AttributeError(method)
        return lambda query, *arguments, **options: getattr(self.judge_of(query), method)(query, *arguments, **options)
