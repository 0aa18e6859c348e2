"""BRPO (Writing-Zero, arXiv 2506.00103): 1 for beating a random valid member of the group, -1 for losing to it.

With `rl.advantage: none`, this reward is the advantage.
"""

from collections.abc import Sequence

from arenarl.training.rewards.group import GroupOutcome, IncomingGroup, Referee, Reward, play, points_of, ranked_outcome


def reference_reward(signs_G: Sequence[float | None], valid_G: Sequence[bool | None]) -> list[float | None]:
    """Return rewards (G,): 1 for beating the reference, -1 for losing to it or being invalid.

    All rewards are 0 if no trajectory is valid.

    >>> reference_reward([0.0, 1.0, -1.0, None, None, 0.0], [True, True, True, True, False, None])
    [0.0, 1.0, -1.0, None, -1.0, None]
    """
    lost = [None if valid is None else sign if valid else -1.0 for sign, valid in zip(signs_G, valid_G, strict=True)]
    if not any(valid_G):
        return [None if valid is None else 0.0 for valid in valid_G]
    has_verdict = any(sign is not None for sign, valid in zip(signs_G, valid_G, strict=True) if valid)
    return lost if has_verdict else [None] * len(lost)


async def by_random_reference(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    valid_G, ranking = await play(referee, incoming, "random_reference")
    return ranked_outcome(reference_reward(points_of(ranking), valid_G), ranking)


REWARD = Reward(by_random_reference, compares=True)
