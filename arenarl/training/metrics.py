"""What a step's groups leave behind: metrics, W&B's table of trajectories, the lines of groups.jsonl for the report.

Metrics are `area/quantity`; those named `true/` need the domain's truth and are never seen by the policy.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict

import numpy as np

from arenarl.judges.judge import Examiner, true_quality
from arenarl.training.rewards.group import GroupOutcome
from arenarl.trajectory import RolloutGroup, Trajectory, read_turns


def outcome_metrics(
    groups: Sequence[RolloutGroup], outcomes: Sequence[GroupOutcome], examine: Examiner | None
) -> dict[str, list[float]]:
    """A step's `area/quantity` metrics, each as the values whose mean it is: one a trajectory, group or call. So the
    mean over the values of all processes is that over all groups of the step."""
    started = [trajectory for group in groups for trajectory in group.trajectories]
    trajectories = [trajectory for trajectory in started if not trajectory.is_void]
    metrics = {
        "rollout/valid_rate": [trajectory.valid for trajectory in trajectories],
        "rollout/tool_calls": [trajectory.meta["tool_calls"] for trajectory in trajectories],
        "rollout/tool_error_rate": flags((one.meta["tool_errors"], one.meta["tool_calls"]) for one in trajectories),
        "rollout/tool_crash_rate": [trajectory.is_void for trajectory in started],
        "rollout/begun_again": ["begun_again" in trajectory.meta for trajectory in started],
        "rollout/distinct_answers": _distinct(groups, lambda one: one.answer),
        "rollout/distinct_calls": _distinct(groups, _calls),
        "rollout/world_reward": [one.meta["reward"] for one in trajectories if one.meta.get("reward") is not None],
        "rollout/turns": [trajectory.meta["turns"] for trajectory in trajectories],
        "rollout/policy_tokens": [trajectory.policy_tokens for trajectory in trajectories],
        "rollout/reward": [reward for outcome in outcomes for reward in outcome.rewards_G if reward is not None],
        "rollout/accuracy": [correct for outcome in outcomes for correct in outcome.correct_G if correct is not None],
    }
    if examine:
        truth = [_quality(examine, group) for group in groups]
        known = [[total for total in truth_G if total is not None] for truth_G in truth]
        taus = [rank_correlation(outcome.rewards_G, truth_G) for outcome, truth_G in zip(outcomes, truth, strict=True)]
        metrics |= {
            "true/quality": [total for totals in known for total in totals],
            "true/quality_spread": [np.std(totals) for totals in known if totals],
            "true/rank_agreement": [tau for tau in taus if not math.isnan(tau)],
        }
    return {name: [float(value) for value in values] for name, values in metrics.items()} | judge_metrics(outcomes)


def judge_metrics(outcomes: Sequence[GroupOutcome]) -> dict[str, list[float]]:
    """The metrics of the judge among `outcome_metrics`."""
    rankings = [outcome.ranking for outcome in outcomes if outcome.ranking]
    return {
        "judge/calls_per_group": [float(outcome.judge_calls) for outcome in outcomes],
        "judge/failure_rate": flags((outcome.failed_calls, outcome.judge_calls) for outcome in outcomes),
        "judge/tie_rate": [ranking.tie_rate for ranking in rankings if ranking.tie_rate is not None],
        "judge/flip_rate": [ranking.flip_rate for ranking in rankings if ranking.flip_rate is not None],
    }


def _distinct(groups: Sequence[RolloutGroup], what: Callable[[Trajectory], Hashable]) -> list[float]:
    """By group the share of different ones; void trajectories are left out, and groups of nothing else."""
    values = [[what(trajectory) for trajectory in group.trajectories if not trajectory.is_void] for group in groups]
    return [len(set(of_group)) / len(of_group) for of_group in values if of_group]


def _calls(trajectory: Trajectory) -> tuple[str, ...]:
    return tuple(repr(call) for turn in read_turns(trajectory.messages) for call in turn.tool_calls)


def _quality(examine: Examiner, group: RolloutGroup) -> list[float | None]:
    """By trajectory; None for a void one, and of a query without a truth."""
    return [
        None if one.is_void or examine(group.query, one) is None else true_quality(examine, group.query, one)
        for one in group.trajectories
    ]


def flags(counts: Iterable[tuple[int, int]]) -> list[float]:
    """(hits, of how many) each as so many ones and zeros."""
    return [flag for hits, total in counts for flag in [1.0] * hits + [0.0] * (total - hits)]


def rollout_table(groups: Sequence[RolloutGroup], outcomes: Sequence[GroupOutcome]) -> tuple[list[str], list[list]]:
    """Columns and rows of the table of trajectories with their ranks that W&B shows."""
    columns = ["query", "rank", "reward", "is_anchor", "stop_reason", "tool_calls", "answer"]
    rows = [
        [group.query.query, rank, reward, one.is_anchor, one.stop_reason, one.meta["tool_calls"], one.answer]
        for group, outcome in zip(groups, outcomes, strict=True)
        for one, rank, reward in zip(group.trajectories, outcome.ranks_G, outcome.rewards_G, strict=True)
    ]
    return columns, rows


def group_records(
    step: int, groups: Sequence[RolloutGroup], outcomes: Sequence[GroupOutcome], examine: Examiner | None
) -> list[dict]:
    """A step's groups as lines of runs/<run>/rl/groups.jsonl, for the report:
    trajectories, rewards, ranks, every match.

    `quality` is None without a truth.
    """
    return [
        {
            "step": step,
            "query_id": group.query.query_id,
            "subtask": group.query.subtask,
            "query": group.query.query,
            "trajectories": [trajectory.to_record() for trajectory in group.trajectories],
            "quality": [quality and round(quality, 3) for quality in _quality(examine, group)] if examine else None,
            "rewards": outcome.rewards_G,
            "ranks": outcome.ranks_G,
            "ranking": asdict(outcome.ranking) if outcome.ranking else None,
        }
        for group, outcome in zip(groups, outcomes, strict=True)
    ]


def rank_correlation(one_G: Sequence[float | None], other_G: Sequence[float | None]) -> float:
    """Kendall's tau-b over those that have both values; NaN where either is constant."""
    one, other = np.array(one_G, dtype=float), np.array(other_G, dtype=float)
    known = np.isfinite(one) & np.isfinite(other)
    if np.unique(one[known]).size < 2 or np.unique(other[known]).size < 2:
        return math.nan
    from scipy.stats import kendalltau  # at the first step of RL, not at every start

    return float(kendalltau(one[known], other[known]).statistic)
