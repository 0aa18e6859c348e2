"""Evaluate a policy on test queries: judge rollouts against stored baselines, and check them against the truth, if any.

`evaluate.py` and the curve during RL share this module; several processes share the queries. A case is one query's
trajectory with its outcomes; `summarize` turns cases into the figures of a table. Invalid trajectories count: they
lose, and their quality is 0. Void trajectories, which a tool's crash ended, are counted but enter no other figure.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
from accelerate.utils import gather_object

from arenarl.domains.domain import Domain, Truth
from arenarl.domains.known_answers import has_answer
from arenarl.evaluation import statistics
from arenarl.judges.judge import Examiner, Judge, Verdict, rubric_of
from arenarl.judges.verifier import Verifier
from arenarl.rollout.engine import Attempt, RolloutEngine, attempts_at
from arenarl.training.judging import IncomingGroup, Judging
from arenarl.trajectory import Query, Trajectory, composed, read_turns, repeated_calls, words_of


@dataclass(frozen=True)
class Panel:
    """The judges of test trajectories, the domain's truth (`examine`, if any), and the verifier of known answers.
    Without an LLM verifier the truth compares known answers. `is_own` marks a user's own data (`statistics`)."""

    judges: Sequence[Judge]
    examine: Examiner | None
    verifier: Verifier | None = None
    is_own: bool = False


@dataclass
class Case:
    """A test query with the policy's trajectory and its outcomes.

    - `truth`: None if the domain or the query has none.
    - `outcomes`: (judges, dimensions); 1 if the policy beats the baseline over both orders, 0 for a tie, -1 for a loss,
      NaN without a verdict, without a baseline, or if the trajectory or the baseline is void.
    - `calls`: the two verdicts of each judge, first with the trajectory shown first, then with the baseline shown
      first; empty if the two were not compared.
    - `score`: without a baseline, the mean of the judges' scores of the trajectory alone, 0 to 10; 0 if it is invalid,
      NaN without a verdict or if it is void.
    - `is_unopposed`: the baseline is an invalid stand-in, which loses to a valid trajectory without being judged.
    - `is_own`: the query is of a user's own data.
    - `is_subtracted`: the case is of the run that a comparison subtracts.
    """

    query: Query
    trajectory: Trajectory
    truth: Truth | None
    outcomes: np.ndarray
    calls: list[tuple[Verdict | None, Verdict | None]] = field(default_factory=list)
    score: float | None = None
    is_unopposed: bool = False
    is_own: bool = False
    is_subtracted: bool = False

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
        """The domain's own figures, in percent; 0 if invalid."""
        figures = self.truth.figures() if self.truth else {}
        return figures if self.trajectory.valid else dict.fromkeys(figures, 0.0)

    @property
    def missing_verdicts(self) -> int:
        """Number of missing verdicts: judges without a verdict, or 1 if a case without a baseline has no score."""
        if self.score is not None:
            return int(math.isnan(self.score))
        return sum(bool(np.isnan(judged).all()) for judged in self.outcomes)

    @property
    def leads(self) -> list[float | None]:
        """For each judge, the policy's totals of both orders minus the baseline's, or None if a verdict is missing."""
        totals = [None if None in pair else (*pair[0].totals, *pair[1].totals[::-1]) for pair in self.calls]
        return [None if four is None else round(four[0] - four[1] + four[2] - four[3], 6) for four in totals]

    def to_record(self) -> dict[str, Any]:
        """Return a line of runs/<run>/evaluate/<checkpoint>_<decoding>.jsonl."""
        findings = {"quality": round(self.quality, 3)} if self.truth and not self.trajectory.is_void else {}
        if self.truth and self.trajectory.valid:
            findings |= {
                "dimensions": {name: round(score, 2) for name, score in self.dimensions.items()},
                **self.truth.findings(),
            }
        outcomes = [[None if math.isnan(value) else int(value) for value in judge] for judge in self.outcomes.tolist()]
        record = self.trajectory.to_record()
        judged = {"outcomes": outcomes} | ({} if self.score is None else {"score": statistics.rounded(self.score)})
        values = {"quality": self.quality, **self.figures} if self.truth else {}
        judged["values"] = {name: statistics.rounded(value) for name, value in values.items()}
        return {**record, "subtask": self.query.subtask, "query": self.query.query, "findings": findings, **judged}


