"""More compute at test time: pass@k over samples, and figures by turn budget (5.1, AgentGym-RL, Figs. 8 and 9).

Adds to the figures of `evaluation.summarize` if `evaluate.samples` or `evaluate.max_turns` is set. A policy does not
see its budget, so a trajectory with fewer turns is the beginning of a longer one. Each trajectory is rolled out and
judged once, with the largest budget, and cut here. In worlds that end trajectories, the beginning would be valid, with
a reward that was never measured. There each budget has its own trajectories (`rollout_budgets`), from the same seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from arenarl.config.schema import Config
from arenarl.evaluation import statistics
from arenarl.evaluation.evaluation import Case, figures_of, resampling_of, unjudged
from arenarl.rollout.environment import Environment, trait
from arenarl.rollout.instances import temporary_environment


def rollout_budgets(config: Config, make_environment: Callable[[], Environment]) -> list[int]:
    """Return the turn budgets that need separate trajectories, the largest first."""
    budgets = config.evaluate.max_turns or []
    if len(budgets) > 1:
        with temporary_environment(make_environment) as environment:
            if not trait(environment, "needs_answer"):
                return budgets[::-1]
    return [config.test_turns]


def scaling_figures(
    samples: Sequence[Sequence[Case]],
    budgets: Sequence[int] | None,
    resamples: int,
    seed: int,
    rolled: Mapping[int, Sequence[Sequence[Case]]] | None = None,
) -> dict[str, Any]:
    """Return `pass_at_k` for several samples, and `by_turns`, the curve's figures and pass@k for each budget.

    `samples` holds the cases of each sample, in the order of the queries. `rolled` holds such samples for each budget
    with separate trajectories. For the other budgets, `samples` are cut.
    """
    figures: dict[str, Any] = {}
    if len(samples) > 1:
        figures["pass_at_k"] = pass_at_k(samples, resamples, seed)
        if len(samples) >= 4 and "accuracy" in figures["pass_at_k"]:
            figures["pass_at_4"] = figures["pass_at_k"]["accuracy"][3]  # Table 6, InfoAgent
    if budgets:
        rolled = rolled or {}
        by_turns = {budget: rolled[budget] if budget in rolled else _cut(samples, budget) for budget in budgets}
        figures["by_turns"] = {str(budget): _of_budget(cases, resamples, seed) for budget, cases in by_turns.items()}
    return figures


def _cut(samples: Sequence[Sequence[Case]], budget: int) -> list[list[Case]]:
    return [[within(case, budget) for case in cases] for cases in samples]


def _of_budget(samples: Sequence[Sequence[Case]], resamples: int, seed: int) -> dict[str, Any]:
    figures = figures_of([case for cases in samples for case in cases], resamples, seed)
    columns = {name: figures[name] for name in statistics.shown_figures(figures)}
    return columns | scaling_figures(samples, None, resamples, seed)


def within(case: Case, turns: int) -> Case:
    """Return the case with at most `turns` assistant turns: a longer trajectory is cut and invalid, unless void."""
    messages = case.trajectory.messages
    starts = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if len(starts) <= turns or case.trajectory.is_void:
        return case
    trajectory = replace(case.trajectory, messages=messages[: starts[turns]], stop_reason="max_turns")
    if case.score is not None:
        return replace(case, trajectory=trajectory, score=0.0)
    if not case.calls and np.isnan(case.outcomes).all():  # the baseline is void
        return replace(case, trajectory=trajectory)
    outcome = 0.0 if case.is_unopposed else -1.0
    return replace(case, trajectory=trajectory, outcomes=unjudged(case.outcomes, outcome), calls=[])


def pass_at_k(samples: Sequence[Sequence[Case]], resamples: int, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Return the chance, in percent, that at least one of k samples passes, for k = 1, 2, …, by criterion.

    Each is a mean over subtasks, with an interval. An invalid sample never passes. Criterion `win`: the sample beats
    the stored baseline, not by a tie; mean over judges. A sample without a verdict does not count for that judge, and a
    query with fewer than k samples is left out. The other criteria are the domain's (`Truth.passes`) and noise-free.
    """
    of_queries = resampling_of(samples[0], resamples, seed)
    own = dict.fromkeys(name for cases in samples for case in cases if case.truth for name in case.truth.passes())

    def curve(passes: Callable[[Case], list[float]]) -> list[dict[str, Any]]:
        by_query = np.array([[passes(case) for case in cases] for cases in samples]).swapaxes(0, 1)
        sizes = range(1, len(samples) + 1)
        return [statistics.mean(100 * estimates(by_query, k), of_queries, 100.0) for k in sizes]

    return {"win": curve(_wins)} | {name: curve(partial(_passes, name)) for name in own}


def estimates(passed: np.ndarray, k: int) -> np.ndarray:
    """Return pass@k per query, mean over judges: (queries, samples, judges) of 1, 0, NaN (unknown) -> (queries,)."""
    known = np.isfinite(passed)
    counts, passes = known.sum(axis=1), np.where(known, passed, 0).sum(axis=1)
    by_judge = np.vectorize(lambda n, c: statistics.pass_at_k(int(n), int(c), k), otypes=[float])(counts, passes)
    return statistics.nanmean(by_judge)


def _wins(case: Case) -> list[float]:
    """Return 1 for a win, 0 for a tie or a loss, by judge; NaN without a verdict, without a baseline, or if baseline
    or trajectory is void."""
    if case.calls:
        return [float("nan") if lead is None else float(lead > 0) for lead in case.leads]
    # not judged: the trajectory or the stand-in is invalid, so all dimensions have one outcome, or none has any
    return [float("nan") if np.isnan(judged).all() else float(np.nanmax(judged) > 0) for judged in case.outcomes]


def _passes(name: str, case: Case) -> list[float]:
    """Return [1] if the case passes the criterion `name`; [NaN] if the query lacks it or the trajectory is void."""
    passes = {} if case.trajectory.is_void or case.truth is None else case.truth.passes()
    return [float(case.trajectory.valid and passes[name]) if name in passes else float("nan")]
