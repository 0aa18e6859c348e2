"""How many calls a second the travel tools answer on one core, so that it is plain that rollouts never wait for them.

Run: `python -m arenarl.studies.bench_tools`
"""

import time
from typing import Any

from arenarl.domains.travel.schemas import Results
from arenarl.domains.travel.tools import TravelEnvironment
from arenarl.domains.travel.world import World, build_world

CALLS = 2000  # per tool


def sample_calls(world: World, results: Results) -> dict[str, list[dict[str, Any]]]:
    """A few dozen typical calls of each tool, over all cities and categories."""
    cities = list(world.cities)
    legs = [
        {"date": "2026-05-01", "from_city": start, "to_city": end} for start in cities for end in cities if start != end
    ]
    pois = world.pois[::7]
    pairs = list(zip(pois, pois[1:], strict=False))
    around: list[dict[str, Any]]
    routes: list[dict[str, Any]]
    if results == "compact":
        around = [{"location": poi.name_en, "radius": 3000, "keyword": "quiet cafe"} for poi in pois]
        routes = [{"start": a.name_en, "end": b.name_en, "mode": "transit"} for a, b in pairs]
    else:
        around = [{"location": f"{poi.lon},{poi.lat}", "radius": 3000, "keyword": "安静的咖啡馆"} for poi in pois]
        routes = [{"start_lon": a.lon, "start_lat": a.lat, "end_lon": b.lon, "end_lat": b.lat} for a, b in pairs]
    return {
        "search_poi": [{"query": poi.name_en} for poi in pois] + [{"query": poi.address_zh} for poi in pois],
        "around_search": around,
        "get_navigation": routes,
        "universal_search": [{"query": f"quiet cheap {poi.category} in {poi.city}"} for poi in pois],
        "search_flights": legs,
        "search_train_tickets": legs,
    }


def calls_per_s(environment: TravelEnvironment, name: str, arguments: list[dict[str, Any]]) -> float:
    start_s = time.perf_counter()
    for index in range(CALLS):
        environment.call(name, arguments[index % len(arguments)])
    return CALLS / (time.perf_counter() - start_s)


def main() -> None:
    world = build_world()
    rates: dict[str, list[float]] = {}
    for results in ("full", "compact"):
        environment = TravelEnvironment(world, results)
        for name, arguments in sample_calls(world, results).items():
            rates.setdefault(name, []).append(calls_per_s(environment, name, arguments))
    print(f"{'calls per second':<22}{'full':>10}{'compact':>10}")
    for name, (full, compact) in rates.items():
        print(f"{name:<22}{full:>10,.0f}{compact:>10,.0f}")


if __name__ == "__main__":
    main()
