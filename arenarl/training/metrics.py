"""Records of a step's groups: metrics, W&B's table of trajectories, the lines of groups.jsonl for the report.

Metrics are named `area/quantity`. Metrics named `true/` need the domain's truth, and training never uses them.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict

import numpy as np

from arenarl.judges.judge import Examiner, true_quality
from arenarl.training.rewards.group import GroupOutcome
from arenarl.trajectory import RolloutGroup, Trajectory, read_turns, repeated_calls


def outcome_metrics(
    groups: Sequence[RolloutGroup], outcomes: Sequence[GroupOutcome], examine: Examiner | None
) -> dict[str, list[float]]:
    """Return a step's metrics, each as a list of values: one per trajectory, group or call.

    The mean over the values of all processes is the metric over all groups of the step.
    """
    started = [trajectory for group in groups for trajectory in group.trajectories]
    trajectories = [trajectory for trajectory in started if not trajectory.is_void]
    metas = [trajectory.meta for trajectory in trajectories]
    repeated = [repeated_calls(trajectory.messages) for trajectory in trajectories]
    metrics = {
        "rollout/valid_rate": [trajectory.valid for trajectory in trajectories],
        "rollout/tool_calls": [meta["tool_calls"] for meta in metas],
        "rollout/tool_error_rate": flags((meta["tool_errors"], meta["tool_calls"]) for meta in metas),
        "rollout/repeated_calls": [share for share in repeated if share is not None],
        "rollout/tool_crash_rate": [trajectory.stop_reason == "tool_crash" for trajectory in started],
        "rollout/timeout_rate": [trajectory.stop_reason == "max_seconds" for trajectory in started],
        "rollout/no_room_rate": [trajectory.stop_reason == "no_room" for trajectory in started],
        "rollout/begun_again": ["begun_again" in trajectory.meta for trajectory in started],
        "rollout/distinct_answers": _distinct(groups, lambda trajectory: trajectory.answer),
        "rollout/distinct_calls": _distinct(groups, _calls),
        "rollout/world_reward": [meta["reward"] for meta in metas if meta.get("reward") is not None],
        "rollout/turns": [meta["turns"] for meta in metas],
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
    """Return the judge's metrics, which are part of `outcome_metrics`."""
    rankings = [outcome.ranking for outcome in outcomes if outcome.ranking]
    return {
        "judge/calls_per_group": [float(outcome.judge_calls) for outcome in outcomes],
        "judge/failure_rate": flags((outcome.failed_calls, outcome.judge_calls) for outcome in outcomes),
        "judge/rubrics": [float(len(outcome.rubrics)) for outcome in outcomes if outcome.rubrics is not None],
        "judge/tie_rate": [ranking.tie_rate for ranking in rankings if ranking.tie_rate is not None],
        "judge/flip_rate": [ranking.flip_rate for ranking in rankings if ranking.flip_rate is not None],
    }


def _distinct(groups: Sequence[RolloutGroup], key: Callable[[Trajectory], Hashable]) -> list[float]:
    """Share of distinct keys in each group, without void trajectories. Groups that are all void are left out."""
    keys = [[key(trajectory) for trajectory in group.trajectories if not trajectory.is_void] for group in groups]
    return [len(set(of_group)) / len(of_group) for of_group in keys if of_group]


def _calls(trajectory: Trajectory) -> tuple[str, ...]:
    return tuple(repr(call) for turn in read_turns(trajectory.messages) for call in turn.tool_calls)


def _quality(examine: Examiner, group: RolloutGroup) -> list[float | None]:
    """True quality (G,); None for a void trajectory, and for a query without a truth."""
    return [
        None if one.is_void or examine(group.query, one) is None else true_quality(examine, group.query, one)
        for one in group.trajectories
    ]


def flags(counts: Iterable[tuple[int, int]]) -> list[float]:
    """Expand each (hits, total) into `hits` ones and `total - hits` zeros, whose mean is the rate."""
    return [flag for hits, total in counts for flag in [1.0] * hits + [0.0] * (total - hits)]


def rollout_table(groups: Sequence[RolloutGroup], outcomes: Sequence[GroupOutcome]) -> tuple[list[str], list[list]]:
    """Return columns and rows of W&B's table of trajectories and their ranks."""
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
    """Return a step's lines of runs/<run>/rl/groups.jsonl: trajectories, rewards, ranks, every match.

    `quality` is None if the query has no truth.
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
            **({} if outcome.rubrics is None else {"rubrics": outcome.rubrics}),
        }
        for group, outcome in zip(groups, outcomes, strict=True)
    ]


def rank_correlation(first_G: Sequence[float | None], second_G: Sequence[float | None]) -> float:
    """Return Kendall's tau-b over the rows where both values are known; NaN where either is constant."""
    first, second = np.array(first_G, dtype=float), np.array(second_G, dtype=float)
    known = np.isfinite(first) & np.isfinite(second)
    if np.unique(first[known]).size < 2 or np.unique(second[known]).size < 2:
        return math.nan
    from scipy.stats import kendalltau  # imported at the first step of RL, not at every start

    return float(kendalltau(first[known], second[known]).statistic)
