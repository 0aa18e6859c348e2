"""Rubrics as Rewards (arXiv 2507.17746), explicit aggregation: the weighted share of checklist items that are met.

One call answers all items of the query's checklist for a trajectory.
"""

from collections.abc import Mapping, Sequence

from arenarl.config.schema import Config
from arenarl.system.errors import UserError
from arenarl.training.rewards.formulas import zero_invalid
from arenarl.training.rewards.group import GroupOutcome, IncomingGroup, Referee, Reward, ask, scored_outcome


def checklist_reward(met_G: Sequence[Mapping[str, bool] | None], weights: Mapping[str, float]) -> list[float | None]:
    """Return rewards (G,) in [0, 1]: the weighted share of the items that are met, or, with a weight below 0, not met.

    None stays None.

    >>> checklist_reward([{"a": True, "b": False}, None], {"a": 3, "b": 1})
    [0.75, None]
    """
    whole = sum(map(abs, weights.values()))
    return [
        None if met is None else sum(abs(weights[item]) for item in weights if met[item] == (weights[item] > 0)) / whole
        for met in met_G
    ]


def out_of_10(shares_G: Sequence[float | None]) -> list[float | None]:
    return [None if share is None else 10 * share for share in shares_G]


async def by_checklist(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    query, weights = incoming.query, referee.judge.checklist(incoming.query)
    valid_G, replies_G = await ask(incoming, lambda trajectory: [referee.judge.check_items(query, trajectory)])
    shares_G = checklist_reward([replies[0] if replies else None for replies in replies_G], weights)
    return scored_outcome(zero_invalid(shares_G, valid_G), replies_G, out_of_10(shares_G))


def check_query_rubrics(config: Config) -> None:
    for key, judge in config.judge.training.items():
        if judge.name == "llm" and not judge.query_rubrics:
            raise UserError(
                f"reward.name={config.reward.name} needs a checklist for each query: set {key}.query_rubrics to a file "
                "from python -m arenarl.judges.query_rubrics --checklist"
            )


REWARD = Reward(by_checklist, check=check_query_rubrics)
