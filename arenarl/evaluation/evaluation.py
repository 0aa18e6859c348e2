"""Evaluates a policy on test queries: rollouts against stored baselines, judged and, where the domain has a truth,
checked against it.

`evaluate.py` and the curve during RL share this; on several processes each has its share of the queries. A case is one
query's trajectory with all that was found of it; `summarize` turns cases into the figures of a table. Invalid
trajectories stay in: they lose, their quality is 0. Void ones, which a tool's crash ended, are counted, and in no other
figure.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
from accelerate.utils import gather_object

from arenarl.domains.domain import Truth
from arenarl.domains.known_answers import has_answer
from arenarl.evaluation import statistics
from arenarl.judges.judge import Examiner, Judge, Verdict, rubric_of
from arenarl.judges.verifier import Verifier
from arenarl.rollout.engine import RolloutEngine, attempts_at
from arenarl.trajectory import Query, Trajectory, read_turns


@dataclass(frozen=True)
class Panel:
    """Who judges test trajectories: the judges, what is true where the domain knows it (`examine`), and who compares
    known answers: without a verifier that is an LLM, the truth does."""

    judges: Sequence[Judge]
    examine: Examiner | None
    verifier: Verifier | None = None


@dataclass
class Case:
    """One test query, the policy's trajectory, and what was found of it.

    `truth` is None where the domain or the query has none. `outcomes` is (judges, dimensions): 1 where the policy beats
    the baseline over both orders, 0 a tie, -1 a loss, NaN no verdict. `calls` are the verdicts that they come from, two
    a judge: the trajectory shown first, the baseline shown first. An invalid trajectory has none; of a void one, and
    beside a void one, all outcomes are NaN. Where there is no baseline all are NaN too, and `score` is the mean of what
    the judges give the trajectory by itself, 0 to 10: 0 if it is invalid, NaN without a verdict or if void.
    """

    query: Query
    trajectory: Trajectory
    truth: Truth | None
    outcomes: np.ndarray
    calls: list[tuple[Verdict | None, Verdict | None]] = field(default_factory=list)
    score: float | None = None

    @property
    def dimensions(self) -> dict[str, float]:
        """Noise-free scores, 0 to 10; 0 if invalid. Empty without a truth."""
        scores = self.truth.dimensions() if self.truth else {}
        return scores if self.trajectory.valid else dict.fromkeys(scores, 0.0)

    @property
    def quality(self) -> float:
        """Noise-free total, 0 to 10; 0 if invalid, NaN without a truth."""
        return rubric_of(self.query).total(self.dimensions) if self.truth else math.nan

    @property
    def figures(self) -> dict[str, float]:
        """The domain's own, in percent; 0 if invalid."""
        figures = self.truth.figures() if self.truth else {}
        return figures if self.trajectory.valid else dict.fromkeys(figures, 0.0)

    @property
    def missing_verdicts(self) -> int:
        """Judges without a verdict; where they scored the trajectory by itself, 1 if none had one."""
        if self.score is not None:
            return int(math.isnan(self.score))
        return sum(bool(np.isnan(judged).all()) for judged in self.outcomes)

    @property
    def leads(self) -> list[float | None]:
        """By judge: points of the total by which the policy leads the baseline, both orders summed;
        None without a verdict."""
        totals = [None if None in pair else (*pair[0].totals, *pair[1].totals[::-1]) for pair in self.calls]
        return [None if four is None else round(four[0] - four[1] + four[2] - four[3], 6) for four in totals]

    def to_record(self) -> dict[str, Any]:
        """A line of runs/<run>/evaluate/<checkpoint>_<decoding>.jsonl."""
        findings = {"quality": round(self.quality, 3)} if self.truth and not self.trajectory.is_void else {}
        if self.truth and self.trajectory.valid:
            findings |= {
                "dimensions": {name: round(score, 2) for name, score in self.dimensions.items()},
                **self.truth.findings(),
            }
        outcomes = [[None if math.isnan(value) else int(value) for value in judge] for judge in self.outcomes.tolist()]
        record = self.trajectory.to_record()
        judged = {"outcomes": outcomes} | ({} if self.score is None else {"score": statistics.rounded(self.score)})
        return {**record, "subtask": self.query.subtask, "query": self.query.query, "findings": findings, **judged}


