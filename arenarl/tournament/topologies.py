"""The topologies by name: five of ArenaRL's, its single elimination without seeding, Tournament-GRPO's, two rivals',
and `balanced`, ours.

What each costs and promises is said in its docstring; `schedules.py` says what a topology is. `group_stage` has no
pairs and is none of them: it is listed here, and `group_stage.py` plays it. A schedule of one's own is named as
package.module:Class.
"""

from dataclasses import fields

from arenarl.system.user_input import named
from arenarl.tournament.brackets import DoubleElimination, SeededSingleElimination, SingleElimination
from arenarl.tournament.elo import Elo
from arenarl.tournament.schedules import (
    Anchor,
    Balanced,
    RandomReference,
    Results,
    RoundRobin,
    Standing,
    Topology,
    check_choice,
    check_parameters,
)
from arenarl.tournament.swiss import Swiss

TOPOLOGIES: dict[str, type[Topology]] = {
    "seeded_single_elimination": SeededSingleElimination,
    "anchor": Anchor,
    "round_robin": RoundRobin,
    "single_elimination": SingleElimination,
    "double_elimination": DoubleElimination,
    "swiss": Swiss,
    "balanced": Balanced,
    "elo": Elo,
    "random_reference": RandomReference,
}
ALL_TOPOLOGIES = [*TOPOLOGIES, "group_stage"]


def build_topology(name: str, size: int, seed: int = 0, **params) -> Topology:
    """The schedule of pairs called `name` for `size` entrants.
    Raises ValueError for an unknown name, parameter or value."""
    check_parameters(name, parameters_of(name), params)
    return topology_class(name)(size, seed, **params)


def topology_class(name: str) -> type[Topology]:
    """The schedule called `name`, or the class that package.module:Class names.

    Raises:
        UserError: it cannot be imported.
        ValueError: there is no such schedule, or the class is none.
    """
    if ":" not in name:
        check_choice("topology", name, TOPOLOGIES)
        return TOPOLOGIES[name]
    found = named(name, "tournament.topology")
    if not (isinstance(found, type) and issubclass(found, Topology)):
        raise ValueError(f"{name} is no class derived from arenarl.tournament.schedules.Topology")
    return found


def parameters_of(name: str) -> list[str]:
    """The parameters of the schedule called `name`. Raises ValueError for an unknown name."""
    return [field.name for field in fields(topology_class(name))][2:]


def surely_meets(name: str) -> str:
    """Whom an entrant meets whoever else enters; in a group stage, which has no pairs, nobody."""
    return "nobody" if name == "group_stage" else topology_class(name).surely_meets


def rehearse(name: str, group_size: int) -> None:
    """Play a schedule of one's own with invented verdicts, with some of them and with none, for two entrants,
    three and whole groups.

    Raises ValueError if it raises, names what is no pair of entrants, or has other standings than one an entrant.
    """
    for size in sorted({2, 3, group_size - 1, group_size} - {1}):
        for misses in (0, 2, 1):  # none; every other one; all
            try:
                _rehearse(build_topology(name, size), size, misses)
            except Exception as error:
                raise ValueError(f"{name} cannot rank {size} entrants: {type(error).__name__}: {error}") from error


def _rehearse(schedule: Topology, size: int, misses: int) -> None:
    results: Results = {}
    waiting: dict[frozenset[int], tuple[int, int]] = {}
    while True:
        for i, j, _ in schedule.ready(dict(results)):
            if i == j or not {i, j} <= set(range(size)):
                raise ValueError(f"{i} and {j} are no pair of 0 … {size - 1}")
            if (i, j) not in results:
                waiting.setdefault(frozenset((i, j)), (i, j))
        if not waiting:
            break
        i, j = waiting.pop(next(iter(waiting)))
        failed = misses and len(results) // 2 % misses == 0
        results[i, j], results[j, i] = (None, None) if failed else ((float(i), float(j)), (float(j), float(i)))
    if schedule.rankings[0] == "bracket":
        standings = schedule.standings(results)
        if len(standings) != size or not all(one is None or isinstance(one, Standing) for one in standings):
            raise ValueError(f"its standings are {standings}, not a Standing or None for each entrant")
        sorted(one.key for one in standings if one)  # which must be comparable


def resolve_ranking(name: str, ranking: str | None) -> str:
    """`ranking`, or the default of the topology called `name`.

    Raises ValueError for a topology that does not exist and a ranking that it does not have.
    """
    if ":" not in name:
        check_choice("topology", name, ALL_TOPOLOGIES)
    # choices of winners hold no scores
    rankings = ("bracket",) if name == "group_stage" else topology_class(name).rankings
    ranking = ranking or rankings[0]
    check_choice(f"ranking of {name}", ranking, rankings)
    return ranking


def paper_calls(topology: str, group_size: int) -> int | None:
    """Judge calls that the paper counts for a group: two a comparison (Eq. 3).
    None for a topology that is not the paper's.

    Comparisons are the 'Comparison Cost' of Table 2, ArenaRL, with two exceptions. For Swiss the table has the
    complexity N log N; Section 4.5 counts log2 N rounds (here rounded up) of N/2 (here down) matches. Single
    elimination without seeding is not in the table: the N-1 that Section 4.3 counts for the bracket.

    >>> [paper_calls(name, 16) for name in ("anchor", "seeded_single_elimination", "swiss", "round_robin", "balanced")]
    [30, 60, 64, 240, None]
    """
    n = group_size
    comparisons = {
        "round_robin": n * (n - 1) // 2,
        "anchor": n - 1,
        "seeded_single_elimination": 2 * n - 2,
        "single_elimination": n - 1,
        "double_elimination": 2 * n - 2,
        "swiss": (n - 1).bit_length() * (n // 2),
    }
    return 2 * comparisons[topology] if topology in comparisons else None
