"""The share of matches won against all other trajectories, plus 1 for a valid trajectory (Eq. 15, Tournament-GRPO).

The judge sees each pair in both orders (Eq. 3, ArenaRL). A draw counts as a win for neither.
"""

from arenarl.tournament.ranking import Ranking
from arenarl.training.rewards.formulas import add_format_reward, zero_invalid
from arenarl.training.rewards.group import GroupOutcome, IncomingGroup, Referee, Reward, play, points_of, ranked_outcome


async def win_rates(referee: Referee, incoming: IncomingGroup) -> tuple[list[float | None], list, Ranking]:
    """Play a round robin; return the win rates (G,), validity (G,) and the ranking."""
    valid_G, ranking = await play(referee, incoming, "round_robin")
    return zero_invalid(points_of(ranking), valid_G), valid_G, ranking


async def by_win_rate(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """Reward win rate plus validity. Two trajectories draw and lose to the third; the fourth is invalid:

    >>> add_format_reward(zero_invalid([0.0, 0.0, 1.0, None], [True, True, True, False]), [True, True, True, False])
    [1.0, 1.0, 2.0, 0.0]
    """
    won_G, valid_G, ranking = await win_rates(referee, incoming)
    return ranked_outcome(add_format_reward(won_G, valid_G), ranking)


REWARD = Reward(by_win_rate, adds_format=True, compares=True)
