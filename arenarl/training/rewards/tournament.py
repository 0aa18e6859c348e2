"""ArenaRL: the group plays `tournament.topology`, and the ranks become rewards (Eqs. 3-6, ArenaRL).

Departs from the paper: Eq. 6 uses the M ranked trajectories instead of all N, because verdicts can be missing.
"""

from collections.abc import Sequence

import numpy as np

from arenarl.tournament.topologies import parameters_of
from arenarl.training.rewards.formulas import to_array, to_list
from arenarl.training.rewards.group import GroupOutcome, IncomingGroup, Referee, Reward, play, ranked_outcome


def rank_to_reward(ranks_G: Sequence[float | None]) -> list[float | None]:
    """Return rewards (G,) in [0, 1]: 1 for rank 0, 0 for the last of M ranks; all None if M < 2. Eq. 6, ArenaRL.

    >>> rank_to_reward([0, 2, None, 1])
    [1.0, 0.0, None, 0.5]
    """
    ranks = to_array(ranks_G)
    ranked = np.isfinite(ranks).sum()
    return to_list(1 - ranks / (ranked - 1) if ranked >= 2 else np.full_like(ranks, np.nan))


async def by_tournament(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """Play `tournament.topology` and reward the ranks. Eqs. 3-6, ArenaRL."""
    keys = referee.tournament
    options = {name: getattr(keys, name) for name in ("ranking", *parameters_of(keys.topology))}
    _, ranking = await play(referee, incoming, keys.topology, **options, variances=referee.variances)
    return ranked_outcome(rank_to_reward(ranking.ranks_G), ranking)


REWARD = Reward(by_tournament, plays_topology=True, compares=True)
