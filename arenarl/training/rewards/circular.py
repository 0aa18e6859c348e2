"""NeMo Gym's circular comparison (genrm_compare): mean scores from the matches with both neighbours on a circle.

NeMo Gym's judge gives each of two responses a score from 1 to 5, and a ranking from 1 (the first is much better) to 6
(the second is). The ranking splits equal scores: the first gains 3.5 - ranking, the second loses it. A shorter answer
than the group's others gains up to `reward.length_penalty`, a longer one loses as much. Our judges give totals from 0
to 10 and no ranking, so score and ranking are read off the totals (our reconstruction). Also departs from NeMo Gym: the
circle's order is random, the lengths of thoughts do not count, identical trajectories enter once, two entrants play one
match instead of one in each order, and an invalid trajectory is a point below the lowest.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import floor
from statistics import fmean

import numpy as np

from arenarl.tournament.ranking import scored_calls
from arenarl.tournament.schedules import DECIMALS
from arenarl.training.rewards.formulas import below_lowest, to_array, to_list
from arenarl.training.rewards.group import (
    GroupOutcome,
    IncomingGroup,
    Referee,
    Reward,
    first_rows,
    play,
    rewarded_outcome,
)

MIDPOINT = 3.5  # of the ranking
DEFAULT = 3.0  # score without an opponent; NeMo Gym's
STEPS = (1.0, 2.5)  # leads in points of 10 above which "slightly better" becomes "better", then "much better"


def score_of(total: float) -> int:
    """Return the score from 1 to 5 for a total from 0 to 10.

    >>> [score_of(total) for total in (0, 1.2, 1.25, 5, 8.7, 10)]
    [1, 1, 2, 3, 4, 5]
    """
    return 1 + floor(round(0.4 * total, DECIMALS) + 0.5)


def ranking_of(first: float, second: float) -> float:
    """Return the ranking for two totals: 1 to 3 if the first is better, 4 to 6 if the second is, 3.5 for equal ones.

    >>> [ranking_of(first, 5.0) for first in (8.0, 7.0, 5.5, 5.0, 4.5, 3.0, 2.0)]
    [1.0, 2.0, 3.0, 3.5, 4.0, 5.0, 6.0]
    """
    lead = round(first - second, DECIMALS)
    distance = 0.5 + sum(abs(lead) > step for step in STEPS) if lead else 0.0
    return MIDPOINT - distance if lead > 0 else MIDPOINT + distance


def split_scores(first: float, second: float) -> tuple[float, float]:
    """Return both scores of a comparison with these totals; the ranking splits equal scores.

    >>> split_scores(8.0, 4.0), split_scores(5.5, 4.5), split_scores(5.0, 5.0)
    ((4.0, 3.0), (3.5, 2.5), (3.0, 3.0))
    """
    scores = float(score_of(first)), float(score_of(second))
    gain = MIDPOINT - ranking_of(first, second) if scores[0] == scores[1] else 0.0
    return scores[0] + gain, scores[1] - gain


def mean_scores(calls: Iterable[tuple[int, int, float, float]], size: int) -> list[float | None]:
    """Return each row's mean score (size,), None without a call. A call is (first, second, their two totals)."""
    scores: dict[int, list[float]] = defaultdict(list)
    for first, second, *totals in calls:
        for row, score in zip((first, second), split_scores(*totals), strict=True):
            scores[row].append(score)
    return [fmean(scores[row]) if scores[row] else None for row in range(size)]


def shorter_is_better(lengths_V: Sequence[int], penalty: float) -> np.ndarray:
    """Return each answer's bonus (V,) for its length: `penalty` times its place from longest (0) to shortest (1), less
    the mean place.

    >>> shorter_is_better([100, 200, 300], penalty=0.5).tolist()
    [0.25, 0.0, -0.25]
    """
    lengths = np.array(lengths_V, dtype=float)
    if not len(lengths) or lengths.min() == lengths.max():
        return np.zeros_like(lengths)
    places = (lengths.max() - lengths) / (lengths.max() - lengths.min())
    return penalty * (places - places.mean())


def circular_reward(
    scores_G: Sequence[float | None], valid_G: Sequence[bool | None], lengths_G: Sequence[int], penalty: float = 0.0
) -> list[float | None]:
    """Return rewards (G,): score plus bonus for length; an invalid trajectory is a point below the lowest, 0 if all are
    invalid. All None if no valid trajectory has a score.

    >>> circular_reward([4.0, 2.0, None, None], [True, True, False, None], [9, 3, 1, 1], penalty=1.0)
    [3.5, 2.5, 1.5, None]
    """
    rewards = to_array(scores_G)
    rows = [row for row, valid in enumerate(valid_G) if valid and scores_G[row] is not None]
    rewards[rows] += shorter_is_better([lengths_G[row] for row in rows], penalty)
    return below_lowest(to_list(rewards), valid_G, gap=1.0)


async def by_circle(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    valid_G, ranking = await play(referee, incoming, "circular")
    trajectories = (await incoming.complete()).trajectories
    by_row = mean_scores(scored_calls(ranking.matches), len(trajectories))
    if not ranking.matches:
        by_row = [DEFAULT] * len(trajectories)
    scores_G = [None if row is None else by_row[row] for row in first_rows(trajectories)]
    lengths_G = [len(trajectory.answer) for trajectory in trajectories]
    rewards_G = circular_reward(scores_G, valid_G, lengths_G, referee.reward.length_penalty)
    return rewarded_outcome(rewards_G, ranking.judge_calls, ranking.failed_calls, ranking=ranking)


REWARD = Reward(by_circle, reads=("reward.length_penalty",), own_topology=lambda config: "circular", compares=True)
