"""Pointwise rewards: each trajectory is scored by itself.

`pointwise_answer` scores the answer, as in the paper's GRPO and GSPO rows (3.2, 6.1, ArenaRL). `pointwise_trajectory`
scores everything that the tournament's judge sees (our choice). `pointwise_implicit` and `pointwise_explicit` are
Tournament-GRPO's baselines: one overall score, or one score per rubric dimension (Eqs. 11 to 14, Tournament-GRPO).
"""

from statistics import fmean

from arenarl.config.schema import Config
from arenarl.domains.rubrics import weighted_mean
from arenarl.system.errors import UserError
from arenarl.tournament.ranking import midranks
from arenarl.training.rewards.formulas import add_format_reward, below_lowest, pointwise_reward, zero_invalid
from arenarl.training.rewards.group import GroupOutcome, IncomingGroup, Referee, Reward, ask, rounded, scored_outcome
from arenarl.training.rewards.tournament import rank_to_reward
from arenarl.trajectory import Trajectory


async def by_score(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """Reward the mean of `reward.repeats` scores from 0 to 10, divided by 10; an invalid trajectory gets 0.
    With `reward.as_ranks`, reward the rank of this mean (Eq. 6, ArenaRL); invalid trajectories are last.

    Scores of 9, 4, 7, 9 and an invalid trajectory as ranks:

    >>> rank_to_reward(midranks(below_lowest([9, 4, 7, 9, None], [True, True, True, True, False], gap=1.0)))
    [0.875, 0.25, 0.5, 0.875, 0.0]
    """
    reward = referee.reward

    async def score(trajectory: Trajectory, repeat: int) -> float | None:
        verdict = await referee.judge.score(incoming.query, trajectory, reward.name == "pointwise_answer", repeat)
        return None if verdict is None else verdict.totals[0]

    valid_G, replies_G = await ask(incoming, lambda one: [score(one, repeat) for repeat in range(reward.repeats)])
    known_G = [[reply for reply in replies if reply is not None] for replies in replies_G]
    scores_G = [fmean(known) if known else None for known in known_G]
    if reward.as_ranks:
        ranks_G = midranks(rounded(below_lowest(scores_G, valid_G, gap=1.0)))
        return scored_outcome(rank_to_reward(ranks_G), replies_G, scores_G)
    return scored_outcome(pointwise_reward(zero_invalid(scores_G, valid_G)), replies_G, scores_G)


async def by_overall_score(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """Reward the overall score plus validity: a score of 6 gives 0.6 + 1, an invalid trajectory gets 0.

    >>> add_format_reward(pointwise_reward(zero_invalid([6.0, None], [True, False])), [True, False])
    [1.6, 0.0]
    """
    valid_G, replies_G = await ask(incoming, lambda one: [referee.judge.score_overall(incoming.query, one)])
    scores_G = [replies[0] if replies else None for replies in replies_G]
    judged_G = pointwise_reward(zero_invalid(scores_G, valid_G))
    return scored_outcome(add_format_reward(judged_G, valid_G), replies_G, scores_G)


async def by_dimension(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """Reward the mean of validity and the weighted dimensions; a trajectory with a missing dimension has no score.

    Scores 9, 6 and 3 with weights 3, 2 and 1 have the mean 7:

    >>> add_format_reward(pointwise_reward([weighted_mean({"a": 9, "b": 6, "c": 3}, {"a": 3, "b": 2, "c": 1})]),
    ...                   [True], scale=0.5)
    [0.85]
    """
    query, weights = incoming.query, referee.judge.weights(incoming.query)
    score = referee.judge.score_dimension
    valid_G, replies_G = await ask(incoming, lambda trajectory: [score(query, trajectory, name) for name in weights])
    scores_G = [
        weighted_mean(dict(zip(weights, replies, strict=True)), weights) if replies else None for replies in replies_G
    ]
    judged_G = pointwise_reward(zero_invalid(scores_G, valid_G))
    parts_G = [
        None if judged is None else pointwise_reward(replies or [0.0] * len(weights))
        for judged, replies in zip(judged_G, replies_G, strict=True)
    ]
    return scored_outcome(add_format_reward(judged_G, valid_G, scale=0.5), replies_G, scores_G, parts_G=parts_G)


def _check(config: Config) -> None:
    if config.reward.repeats > 1 and config.judge.train.name == "llm" and config.judge.train.temperature == 0:
        raise UserError(
            f"reward.repeats={config.reward.repeats}: at judge.train.temperature=0 all replies to a prompt are equal, "
            "and each is paid for; set the temperature above 0, or reward.repeats=1"
        )


REWARD = Reward(by_score, reads=("reward.repeats", "reward.as_ranks"), check=_check)
IMPLICIT = Reward(by_overall_score, adds_format=True)
EXPLICIT = Reward(by_dimension, adds_format=True, has_parts=True)
