"""TournO's batched Elo: ratings scaled to [0, 1]; the rating of an invalid trajectory is one match below the lowest.

TournO has no invalid trajectories; their rating is our choice.
"""

from collections.abc import Sequence

from arenarl.tournament.elo import K
from arenarl.tournament.ranking import Ranking
from arenarl.tournament.topologies import parameters_of
from arenarl.training.rewards.formulas import below_lowest, min_max
from arenarl.training.rewards.group import GroupOutcome, IncomingGroup, Referee, Reward, play, points_of, ranked_outcome


def elo_reward(ratings_G: Sequence[float | None], valid_G: Sequence[bool | None]) -> list[float | None]:
    """Return rewards (G,) in [0, 1]: ratings scaled by `min_max`; all None if no valid trajectory has a rating.

    >>> [reward and round(reward, 4) for reward in elo_reward([64.0, 0.0, None, None], [True, True, False, None])]
    [1.0, 0.3333, 0.0, None]
    """
    return min_max(below_lowest(ratings_G, valid_G, gap=K))


async def elo_rewards(referee: Referee, incoming: IncomingGroup) -> tuple[list[float | None], Ranking]:
    """Play the Elo matches; return rewards (G,) in [0, 1] and the ranking."""
    options = {name: getattr(referee.tournament, name) for name in parameters_of("elo")}
    valid_G, ranking = await play(referee, incoming, "elo", **options)
    return elo_reward(points_of(ranking), valid_G), ranking


async def by_elo(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    return ranked_outcome(*await elo_rewards(referee, incoming))


REWARD = Reward(by_elo, own_topology=lambda config: "elo", compares=True)
