"""The share of matches won against all others, plus 1 for a valid trajectory (Eq. 15, Tournament-GRPO).

Both orders are asked (Eq. 3, ArenaRL). A draw is a win for neither.
"""

from arenarl.tournament.ranking import Ranking
from arenarl.training.rewards.formulas import add_format_reward, zero_invalid
from arenarl.training.rewards.group import GroupOutcome, IncomingGroup, Referee, Reward, play, ranked_outcome


async def win_rates(referee: Referee, incoming: IncomingGroup) -> tuple[list[float | None], list, Ranking]:
    """(share of all others beaten, valid_G, the matches), the first two (G,)."""
    valid_G, ranking = await play(referee, incoming, "round_robin")
    won_G = ranking.scores_G if ranking.matches else [0.0] * len(valid_G)  # nobody to beat is no missing verdict
    return zero_invalid(won_G, valid_G), valid_G, ranking


async def by_win_rate(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """Of three valid trajectories, two of which draw and lose to the third, and an invalid one:

    >>> add_format_reward(zero_invalid([0.0, 0.0, 1.0, None], [True, True, True, False]), [True, True, True, False])
    [1.0, 1.0, 2.0, 0.0]
    """
    won_G, valid_G, ranking = await win_rates(referee, incoming)
    return ranked_outcome(add_format_reward(won_G, valid_G), ranking)


REWARD = Reward(by_win_rate, adds_format=True, compares=True)
