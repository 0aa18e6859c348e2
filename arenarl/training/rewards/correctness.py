"""Reward 1 for the known answer, else 0, as `judge.verifier` decides (C.1, InfoAgent).

`correctness_or_tournament` plays the tournament for queries without a known answer (our choice).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from arenarl.domains.known_answers import entity_recall, has_answer
from arenarl.training.rewards.formulas import to_array, to_list
from arenarl.training.rewards.group import GroupOutcome, IncomingGroup, Referee, Reward, ask, scored_outcome
from arenarl.training.rewards.tournament import by_tournament


def correctness_reward(
    correct_G: Sequence[bool | None], recall_G: Sequence[float], weight: float
) -> list[float | None]:
    """Return rewards (G,) in [0, 1]: 1 for a correct answer, else `weight` times the share of entities found.

    None stays None. Eq. 8, InfoAgent, with min in place of max: the paper's text says that only a correct answer gets
    the highest reward.

    >>> correctness_reward([True, False, None], [0.5, 0.5, 1.0], weight=0.5)
    [1.0, 0.25, None]
    """
    return to_list(np.minimum(to_array(correct_G) + weight * to_array(recall_G), 1.0))


async def by_correctness(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """Reward correctness; an invalid trajectory gets 0 even if it found entities."""
    query, verifier = incoming.query, referee.verifier
    valid_G, replies_G = await ask(incoming, lambda trajectory: [verifier.is_correct(query, trajectory)])
    correct_G = [replies[0] if replies else valid for replies, valid in zip(replies_G, valid_G, strict=True)]
    pairs = zip(valid_G, (await incoming.complete()).trajectories, strict=True)
    recall_G = [bool(valid) * entity_recall(query, trajectory.messages) for valid, trajectory in pairs]
    rewards_G = correctness_reward(correct_G, recall_G, referee.reward.entity_recall)
    return replace(scored_outcome(rewards_G, replies_G if verifier.is_llm else []), correct_G=correct_G)


async def by_correctness_or_tournament(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    return await (by_correctness if has_answer(incoming.query) else by_tournament)(referee, incoming)


REWARD = Reward(
    by_correctness, reads=("reward.entity_recall", "reward.tournament_if_equal"), asks_judge=False, needs_answers=True
)
OR_TOURNAMENT = Reward(
    by_correctness_or_tournament, reads=("reward.entity_recall",), plays_topology=True, compares=True
)
