"""The topologies by name: six from ArenaRL, one from Tournament-GRPO, four from other work, and our `balanced`.

The docstring of each class gives its cost and what a perfect judge gets. `schedules.py` defines the interface.
`group_stage` has no pairs: only its name is here, and `group_stage.py` plays it. A user's own schedule is named
package.module:Class.
"""

from dataclasses import fields

from arenarl.system.user_input import import_named
from arenarl.tournament.brackets import DoubleElimination, SeededSingleElimination, SingleElimination
from arenarl.tournament.dgr import DGR
from arenarl.tournament.elo import Elo
from arenarl.tournament.schedules import (
    Anchor,
    Balanced,
    Circular,
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
    "circular": Circular,
    "dgr": DGR,
}
ALL_TOPOLOGIES = [*TOPOLOGIES, "group_stage"]


def build_topology(name: str, size: int, seed: int = 0, /, **params) -> Topology:
    """Return the schedule `name` for `size` entrants. Raises ValueError for an unknown name, parameter or value."""
    check_parameters(name, parameters_of(name), params)
    return topology_class(name)(size, seed, **params)


def topology_class(name: str) -> type[Topology]:
    """Return the class of a schedule; `name` is one of ours or package.module:Class.
    Raises UserError if the class cannot be imported, ValueError if the name is unknown or the class not a Topology."""
    if ":" not in str(name):
        check_choice("topology", name, TOPOLOGIES)
        return TOPOLOGIES[name]
    kind = import_named(name, "tournament.topology")
    if not (isinstance(kind, type) and issubclass(kind, Topology)):
        raise ValueError(f"{name} is not a subclass of arenarl.tournament.schedules.Topology")
    return kind


def parameters_of(name: str) -> list[str]:
    """Return the parameter names of a schedule. Raises ValueError for an unknown name."""
    return [field.name for field in fields(topology_class(name))][2:]


def surely_meets(name: str) -> str:
    """Return `Topology.surely_meets` of a schedule; "nobody" for the group stage, which has no pairs."""
    return "nobody" if name == "group_stage" else topology_class(name).surely_meets


def rehearse(name: str, group_size: int, /, **params) -> None:
    """Test a user's own schedule: play it with invented verdicts for two entrants, three, and full groups.
    Raises ValueError if the schedule raises an error, returns an invalid pair, or returns wrong standings."""
    for size in sorted({2, 3, group_size - 1, group_size} - {1}):
        for misses in (0, 2, 1):
            try:
                _rehearse(build_topology(name, size, **params), size, misses)
            except Exception as error:
                raise ValueError(f"{name} cannot rank {size} entrants: {type(error).__name__}: {error}") from error


def _rehearse(schedule: Topology, size: int, misses: int) -> None:
    """Play the schedule once. Every `misses`-th match fails; with 0 no match fails."""
    results: Results = {}
    waiting: dict[frozenset[int], tuple[int, int]] = {}
    while True:
        for i, j, _ in schedule.ready(dict(results)):
            if i == j or not {i, j} <= set(range(size)):
                raise ValueError(f"({i}, {j}) is not a pair of entrants from 0 to {size - 1}")
            if (i, j) not in results:
                waiting.setdefault(frozenset((i, j)), (i, j))
        if not waiting:
            break
        i, j = waiting.pop(next(iter(waiting)))
        failed = misses and len(results) // 2 % misses == 0
        results[i, j], results[j, i] = (None, None) if failed else ((float(i), float(j)), (float(j), float(i)))
    if not results:
        raise ValueError("it plays no match")
    if schedule.rankings[0] == "bracket":
        standings = schedule.standings(results)
        if len(standings) != size or not all(entrant is None or isinstance(entrant, Standing) for entrant in standings):
            raise ValueError(f"standings must return a Standing or None for each entrant, not {standings}")
        sorted(entrant.key for entrant in standings if entrant)  # raises if keys cannot be compared


def resolve_ranking(name: str, ranking: str | None) -> str:
    """Return `ranking`, or the default ranking of the topology `name`. Raises ValueError if either is unknown."""
    if ":" not in str(name):
        check_choice("topology", name, ALL_TOPOLOGIES)
    # a group stage has no scores, only winners
    rankings = ("bracket",) if name == "group_stage" else topology_class(name).rankings
    ranking = ranking or rankings[0]
    check_choice(f"ranking of {name}", ranking, rankings)
    return ranking


def paper_calls(topology: str, group_size: int) -> int | None:
    """Return ArenaRL's number of judge calls for a group, two per match (Eq. 3); None for other papers' topologies.

    Matches are the 'Comparison Cost' of Table 2, ArenaRL, with two exceptions. For Swiss, the table has only the
    complexity N log N, so we take Section 4.5: log2 N rounds (rounded up) of N/2 matches (rounded down). Single
    elimination without seeding is not in the table: N-1 matches, as in the bracket of Section 4.3.

    >>> [paper_calls(name, 16) for name in ("anchor", "seeded_single_elimination", "swiss", "round_robin", "balanced")]
    [30, 60, 64, 240, None]
    """
    n = group_size
    matches = {
        "round_robin": n * (n - 1) // 2,
        "anchor": n - 1,
        "seeded_single_elimination": 2 * n - 2,
        "single_elimination": n - 1,
        "double_elimination": 2 * n - 2,
        "swiss": (n - 1).bit_length() * (n // 2),
    }
    return 2 * matches[topology] if topology in matches else None
