"""DGR (arXiv 2510.15514): net wins over all pairs, after a minimum feedback arc set has removed the cycles.

The reward is wins minus losses, over the number of opponents, from -1 to 1. Departs from DGR: both orders of a match
(Eq. 3, ArenaRL), identical trajectories enter once, and an invalid trajectory is one place below the lowest.
"""

from collections.abc import Sequence

from arenarl.training.rewards.formulas import below_lowest
from arenarl.training.rewards.group import (
    GroupOutcome,
    IncomingGroup,
    Referee,
    Reward,
    first_rows,
    play,
    points_of,
    ranked_outcome,
)


def dgr_reward(net_G: Sequence[float | None], valid_G: Sequence[bool | None], entrants: int) -> list[float | None]:
    """Return rewards (G,): net wins; all None if no valid trajectory has a verdict.

    Without cycles and draws, the places of the entrants are 2 / (`entrants` - 1) apart. An invalid trajectory is that
    far below the lowest, or 0 if all are invalid.

    >>> dgr_reward([1.0, 0.0, -1.0, None, None], [True, True, True, False, None], entrants=3)
    [1.0, 0.0, -1.0, -2.0, None]
    """
    return below_lowest(net_G, valid_G, gap=2 / max(1, entrants - 1))


async def by_net_wins(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    valid_G, ranking = await play(referee, incoming, "dgr")
    entrants = len({*first_rows((await incoming.complete()).trajectories)} - {None})
    return ranked_outcome(dgr_reward(points_of(ranking), valid_G, entrants), ranking)


REWARD = Reward(by_net_wins, own_topology=lambda config: "dgr", compares=True)
