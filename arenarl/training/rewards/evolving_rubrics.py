"""Evolving rubrics (RLER; DR Tulu, arXiv 2511.19399): score a group by its query's checklist and by rubrics that the
judge writes for the group.

One call per group shows all answers and the query's present rubrics, and returns new ones: merits, with the weight 1,
and faults, with the weight -1. One call per trajectory then checks the checklist and all rubrics. Rubrics without
variance in the group are set aside; of the rest, the `KEPT` with the largest spread stay for the query's next group.
A trajectory earns the weight of each merit that it has and of each fault that it lacks. Within a group, this is DR
Tulu's weighted sum, divided by the sum of all absolute weights, plus a constant; so an invalid trajectory, with 0, is
never ahead. All present and new rubrics count, as in DR Tulu's code; with `reward.scored_rubrics: kept`, which is ours,
only those that stay. Departs from DR Tulu: items are met or not, instead of 0 to 2; one call checks all items; of equal
spreads, a present rubric stays before a new one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from arenarl.training.rewards.formulas import zero_invalid
from arenarl.training.rewards.group import GroupOutcome, IncomingGroup, Referee, Reward, ask, first_rows, scored_outcome
from arenarl.training.rewards.rubric_checklist import check_query_rubrics, checklist_reward, out_of_10

KEPT = 5  # rubrics per query; DR Tulu's


def kept_rubrics(met_G: Sequence[Mapping[str, bool] | None], weights: Mapping[str, float]) -> dict[str, float]:
    """Return the rubrics that stay, the one with the largest spread first. All stay if no trajectory has a verdict; of
    equal spreads, the first of `weights` stays.

    Of three trajectories, one is cheap, two are near, two are vague, and all are polite. The rewards by these rubrics
    are (cheap + near + not vague + polite) / 4:

    >>> weights = {"polite": 1, "cheap": 1, "near": 1, "vague": -1}
    >>> rows = [(True, True, True, False), (True, False, True, True), (True, False, False, True)]
    >>> met_G = [dict(zip(weights, row)) for row in rows]
    >>> checklist_reward(met_G, weights)
    [1.0, 0.5, 0.25]
    >>> kept_rubrics(met_G, weights)
    {'cheap': 1, 'near': 1, 'vague': -1}

    Among four, an even split has the larger spread:

    >>> rows = [(True, True), (False, True), (False, False), (False, False)]
    >>> kept_rubrics([{"a": a, "b": b} for a, b in rows], {"a": 1, "b": -1})
    {'b': -1, 'a': 1}
    """
    known = [met for met in met_G if met is not None]
    if not known:
        return dict(weights)
    counts = {rubric: sum(met[rubric] for met in known) for rubric in weights}
    spreads = {rubric: count * (len(known) - count) for rubric, count in counts.items()}  # variance times n squared
    order = sorted(weights, key=lambda rubric: -spreads[rubric])
    return {rubric: weights[rubric] for rubric in order[:KEPT] if spreads[rubric]}


async def by_evolving_rubrics(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    query, judge = incoming.query, referee.judge
    trajectories = (await incoming.complete()).trajectories
    present, checklist = referee.rubrics.get(query.query_id, {}), judge.checklist(query)
    distinct = [trajectories[row] for row in sorted(set(first_rows(trajectories)) - {None})]
    new: dict[str, float] | None = {}
    if distinct:
        with incoming.calling():
            new = await judge.propose_rubrics(query, distinct, list(present))
    # a judge may repeat the names of the prompt's items instead of writing rubrics
    rubrics = present | {text: new[text] for text in new or {} if text not in present and text not in checklist}
    valid_G, replies_G = await ask(incoming, lambda one: [judge.check_items(query, one, rubrics=list(rubrics))])
    met_G = [replies[0] if replies else None for replies in replies_G]
    kept = kept_rubrics(met_G, rubrics)
    scoring = checklist | (kept if referee.reward.scored_rubrics == "kept" else rubrics)
    shares_G = checklist_reward(met_G, scoring)
    outcome = scored_outcome(zero_invalid(shares_G, valid_G), replies_G, out_of_10(shares_G))
    calls, failed = outcome.judge_calls + bool(distinct), outcome.failed_calls + (new is None)
    return replace(outcome, judge_calls=calls, failed_calls=failed, rubrics=kept)


REWARD = Reward(
    by_evolving_rubrics, reads=("reward.scored_rubrics", "judge.train.irrelevant_rate"), check=check_query_rubrics
)