def evaluate_policy(
    engine: RolloutEngine,
    queries: Sequence[Query],
    baselines: dict[str, Trajectory],
    panel: Panel,
    temperature: float,
    seed: int,
    tick: Callable[[], None] = lambda: None,
    sample: int = 0,
    max_turns: int | None = None,
) -> list[Case]:
    """Roll out every query once at `temperature` (0 is greedy)
    and judge it against its baseline, both orders summed, or by itself without one.

    `sample` numbers the trajectories of a query; `max_turns` None takes `rollout.max_turns`.
    """
    attempts = attempts_at(queries, temperature, seed, sample, max_turns)
    return judge_trajectories(queries, engine.roll_out(attempts, lambda *_: tick()), baselines, panel)


def judge_trajectories(
    queries: Sequence[Query], trajectories: Sequence[Trajectory], baselines: dict[str, Trajectory], panel: Panel
) -> list[Case]:
    """One trajectory a query, in their order."""

    async def judge_all() -> list[Case]:
        pairs = zip(queries, trajectories, strict=True)
        return await asyncio.gather(
            *(_judge_case(query, trajectory, baselines.get(query.query_id), panel) for query, trajectory in pairs)
        )

    cases = asyncio.run(judge_all())
    if judged := [case.outcomes for case in cases if case.calls]:
        asked = np.where(np.isfinite(judged).any(axis=0), 0.0, math.nan)
        for case in cases:
            if not case.calls and (case.outcomes == -1).all():
                case.outcomes = lost(asked)
    return cases


def lost(outcomes: np.ndarray) -> np.ndarray:
    """Those of a trajectory that loses unseen, by others or what it had:
    -1 but where a judge scores other dimensions and never this one."""
    unknown = np.isnan(outcomes)
    return np.where(unknown & ~unknown.all(axis=1, keepdims=True), math.nan, -1.0)


async def _judge_case(query: Query, trajectory: Trajectory, baseline: Trajectory | None, panel: Panel) -> Case:
    names, judges = rubric_of(query).names, panel.judges
    truth = panel.examine and panel.examine(query, trajectory)
    if truth and panel.verifier and panel.verifier.is_llm and has_answer(query):
        truth = truth.verified(await panel.verifier.is_correct(query, trajectory))
    unknown = np.full((len(judges), len(names)), math.nan)
    if baseline is None:
        return Case(query, trajectory, truth, unknown, score=await _score(query, trajectory, judges))
    if trajectory.is_void or baseline.is_void:  # a policy's own trajectories are baselines where none are stored
        return Case(query, trajectory, truth, unknown)
    if not trajectory.valid:
        return Case(query, trajectory, truth, np.full_like(unknown, -1.0))
    calls = [
        await asyncio.gather(judge.compare(query, trajectory, baseline), judge.compare(query, baseline, trajectory))
        for judge in judges
    ]
    return Case(query, trajectory, truth, np.array([_outcomes(*pair, names) for pair in calls]), calls)


async def _score(query: Query, trajectory: Trajectory, judges: Sequence[Judge]) -> float:
    if not trajectory.valid:
        return math.nan if trajectory.is_void else 0.0
    verdicts = await asyncio.gather(*(judge.score(query, trajectory) for judge in judges))
    known = [verdict.totals[0] for verdict in verdicts if verdict is not None]
    return fmean(known) if known else math.nan


def _outcomes(one: Verdict | None, other: Verdict | None, names: Sequence[str]) -> list[float]:
    """By dimension; `one` showed the trajectory first, `other` the baseline."""
    if one is None or other is None:
        return [math.nan] * len(names)
    signed = list(zip((1, -1, 1, -1), (*one.dimensions, *other.dimensions[::-1]), strict=True))  # 1: the policy's
    leads = [sum(sign * scores.get(name, math.nan) for sign, scores in signed) for name in names]
    return [float(np.sign(round(lead, 6))) for lead in leads]  # NaN of a dimension that this judge is not asked about


def gather_cases(queries: Sequence[Query], share: Sequence[Case]) -> list[Case]:
    """The cases of all processes, in the order of `queries`; to be called on all."""
    by_id = {case.query.query_id: case for case in gather_object(list(share))}
    return [by_id[query.query_id] for query in queries]


def baseline_cases(queries: Sequence[Query], baselines: dict[str, Trajectory], examine: Examiner | None) -> list[Case]:
    """The stored baselines as cases, with what is true of them; nobody judged them against anything."""

    def case(query: Query, trajectory: Trajectory) -> Case:
        return Case(
            query, trajectory, examine and examine(query, trajectory), np.empty((0, len(rubric_of(query).names)))
        )

    return [case(query, baselines[query.query_id]) for query in queries]


