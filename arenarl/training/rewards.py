"""Rewards and advantages of one rollout group, as functions of arrays.

Last stop before the trainer: ranks and points (of a tournament) or pointwise scores in, one reward a trajectory out. A
trajectory that could not be judged has the reward None, which TRL understands as 'no reward', and takes no part in the
group's statistics; nor does a void one, of which `valid_G` says None. Departs from the papers: Eq. 6 runs over the M
ranked trajectories, not over all N, since verdicts can be missing; Tournament-GRPO's format reward is validity, and
what is invalid is not judged.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from arenarl.tournament.elo import K


def rank_to_reward(ranks_G: Sequence[float | None]) -> list[float | None]:
    """Reward (G,) in [0, 1] by quantile: 1 for rank 0, 0 for the last of the M ranked; None with M < 2. Eq. 6, ArenaRL.

    >>> rank_to_reward([0, 2, None, 1])
    [1.0, 0.0, None, 0.5]
    """
    ranks = _to_array(ranks_G)
    ranked = np.isfinite(ranks).sum()
    return _to_list(1 - ranks / (ranked - 1) if ranked >= 2 else np.full_like(ranks, np.nan))


def standardize(rewards_G: Sequence[float | None], ddof: int = 1, eps: float = 1e-4) -> np.ndarray:
    """Advantage (G,): rewards minus their mean, by their standard deviation plus `eps`; 0 where there is no reward.

    All 0 where the rewards are equal. The defaults are TRL's; the paper names neither. Eq. 7, ArenaRL.

    >>> standardize([1.0, 0.0, None, 0.5], eps=0).tolist()
    [1.0, -1.0, 0.0, 0.0]
    """
    rewards = _to_array(rewards_G)
    known = rewards[np.isfinite(rewards)]
    if not len(known) or known.min() == known.max():
        return np.zeros_like(rewards)
    return np.nan_to_num((rewards - known.mean()) / (known.std(ddof=ddof) + eps))


def center(rewards_G: Sequence[float | None]) -> list[float | None]:
    """Rewards (G,) less the mean of those there are; None stays None.
    Dr.GRPO's advantage; REINFORCE++'s, before the batch's scale.

    >>> center([1.0, 0.0, None, 0.5])
    [0.5, -0.5, None, 0.0]
    """
    rewards = _to_array(rewards_G)
    return _to_list(rewards - np.nanmean(rewards)) if np.isfinite(rewards).any() else list(rewards_G)


def leave_one_out(rewards_G: Sequence[float | None]) -> list[float | None]:
    """Each reward (G,) less the mean of the others; None stays None, and where there are no others it is 0. RLOO.

    Of M rewards this is the distance from the mean of all, times M / (M - 1).

    >>> leave_one_out([1.0, 0.0, None, 0.5])
    [0.75, -0.75, None, 0.0]
    """
    known = np.isfinite(_to_array(rewards_G)).sum()
    return [None if reward is None else float(reward * known / max(1, known - 1)) for reward in center(rewards_G)]


def pointwise_reward(
    scores_G: Sequence[float | None], valid_G: Sequence[bool | None] | None = None, scale: float = 10.0
) -> list[float | None]:
    """Reward (G,) in [0, 1] from judge scores in 0–`scale`: None stays None, an invalid trajectory has 0.

    >>> pointwise_reward([7.5, None, 9.0], valid_G=[True, True, False])
    [0.75, None, 0.0]
    """
    scores = _to_array(scores_G)
    if valid_G is not None:
        scores = np.where(_to_array(valid_G) == 0, 0.0, scores)
    # a weighted mean of full marks can be a rounding error above them
    if np.any((scores < 0) | (scores > scale + 1e-9)):
        raise ValueError(f"scores must lie in 0–{scale:g}: {list(scores_G)}")
    return _to_list(np.minimum(scores / scale, 1.0))


def correctness_reward(
    correct_G: Sequence[bool | None], recall_G: Sequence[float | None] | None = None, weight: float = 0.0
) -> list[float | None]:
    """Reward (G,) in [0, 1]: 1 for a correct answer, else `weight` times the share of the entities found.
    None stays None.

    Eq. 8, InfoAgent, with min for its max: as the text wants it,
    no trajectory but one with a correct answer has the highest reward.

    >>> correctness_reward([True, False, None], [0.5, 0.5, 1.0], weight=0.5)
    [1.0, 0.25, None]
    """
    recall = np.zeros(len(correct_G)) if recall_G is None else _to_array(recall_G)
    return _to_list(np.minimum(_to_array(correct_G) + weight * recall, 1.0))


def zero_invalid(scores_G: Sequence[float | None], valid_G: Sequence[bool | None]) -> list[float | None]:
    """Scores (G,) in which an invalid trajectory has 0: it is not judged, so it wins nothing.
    Without any verdict all are None.

    >>> zero_invalid([3.0, None, None, 0.0], [True, False, True, None])
    [3.0, 0.0, None, None]
    >>> zero_invalid([None, None], [True, False])
    [None, None]
    """
    if any(valid_G) and all(score is None for score, valid in zip(scores_G, valid_G, strict=True) if valid):
        return [None] * len(scores_G)
    return [None if valid is None else score if valid else 0.0 for score, valid in zip(scores_G, valid_G, strict=True)]


def min_max(points_G: Sequence[float | None], eps: float = 1e-6) -> list[float | None]:
    """Points (G,) normalised to [0, 1] in the group; all 0 where they are equal, None stays None. Eq.
    8, Tournament-GRPO.

    The paper gives no `eps`; ours keeps the best within 1e-6 of 1, since points come in whole wins.

    >>> min_max([3.0, 0.0, None, 1.5], eps=0)
    [1.0, 0.0, None, 0.5]
    """
    points = _to_array(points_G)
    known = points[np.isfinite(points)]
    if not len(known) or known.min() == known.max():
        return _to_list(0 * points)
    return _to_list((points - known.min()) / (known.max() - known.min() + eps))


def add_format_reward(
    judged_G: Sequence[float | None], valid_G: Sequence[bool | None], scale: float = 1.0
) -> list[float | None]:
    """Reward (G,): `scale` times the sum of what the judge gave, in [0, 1], and of 1 for a valid trajectory.
    None stays None.

    Eqs. 9, 12 and 15, Tournament-GRPO; Eq. 14, the mean of the two, with `scale` 1/2.

    >>> add_format_reward([0.5, 0.0, None], [True, False, True])
    [1.5, 0.0, None]
    """
    return _to_list(scale * (_to_array(judged_G) + _to_array(valid_G)))


def reference_reward(signs_G: Sequence[float | None], valid_G: Sequence[bool | None]) -> list[float | None]:
    """Reward (G,): 1 for who beats the reference, -1 for who loses to it, as an invalid one does;
    0 without a valid one. BRPO, Writing-Zero.

    >>> reference_reward([0.0, 1.0, -1.0, None, None, 0.0], [True, True, True, True, False, None])
    [0.0, 1.0, -1.0, None, -1.0, None]
    """
    lost = [None if valid is None else sign if valid else -1.0 for sign, valid in zip(signs_G, valid_G, strict=True)]
    if not any(valid_G):
        return [None if valid is None else 0.0 for valid in valid_G]
    has_verdict = any(sign is not None for sign, valid in zip(signs_G, valid_G, strict=True) if valid)
    return lost if has_verdict else [None] * len(lost)


def elo_reward(ratings_G: Sequence[float | None], valid_G: Sequence[bool | None]) -> list[float | None]:
    """Reward (G,) in [0, 1]: ratings normalised as in `min_max`,
    an invalid trajectory being a match's worth below the lowest. TournO.

    That paper's trajectories are all judged; how far below is our choice. Without any rating all are None.

    >>> [reward and round(reward, 4) for reward in elo_reward([64.0, 0.0, None, None], [True, True, False, None])]
    [1.0, 0.3333, 0.0, None]
    """
    known = [rating for rating, valid in zip(ratings_G, valid_G, strict=True) if valid and rating is not None]
    if any(valid_G) and not known:
        return [None] * len(ratings_G)
    lowest = min(known, default=0.0) - K
    return min_max(
        [
            None if valid is None else rating if valid else lowest
            for rating, valid in zip(ratings_G, valid_G, strict=True)
        ]
    )


def mixture_reward(point_G: Sequence[float | None], pair_G: Sequence[float | None], alpha: float) -> list[float | None]:
    """Reward (G,): the score plus exp(-alpha times the group's mean score) times the share of matches won;
    None without either. TournO.

    >>> [round(reward, 4) for reward in mixture_reward([0.0, 1.0], [0.0, 1.0], alpha=2.0)]
    [0.0, 1.3679]
    """
    points = _to_array(point_G)
    weight = np.exp(-alpha * np.nanmean(points)) if np.isfinite(points).any() else np.nan
    return _to_list(points + weight * _to_array(pair_G))


def checklist_reward(met_G: Sequence[Mapping[str, bool] | None], weights: Mapping[str, float]) -> list[float | None]:
    """Reward (G,) in [0, 1]: the weighted share of the items that are met; None stays None.
    Explicit aggregation, Rubrics as Rewards.

    >>> checklist_reward([{"a": True, "b": False}, None], {"a": 3, "b": 1})
    [0.75, None]
    """
    whole = sum(weights.values())
    return [
        None if met is None else sum(weight for item, weight in weights.items() if met[item]) / whole for met in met_G
    ]


def _to_array(values_G: Sequence[float | None]) -> np.ndarray:
    """None becomes NaN."""
    return np.array(values_G, dtype=float)


def _to_list(values_G: np.ndarray) -> list[float | None]:
    """NaN becomes None."""
    return [None if np.isnan(value) else float(value) for value in values_G]
