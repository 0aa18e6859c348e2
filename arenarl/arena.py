"""Rollout groups → rewards: the judge meets the topology here.

For ArenaRL a group plays its tournament and the ranks become rewards (Eqs. 3-6); the paper's baselines ask the judge for a
pointwise score instead (Section 6.1). All groups of a step run at once. A group without two ranked trajectories gets no reward.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import kendalltau

from arenarl.config import Config
from arenarl.environments.travel_truth import total_score
from arenarl.judge import Examiner, Judge
from arenarl.rewards import pointwise_reward, rank_to_reward
from arenarl.seeds import stable_seed
from arenarl.topologies import parameters_of
from arenarl.tournament import Ranking, midranks, play_tournament
from arenarl.trajectory import Query, RolloutGroup, Trajectory


@dataclass
class GroupOutcome:
    """What judging gave one group: `rewards_G` and `ranks_G` are (G,), None where there was no verdict."""

    rewards_G: list[float | None]
    ranks_G: list[float | None]
    judge_calls: int
    failed_calls: int
    ranking: Ranking | None = field(default=None, repr=False)


def reward_groups(groups: Sequence[RolloutGroup], judge: Judge, config: Config) -> list[GroupOutcome]:
    """Reward every group by the method that `reward.name` names."""

    async def run() -> list[GroupOutcome]:
        reward = _tournament_reward if config.reward.name == "tournament" else _pointwise_reward
        return await asyncio.gather(*(reward(group, judge, config) for group in groups))

    return asyncio.run(run())


async def _tournament_reward(group: RolloutGroup, judge: Judge, config: Config) -> GroupOutcome:
    """Eqs. 3-6, ArenaRL. Trajectories with the same messages enter once."""
    trajectories = group.trajectories

    async def compare(i: int, j: int) -> tuple[float, float, list[dict[str, float]]] | None:
        verdict = await judge.compare(group.query, trajectories[i], trajectories[j])
        return None if verdict is None else (*verdict.totals, list(verdict.dimensions))

    tournament = config.tournament
    ranking = await play_tournament(
        tournament.topology,
        len(trajectories),
        compare,
        seed=stable_seed(config.seed, group.query.query_id),
        entrants=[repr(trajectory.messages) for trajectory in trajectories],
        valid_G=[trajectory.valid for trajectory in trajectories],
        timeout_s=tournament.timeout_s,
        ranking=tournament.ranking,
        **{name: getattr(tournament, name) for name in parameters_of(tournament.topology)},
    )
    failed_calls = sum(call.scores is None for match in ranking.matches for call in match.calls)
    return GroupOutcome(rank_to_reward(ranking.ranks_G), ranking.ranks_G, ranking.judge_calls, failed_calls, ranking)


async def _pointwise_reward(group: RolloutGroup, judge: Judge, config: Config) -> GroupOutcome:
    """One score a trajectory (3.2), of the answer alone as in the paper's GRPO and GSPO rows, or of all of it."""
    answer_only = config.reward.name == "pointwise_answer"
    valid = [trajectory for trajectory in group.trajectories if trajectory.valid]
    verdicts = await asyncio.gather(*(judge.score(group.query, trajectory, answer_only) for trajectory in valid))
    remaining = iter(verdicts)
    scores_G = [verdict.totals[0] if trajectory.valid and (verdict := next(remaining)) else None for trajectory in group.trajectories]
    rewards_G = pointwise_reward(scores_G, [trajectory.valid for trajectory in group.trajectories])
    ranks_G = midranks(rewards_G)
    return GroupOutcome(rewards_G, ranks_G, len(valid), sum(verdict is None for verdict in verdicts))


def outcome_metrics(groups: Sequence[RolloutGroup], outcomes: Sequence[GroupOutcome], examine: Examiner) -> dict[str, float]:
    """A step's `area/quantity` metrics; `true/` ones need the embedded world and are never seen by the policy."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    calls = sum(trajectory.meta["tool_calls"] for trajectory in trajectories)
    quality = [[true_quality(examine, group.query, trajectory) for trajectory in group.trajectories] for group in groups]
    taus = [_agreement(outcome.rewards_G, truth_G) for outcome, truth_G in zip(outcomes, quality, strict=True)]
    judged = sum(outcome.judge_calls for outcome in outcomes)
    metrics = {
        "rollout/valid_rate": np.mean([trajectory.valid for trajectory in trajectories]),
        "rollout/tool_calls": calls / len(trajectories),
        "rollout/tool_error_rate": sum(trajectory.meta["tool_errors"] for trajectory in trajectories) / max(1, calls),
        "rollout/turns": np.mean([trajectory.meta["turns"] for trajectory in trajectories]),
        "rollout/policy_tokens": np.mean([sum(trajectory.policy_mask_T) for trajectory in trajectories]),
        "judge/calls_per_group": judged / len(groups),
        "judge/failure_rate": sum(outcome.failed_calls for outcome in outcomes) / max(1, judged),
        "true/quality": np.mean(quality),
        "true/quality_spread": np.mean(np.std(quality, axis=1)),
        "true/rank_agreement": np.nanmean(taus) if np.isfinite(taus).any() else math.nan,
    }
    for name in ("tie_rate", "flip_rate"):
        rates = [rate for outcome in outcomes if outcome.ranking and (rate := getattr(outcome.ranking, name)) is not None]
        if rates:
            metrics[f"judge/{name}"] = np.mean(rates)
    return {name: float(value) for name, value in metrics.items()}


def rollout_table(groups: Sequence[RolloutGroup], outcomes: Sequence[GroupOutcome]) -> tuple[list[str], list[list]]:
    """Columns and rows of the table of trajectories with their ranks that W&B shows."""
    columns = ["query", "rank", "reward", "is_anchor", "stop_reason", "tool_calls", "answer"]
    rows = [
        [group.query.query, rank, reward, trajectory.is_anchor, trajectory.stop_reason, trajectory.meta["tool_calls"], trajectory.answer]
        for group, outcome in zip(groups, outcomes, strict=True)
        for trajectory, rank, reward in zip(group.trajectories, outcome.ranks_G, outcome.rewards_G, strict=True)
    ]
    return columns, rows


def true_quality(examine: Examiner, query: Query, trajectory: Trajectory) -> float:
    """Noise-free total of the embedded judge, 0 to 10; 0 if the trajectory is invalid."""
    return total_score(examine(query, trajectory).dimensions()) if trajectory.valid else 0.0


def _agreement(rewards_G: list[float | None], truth_G: list[float]) -> float:
    """Kendall's tau-b between rewards and true quality over the rewarded; NaN where either is constant."""
    pairs = [(reward, truth) for reward, truth in zip(rewards_G, truth_G, strict=True) if reward is not None]
    if len({reward for reward, _ in pairs}) < 2 or len({truth for _, truth in pairs}) < 2:
        return math.nan
    return kendalltau(*zip(*pairs, strict=True)).statistic