def summarize(cases: Sequence[Case], resamples: int, seed: int) -> dict[str, Any]:
    """The figures of a table: overall, by subtask, and the win rate and, with a truth,
    the noise-free score of each dimension.

    All samples of a query count; intervals are over queries.
    """
    summary = figures_of(cases, resamples, seed)
    subtasks = {subtask: [] for subtask in sorted({case.query.subtask for case in cases})}
    for case in cases:
        subtasks[case.query.subtask].append(case)
    summary["by_subtask"] = {name: figures_of(of, resamples, seed) for name, of in subtasks.items()}
    outcomes = np.stack([case.outcomes for case in cases])
    summary["by_judge"] = [_win_rate(cases, resamples, seed, np.s_[[judge]]) for judge in range(outcomes.shape[1])]
    # an invalid trajectory loses without being judged: that is no agreement
    shown = outcomes[[case.trajectory.valid for case in cases]]
    summary["judges_agree"] = statistics.agreement(shown[:, 0], shown[:, 1]) if shown.shape[1] == 2 else None
    counted = [case for case in cases if not case.trajectory.is_void]
    if len(counted) < len(cases):
        summary["tool_crashes"] = len(cases) - len(counted)
    summary["missing_verdicts"] = sum(case.missing_verdicts for case in counted)
    valid = [case for case in cases if case.trajectory.valid]
    summary["by_dimension"] = {}
    for index, name in enumerate(rubric_of(cases[0].query).names):
        summary["by_dimension"][name] = {
            "win_rate": _win_rate(cases, resamples, seed, np.s_[:, [index]]),
            "win_rate_valid": _win_rate(valid, resamples, seed, np.s_[:, [index]]),
        }
        if any(case.truth for case in cases):
            score = _mean(cases, lambda case, name=name: case.dimensions.get(name, math.nan), resamples, seed)
            summary["by_dimension"][name]["score"] = score
    return summary


def figures_of(cases: Sequence[Case], resamples: int, seed: int) -> dict[str, Any]:
    """The figures that a table has a column for, and more; each with its interval. What is noise-free needs a truth."""
    valid = [case for case in cases if case.trajectory.valid]

    def mean_of(value: Callable[[Case], float], of: Sequence[Case] = cases) -> dict[str, Any]:
        return _mean(of, value, resamples, seed)

    figures = {
        "cases": sum(not case.trajectory.is_void for case in cases),
        "win_rate": _win_rate(cases, resamples, seed),
        "win_rate_valid": _win_rate(valid, resamples, seed),
        "valid_rate": mean_of(lambda case: 100.0 * case.trajectory.valid),
    }
    if any(case.score is not None for case in cases):
        figures["score"] = mean_of(lambda case: math.nan if case.score is None else case.score)
    if any(case.truth for case in cases):
        figures["quality"] = mean_of(lambda case: case.quality)
        figures["quality_valid"] = mean_of(lambda case: case.quality, valid)
    own = dict.fromkeys(name for case in cases for name in case.figures)
    figures |= {name: mean_of(lambda case, name=name: case.figures.get(name, math.nan)) for name in own}
    if any(case.trajectory.meta.get("reward") is not None for case in cases):
        figures["world_reward"] = mean_of(_world_reward)
    return figures | {
        "tool_calls": mean_of(lambda case: sum(len(turn.tool_calls) for turn in read_turns(case.trajectory.messages))),
        "policy_tokens": mean_of(lambda case: case.trajectory.policy_tokens),
        "answer_characters": mean_of(lambda case: len(case.trajectory.answer)),
    }


def _world_reward(case: Case) -> float:
    """As `reward.name: environment` has it: 0 where the world gave nothing, NaN where its `score` is None."""
    reward = case.trajectory.meta.get("reward", 0.0)
    return math.nan if reward is None else reward


def _win_rate(cases: Sequence[Case], resamples: int, seed: int, shown: Any = np.s_[:]) -> dict[str, Any]:
    """Over the judges and dimensions that `shown` selects of a case's outcomes."""
    outcomes = np.array([case.outcomes[shown] for case in cases])
    return statistics.win_rate(
        outcomes, [case.query.subtask for case in cases], resamples, seed, [case.query.query_id for case in cases]
    )


def _mean(cases: Sequence[Case], value: Callable[[Case], float], resamples: int, seed: int) -> dict[str, Any]:
    values = [math.nan if case.trajectory.is_void else value(case) for case in cases]
    return statistics.mean(
        values, [case.query.subtask for case in cases], resamples, seed, [case.query.query_id for case in cases]
    )