@dataclass
class StoredCase(Case):
    """A case read from its line, to compare runs. `values` are the quality and the domain's own figures."""

    values: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "StoredCase":
        """Read a line of `Case.to_record`. Raises LookupError for a line of an earlier version."""
        query = Query(record["query_id"], "", record["subtask"], "", record["query"])
        score = math.nan if record.get("score", 0.0) is None else record.get("score")
        outcomes, values = np.array(record["outcomes"], dtype=float), record["values"]
        truth = Truth() if values else None
        return cls(query, Trajectory.from_record(record), truth, outcomes, score=score, values=values)

    @property
    def quality(self) -> float:
        return self.values.get("quality", math.nan)

    @property
    def figures(self) -> dict[str, float]:
        return {name: value for name, value in self.values.items() if name != "quality"}


def evaluate_policy(
    engine: RolloutEngine,
    queries: Sequence[Query],
    baselines: dict[str, Trajectory],
    panel: Panel,
    temperature: float,
    seed: int,
) -> list[Case]:
    """Roll out every query once at `temperature` (0: greedy), and judge it."""
    return roll_out_and_judge(engine, attempts_at(queries, temperature, seed), baselines, panel)


def roll_out_and_judge(
    engine: RolloutEngine,
    attempts: Sequence[Attempt],
    baselines: dict[str, Trajectory],
    panel: Panel,
    has_stand_ins: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> list[Case]:
    """Roll out the attempts, and judge each finished trajectory in a thread, while others are generated.

    Trajectories lose their token lists. `tick` is called as each ends. Errors of judges abort the rollout.
    """

    async def judge(incoming: IncomingGroup) -> Case:
        return await _judge_case(incoming.query, await incoming.trajectory(0), baselines, panel, has_stand_ins)

    judging = Judging([IncomingGroup(attempt.query, 1) for attempt in attempts], judge)

    def hand_over(index: int, trajectory: Trajectory) -> None:
        trajectory.drop_tokens()
        judging.groups[index].hand_over(0, trajectory)
        judging.check()
        tick()

    engine.roll_out(attempts, hand_over)
    return judging.outcomes()


def judge_trajectories(
    queries: Sequence[Query],
    trajectories: Sequence[Trajectory],
    baselines: dict[str, Trajectory],
    panel: Panel,
    has_stand_ins: bool = False,
) -> list[Case]:
    """Judge one trajectory per query, in the order of the queries.

    A trajectory is judged in both orders against its query's baseline; without a baseline, it is judged alone.
    With `has_stand_ins`, the baselines are another policy's trajectories. An invalid one loses to a valid trajectory
    and ties with an invalid one, without being judged.
    """

    async def judge_all() -> list[Case]:
        pairs = zip(queries, trajectories, strict=True)
        return await asyncio.gather(*(_judge_case(*pair, baselines, panel, has_stand_ins) for pair in pairs))

    return asyncio.run(judge_all())


def _fill_unjudged(cases: list[Case]) -> list[Case]:
    """Limit the outcomes of unjudged cases to the dimensions that the judges score in other cases.
    `cases` are all cases of a policy and decoding: a process's share may have no judged case."""
    if judged := [case.outcomes for case in cases if case.calls]:
        scored = np.where(np.isfinite(judged).any(axis=0), 0.0, math.nan)
        for case in cases:
            if not case.calls and np.isfinite(case.outcomes).all():
                case.outcomes = unjudged(scored, case.outcomes[0, 0])
    return cases


def unjudged(outcomes: np.ndarray, outcome: float) -> np.ndarray:
    """Return `outcome` in all dimensions, but NaN where a judge omitted one in `outcomes`."""
    unknown = np.isnan(outcomes)
    return np.where(unknown & ~unknown.all(axis=1, keepdims=True), math.nan, outcome)


async def _judge_case(
    query: Query, trajectory: Trajectory, baselines: dict[str, Trajectory], panel: Panel, has_stand_ins: bool
) -> Case:
    names, judges, baseline = rubric_of(query).names, panel.judges, baselines.get(query.query_id)
    truth = panel.examine and panel.examine(query, trajectory)
    if truth and panel.verifier and panel.verifier.is_llm and has_answer(query):
        truth = truth.verified(await panel.verifier.is_correct(query, trajectory))
    unknown = np.full((len(judges), len(names)), math.nan)
    case = partial(Case, query, trajectory, truth, is_own=panel.is_own)
    if baseline is None:
        return case(unknown, score=await _score(query, trajectory, judges))
    if trajectory.is_void or baseline.is_void:  # if none are stored, a policy's trajectories are the baselines
        return case(unknown)
    if has_stand_ins and not baseline.valid:
        return case(np.full_like(unknown, float(trajectory.valid)), is_unopposed=True)
    if not trajectory.valid:
        return case(np.full_like(unknown, -1.0))
    calls = [
        await asyncio.gather(judge.compare(query, trajectory, baseline), judge.compare(query, baseline, trajectory))
        for judge in judges
    ]
    return case(np.array([_outcomes(*pair, names) for pair in calls]), calls)


async def _score(query: Query, trajectory: Trajectory, judges: Sequence[Judge]) -> float:
    if not trajectory.valid:
        return math.nan if trajectory.is_void else 0.0
    verdicts = await asyncio.gather(*(judge.score(query, trajectory) for judge in judges))
    known = [verdict.totals[0] for verdict in verdicts if verdict is not None]
    return fmean(known) if known else math.nan


def _outcomes(first: Verdict | None, second: Verdict | None, names: Sequence[str]) -> list[float]:
    """Return the outcome in each dimension. The trajectory was shown first in `first`, second in `second`."""
    if first is None or second is None:
        return [math.nan] * len(names)
    signed = list(zip((1, -1, 1, -1), (*first.dimensions, *second.dimensions[::-1]), strict=True))  # 1: the policy's
    leads = [sum(sign * scores.get(name, math.nan) for sign, scores in signed) for name in names]
    return [float(np.sign(round(lead, 6))) for lead in leads]  # NaN in a dimension that the judge does not score


def gather_cases(queries: Sequence[Query], share: Sequence[Case]) -> list[Case]:
    """Return the cases of all processes, in the order of `queries`, after `_fill_unjudged`.
    Call it on all processes."""
    by_id = {case.query.query_id: case for case in gather_object(list(share))}
    return _fill_unjudged([by_id[query.query_id] for query in queries])


def baseline_cases(queries: Sequence[Query], baselines: dict[str, Trajectory], examine: Examiner | None) -> list[Case]:
    """Return the stored baselines as cases, with their truth and without outcomes."""
    cases = []
    for query in queries:
        trajectory, outcomes = baselines[query.query_id], np.empty((0, len(rubric_of(query).names)))
        cases.append(Case(query, trajectory, examine and examine(query, trajectory), outcomes))
    return cases


def summarize(cases: Sequence[Case], resamples: int, seed: int) -> dict[str, Any]:
    """Return the figures of a table: overall, by subtask, by judge and by dimension.
    All samples of a query count; intervals are over queries. Scores by dimension are noise-free and need a truth."""
    summary = figures_of(cases, resamples, seed)
    summary["by_subtask"] = {
        subtask: figures_of([case for case in cases if case.query.subtask == subtask], resamples, seed)
        for subtask in sorted({case.query.subtask for case in cases})
    }
    outcomes = np.stack([case.outcomes for case in cases])
    summary["by_judge"] = [_win_rate(cases, resamples, seed, np.s_[[judge]]) for judge in range(outcomes.shape[1])]
    # without invalid trajectories, which lose without being judged
    judged = outcomes[[case.trajectory.valid for case in cases]]
    summary["judges_agree"] = statistics.agreement(judged[:, 0], judged[:, 1]) if judged.shape[1] == 2 else None
    counted = [case for case in cases if not case.trajectory.is_void]
    ends = [case.trajectory.stop_reason for case in cases]
    for name, end in {"tool_crashes": "tool_crash", "no_room": "no_room"}.items():
        if end in ends:
            summary[name] = ends.count(end)
    summary["missing_verdicts"] = sum(case.missing_verdicts for case in counted)
    valid = [case for case in cases if case.trajectory.valid]
    summary["by_dimension"] = {}
    for index, name in enumerate(rubric_of(cases[0].query).names):
        summary["by_dimension"][name] = {
            "win_rate": _win_rate(cases, resamples, seed, np.s_[:, [index]]),
            "win_rate_valid": _win_rate(valid, resamples, seed, np.s_[:, [index]]),
        }
        if any(case.truth for case in cases):
            score = _mean(cases, lambda case, name=name: case.dimensions.get(name, math.nan), resamples, seed, 10.0)
            summary["by_dimension"][name]["score"] = score
    return summary


def figures_of(cases: Sequence[Case], resamples: int, seed: int) -> dict[str, Any]:
    """Return the figures of a table and further ones, each with its interval. Noise-free figures need a truth."""
    valid = [case for case in cases if case.trajectory.valid]

    def mean_of(
        value: Callable[[Case], float], scale: float | None = None, of: Sequence[Case] = cases
    ) -> dict[str, Any]:
        return _mean(of, value, resamples, seed, scale)

    figures = {
        "cases": sum(not case.trajectory.is_void for case in cases),
        "win_rate": _win_rate(cases, resamples, seed),
        "win_rate_valid": _win_rate(valid, resamples, seed),
        "valid_rate": mean_of(lambda case: 100.0 * case.trajectory.valid, 100.0),
    }
    if any(case.score is not None for case in cases):
        figures["score"] = mean_of(lambda case: math.nan if case.score is None else case.score, 10.0)
    if any(case.truth for case in cases):
        figures["quality"] = mean_of(lambda case: case.quality, 10.0)
        figures["quality_valid"] = mean_of(lambda case: case.quality, 10.0, valid)
    own = dict.fromkeys(name for case in cases for name in case.figures)
    figures |= {name: mean_of(lambda case, name=name: case.figures.get(name, math.nan), 100.0) for name in own}
    if any(case.trajectory.meta.get("reward") is not None for case in cases):
        figures["world_reward"] = mean_of(_world_reward)
    if not all(math.isnan(_repeated(case)) for case in cases):
        figures["repeated_calls"] = mean_of(_repeated, 100.0)
    return figures | {
        "tool_calls": mean_of(lambda case: sum(len(turn.tool_calls) for turn in read_turns(case.trajectory.messages))),
        "policy_tokens": mean_of(lambda case: case.trajectory.policy_tokens),
        "answer_characters": mean_of(lambda case: len(case.trajectory.answer)),
        "restated": mean_of(lambda case: restated(case.query.query, case.trajectory.answer), 100.0),
    }


def restated(query: str, answer: str) -> float:
    """Return the percentage of the answer's words that are words of the query; NaN without an answer (Appendix F).
    A Chinese character is a word; accents count, however they are encoded.

    >>> restated("Find a quiet park.", "A quiet park: Jade Park"), restated("找公园", "公园好")
    (80.0, 66.66666666666667)
    """
    query_words, words = set(words_of(composed(query))), words_of(composed(answer))
    return 100.0 * sum(word in query_words for word in words) / len(words) if words else math.nan


def _repeated(case: Case) -> float:
    share = repeated_calls(case.trajectory.messages)
    return math.nan if share is None else 100.0 * share


def _world_reward(case: Case) -> float:
    """Return the reward as in `reward.name: environment`: 0 if the world gave none, NaN if its `score` is None."""
    reward = case.trajectory.meta.get("reward", 0.0)
    return math.nan if reward is None else reward


def _win_rate(cases: Sequence[Case], resamples: int, seed: int, part: Any = np.s_[:]) -> dict[str, Any]:
    """Return the win rate over the judges and dimensions that the index `part` selects."""
    outcomes = np.array([case.outcomes[part] for case in cases])
    return statistics.win_rate(outcomes, resampling_of(cases, resamples, seed))


def _mean(
    cases: Sequence[Case], value: Callable[[Case], float], resamples: int, seed: int, scale: float | None = None
) -> dict[str, Any]:
    values = [math.nan if case.trajectory.is_void else value(case) for case in cases]
    return statistics.mean(values, resampling_of(cases, resamples, seed), scale)


def is_own_data(domain: Domain, queries: Sequence[Query], baselines: dict[str, Trajectory]) -> bool:
    """Return True for a user's own domain, and for test queries without stored baselines or without a truth."""
    return domain.is_own or not baselines or domain.examine is None or not any(map(domain.has_truth, queries))


def resampling_of(cases: Sequence[Case], resamples: int, seed: int) -> statistics.Resampling:
    """Return how the cases are resampled."""
    strata, queries = [case.query.subtask for case in cases], [case.query.query_id for case in cases]
    subtracted = [case.is_subtracted for case in cases]
    marks = subtracted if any(subtracted) else None
    return statistics.Resampling(strata, resamples, seed, queries, any(case.is_own for case in cases), marks)
