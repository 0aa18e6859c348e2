"""Win rate by answer length: do longer answers win, and are they better? Shows a judge that prefers length.

Length is the answer's number of characters divided by the stored baseline's, since both depend on the query.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any

from arenarl.evaluation import statistics
from arenarl.evaluation.evaluation import Case, figures_of, resampling_of
from arenarl.trajectory import Trajectory

EDGES = (0.0, 0.5, 0.8, 1.25, 2.0, inf)  # bounds of the classes; 1.25 = 1 / 0.8 and 2 = 1 / 0.5


def by_length(
    cases: Sequence[Case], baselines: Mapping[str, Trajectory], resamples: int, seed: int
) -> dict[str, dict[str, Any]]:
    """Return length class -> its `share` of valid answers in percent, their `win_rate` and, with a truth, `quality`.

    Invalid trajectories are in no class. An empty class has only a share. The result is empty if no baseline has an
    answer, as in a world with a state.
    """
    valid = [case for case in cases if case.trajectory.valid and baselines[case.query.query_id].answer]
    lengths = [len(case.trajectory.answer) / len(baselines[case.query.query_id].answer) for case in valid]
    classes = {}
    for low, high in pairwise(EDGES) if valid else ():
        is_inside = [low <= length < high for length in lengths]
        members = [case for case, inside in zip(valid, is_inside, strict=True) if inside]
        figures = figures_of(members, resamples, seed) if members else {}
        share = statistics.mean([100.0 * inside for inside in is_inside], resampling_of(valid, resamples, seed), 100.0)
        known = {name: figures[name] for name in ("win_rate", "quality") if name in figures}
        classes[_class_name(low, high)] = {"share": share} | known
    return classes


def _class_name(low: float, high: float) -> str:
    """Return the label of a class.

    >>> _class_name(0.0, 0.5), _class_name(0.8, 1.25), _class_name(2.0, inf)
    ('below 0.5', '0.8 to 1.25', 'from 2')
    """
    if high == inf:
        return f"from {low:g}"
    return f"{low:g} to {high:g}" if low else f"below {high:g}"
