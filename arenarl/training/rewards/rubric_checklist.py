"""Rubrics as Rewards (arXiv 2507.17746), explicit aggregation: the weighted share of checklist items that are met.

One call answers all items of the query's checklist for a trajectory.
"""

from collections.abc import Mapping, Sequence

from arenarl.config.schema import Config
from arenarl.system.errors import UserError
from arenarl.training.rewards.formulas import zero_invalid
from arenarl.training.rewards.group import GroupOutcome, IncomingGroup, Referee, Reward, ask, scored_outcome


def checklist_reward(met_G: Sequence[Mapping[str, bool] | None], weights: Mapping[str, float]) -> list[float | None]:
    """Return rewards (G,) in [0, 1]: the weighted share of the items that are met; None stays None.

    >>> checklist_reward([{"a": True, "b": False}, None], {"a": 3, "b": 1})
    [0.75, None]
    """
    whole = sum(weights.values())
    return [None if met is None else sum(weights[item] for item in weights if met[item]) / whole for met in met_G]


async def by_checklist(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    query, weights = incoming.query, referee.judge.checklist(incoming.query)
    valid_G, replies_G = await ask(incoming, lambda trajectory: [referee.judge.check_items(query, trajectory)])
    shares_G = checklist_reward([replies[0] if replies else None for replies in replies_G], weights)
    return scored_outcome(zero_invalid(shares_G, valid_G), replies_G)


def _check(config: Config) -> None:
    if config.judge.train.name == "llm" and not config.judge.train.query_rubrics:
        raise UserError(
            "reward.name=rubric_checklist needs a checklist for each query: set judge.train.query_rubrics to a file "
            "from python -m arenarl.judges.query_rubrics --checklist"
        )


REWARD = Reward(by_checklist, check=_check)
