"""1 for the known answer, 0 for another or none, as `judge.verifier` decides (C.1, InfoAgent).

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
    """Reward (G,) in [0, 1]: 1 for a correct answer, else `weight` times the share of the entities found.
    None stays None.

    Eq. 8, InfoAgent, with min for its max: as the text wants it,
    no trajectory but one with a correct answer has the highest reward.

    >>> correctness_reward([True, False, None], [0.5, 0.5, 1.0], weight=0.5)
    [1.0, 0.25, None]
    """
    return to_list(np.minimum(to_array(correct_G) + weight * to_array(recall_G), 1.0))


async def by_correctness(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """What is invalid has 0, whatever it found."""
    query, verifier = incoming.query, referee.verifier
    valid_G, replies_G = await ask(incoming, lambda one: [verifier.is_correct(query, one)])
    correct_G = [replies[0] if replies else valid for replies, valid in zip(replies_G, valid_G, strict=True)]
    trajectories = (await incoming.complete()).trajectories
    recall_G = [
        bool(valid) * entity_recall(query, one.messages) for valid, one in zip(valid_G, trajectories, strict=True)
    ]
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
