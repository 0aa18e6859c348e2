"""What more compute at test time buys: pass@k over samples, figures by turn budget (5.1, AgentGym-RL, Figs. 8 and 9).

Stands beside `evaluation.summarize` and adds to its figures only where `evaluate.samples` or `evaluate.max_turns` ask
for it. A policy is not told its budget, so a trajectory with fewer turns is the beginning of the one with more: each is
rolled out and judged once, with the largest budget, and cut here. That costs nothing, and budgets differ by nothing but
the budget. Not so where a world ends trajectories: the beginning of one is valid, and worth what it reached, which
nobody judged (`refuse_worlds`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from arenarl.evaluation import statistics
from arenarl.evaluation.evaluation import Case, figures_of, lost
from arenarl.rollout.environment import Environment, trait
from arenarl.system.errors import UserError


def refuse_worlds(budgets: Sequence[int], kind: Environment) -> None:
    """Raises UserError if such environments end trajectories themselves."""
    if not trait(kind, "needs_answer"):
        raise UserError(
            f"evaluate.max_turns={list(budgets)} cuts trajectories afterwards, which is not done where the world ends "
            "them; leave it out, and evaluate with one rollout.max_turns after another"
        )


def scaling_figures(
    samples: Sequence[Sequence[Case]], budgets: Sequence[int] | None, resamples: int, seed: int
) -> dict[str, Any]:
    """`pass_at_k` if there are several samples, `by_turns` if there are budgets:
    by budget the curve's figures, and its pass@k.

    Args:
        samples: sample by sample, the cases in the order of the queries.
    """
    found: dict[str, Any] = {}
    if len(samples) > 1:
        found["pass_at_k"] = pass_at_k(samples, resamples, seed)
        if len(samples) >= 4 and "accuracy" in found["pass_at_k"]:
            found["pass_at_4"] = found["pass_at_k"]["accuracy"][3]  # Table 6, InfoAgent
    if budgets:
        found["by_turns"] = {str(budget): _at_budget(samples, budget, resamples, seed) for budget in budgets}
    return found


def _at_budget(samples: Sequence[Sequence[Case]], budget: int, resamples: int, seed: int) -> dict[str, Any]:
    cut = [[within(case, budget) for case in cases] for cases in samples]
    figures = figures_of([case for cases in cut for case in cases], resamples, seed)
    shown = {name: figures[name] for name in statistics.shown_figures(figures)}
    return shown | scaling_figures(cut, None, resamples, seed)


def within(case: Case, turns: int) -> Case:
    """The case as it would be had its trajectory been allowed only so many assistant turns; longer ones become invalid.
    Void ones stay so."""
    messages = case.trajectory.messages
    starts = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if len(starts) <= turns or case.trajectory.is_void:
        return case
    trajectory = replace(case.trajectory, messages=messages[: starts[turns]], stop_reason="max_turns")
    if case.score is not None:
        return replace(case, trajectory=trajectory, score=0.0)
    return Case(case.query, trajectory, case.truth, lost(case.outcomes))


def pass_at_k(samples: Sequence[Sequence[Case]], resamples: int, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Chance in percent that one of k samples passes, for k = 1, 2, …, by what it is to pass;
    mean over subtasks, with intervals.

    An invalid sample passes nothing. `win`: it beats the stored baseline, as in a match; a tie is no win. Mean over
    judges; a sample that a judge gave no verdict on is not among that judge's samples, and a query with fewer than k is
    left out. The others are the domain's (`Truth.passes`), such as that the answer meets all of the query's
    constraints; noise-free.
    """
    strata = [case.query.subtask for case in samples[0]]
    own = dict.fromkeys(name for cases in samples for case in cases if case.truth for name in case.truth.passes())

    def curve(passes: Callable[[Case], list[float]]) -> list[dict[str, Any]]:
        by_query = np.array([[passes(case) for case in cases] for cases in samples]).swapaxes(0, 1)
        sizes = range(1, len(samples) + 1)
        return [statistics.mean(100 * estimates(by_query, k), strata, resamples, seed) for k in sizes]

    return {"win": curve(_wins)} | {name: curve(partial(_passes, name)) for name in own}


def estimates(passed: np.ndarray, k: int) -> np.ndarray:
    """(queries, samples, judges) of 1 passed, 0 not, NaN not known -> (queries,) pass@k, the mean over judges; NaN:
    not known."""
    known = np.isfinite(passed)
    counts, passes = known.sum(axis=1), np.where(known, passed, 0).sum(axis=1)
    by_judge = np.vectorize(lambda n, c: statistics.pass_at_k(int(n), int(c), k), otypes=[float])(counts, passes)
    return statistics.nanmean(by_judge)


def _wins(case: Case) -> list[float]:
    """By judge; NaN without a baseline, or where the baseline or the trajectory is void."""
    if not case.trajectory.valid and not case.trajectory.is_void and case.score is None:
        return [0.0] * len(case.outcomes)
    leads = case.leads or [None] * len(case.outcomes)
    return [float("nan") if lead is None else float(lead > 0) for lead in leads]


def _passes(name: str, case: Case) -> list[float]:
    """NaN where the query has nothing of the kind to pass, or the trajectory is void."""
    passes = {} if case.trajectory.is_void or case.truth is None else case.truth.passes()
    return [float(case.trajectory.valid and passes[name]) if name in passes else float("nan")]
