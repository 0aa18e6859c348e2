"""The topologies by name: five of the paper's, its single elimination without seeding, and `balanced`, ours.

What each costs and promises is said in its docstring; `schedules.py` says what a topology is.
"""

from dataclasses import fields

from arenarl.brackets import DoubleElimination, SeededSingleElimination, SingleElimination
from arenarl.schedules import Anchor, Balanced, RoundRobin, Topology, check_choice
from arenarl.swiss import Swiss

TOPOLOGIES: dict[str, type[Topology]] = {
    "round_robin": RoundRobin,
    "anchor": Anchor,
    "seeded_single_elimination": SeededSingleElimination,
    "single_elimination": SingleElimination,
    "double_elimination": DoubleElimination,
    "swiss": Swiss,
    "balanced": Balanced,
}


def build_topology(name: str, size: int, seed: int = 0, **params) -> Topology:
    """The schedule called `name` for `size` entrants. Raises ValueError for an unknown name, parameter or value."""
    known = parameters_of(name)
    if unknown := sorted(set(params) - set(known)):
        raise ValueError(f"{name} has no parameter {', '.join(unknown)}; it has: {', '.join(known) or 'none'}")
    return TOPOLOGIES[name](size, seed, **params)


def parameters_of(name: str) -> list[str]:
    """The parameters of the topology called `name`. Raises ValueError for an unknown name."""
    check_choice("topology", name, TOPOLOGIES)
    return [field.name for field in fields(TOPOLOGIES[name])][2:]


def resolve_ranking(name: str, ranking: str | None) -> str:
    """`ranking`, or the default of the topology called `name`. Raises ValueError for a ranking that it does not have."""
    rankings = TOPOLOGIES[name].rankings
    ranking = ranking or rankings[0]
    check_choice(f"ranking of {name}", ranking, rankings)
    return ranking
