"""The topologies by name: five of ArenaRL's, its single elimination without seeding, Tournament-GRPO's, and `balanced`, ours.

What each costs and promises is said in its docstring; `schedules.py` says what a topology is. `group_stage` has no pairs and is
none of them: it is listed here, and `group_stage.py` plays it.
"""

from dataclasses import fields

from arenarl.tournament.brackets import DoubleElimination, SeededSingleElimination, SingleElimination
from arenarl.tournament.schedules import Anchor, Balanced, RoundRobin, Topology, check_choice, check_parameters
from arenarl.tournament.swiss import Swiss

TOPOLOGIES: dict[str, type[Topology]] = {
    "round_robin": RoundRobin,
    "anchor": Anchor,
    "seeded_single_elimination": SeededSingleElimination,
    "single_elimination": SingleElimination,
    "double_elimination": DoubleElimination,
    "swiss": Swiss,
    "balanced": Balanced,
}
ALL_TOPOLOGIES = [*TOPOLOGIES, "group_stage"]


def build_topology(name: str, size: int, seed: int = 0, **params) -> Topology:
    """The schedule of pairs called `name` for `size` entrants. Raises ValueError for an unknown name, parameter or value."""
    check_parameters(name, parameters_of(name), params)
    return TOPOLOGIES[name](size, seed, **params)


def parameters_of(name: str) -> list[str]:
    """The parameters of the schedule called `name`. Raises ValueError for an unknown name."""
    check_choice("topology", name, TOPOLOGIES)
    return [field.name for field in fields(TOPOLOGIES[name])][2:]


def resolve_ranking(name: str, ranking: str | None) -> str:
    """`ranking`, or the default of the topology called `name`.

    Raises ValueError for a topology that does not exist and a ranking that it does not have.
    """
    check_choice("topology", name, ALL_TOPOLOGIES)
    rankings = ("bracket",) if name == "group_stage" else TOPOLOGIES[name].rankings  # choices of winners hold no scores
    ranking = ranking or rankings[0]
    check_choice(f"ranking of {name}", ranking, rankings)
    return ranking


def paper_calls(topology: str, group_size: int) -> int | None:
    """Judge calls that the paper counts for a group: two a comparison (Eq. 3). None for a topology that is not the paper's.

    Comparisons are the 'Comparison Cost' of Table 2, ArenaRL, with two exceptions. For Swiss the table has the complexity
    N log N; Section 4.5 counts log2 N rounds (here rounded up) of N/2 (here down) matches. Single elimination without seeding is
    not in the table: the N-1 that Section 4.3 counts for the bracket.

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
