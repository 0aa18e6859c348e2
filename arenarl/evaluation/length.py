"""Win rate against length: whether longer answers win, and whether they are better.
A judge that pays for length shows here.

Length is that of the answer, in characters, by the length of the stored baseline that it is compared with;
what a query asks for is in both.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any

from arenarl.evaluation import statistics
from arenarl.evaluation.evaluation import Case, figures_of
from arenarl.trajectory import Trajectory

EDGES = (0.0, 0.5, 0.8, 1.25, 2.0, inf)  # of the classes; 1.25 and 2 are as far from 1 as .8 and .5


def by_length(
    cases: Sequence[Case], baselines: Mapping[str, Trajectory], resamples: int, seed: int
) -> dict[str, dict[str, Any]]:
    """Class of length, from the shortest -> the `share` of the valid answers that it has, in percent, their `win_rate`
    and, with a truth, `quality`.

    Invalid trajectories have no answer, and are in no class; figures of a class without any are not there. Empty where
    no baseline has an answer to compare with, as in a world with a state.
    """
    valid = [case for case in cases if case.trajectory.valid and baselines[case.query.query_id].answer]
    lengths = [len(case.trajectory.answer) / len(baselines[case.query.query_id].answer) for case in valid]
    strata, queries = [case.query.subtask for case in valid], [case.query.query_id for case in valid]
    classes = {}
    for low, high in pairwise(EDGES) if valid else ():
        is_inside = [low <= length < high for length in lengths]
        members = [case for case, inside in zip(valid, is_inside, strict=True) if inside]
        figures = figures_of(members, resamples, seed) if members else {}
        share = statistics.mean([100.0 * inside for inside in is_inside], strata, resamples, seed, queries)
        known = {name: figures[name] for name in ("win_rate", "quality") if name in figures}
        classes[_named(low, high)] = {"share": share} | known
    return classes


def _named(low: float, high: float) -> str:
    """
    >>> _named(0.0, 0.5), _named(0.8, 1.25), _named(2.0, inf)
    ('below 0.5', '0.8 to 1.25', 'from 2')
    """
    if high == inf:
        return f"from {low:g}"
    return f"{low:g} to {high:g}" if low else f"below {high:g}"
