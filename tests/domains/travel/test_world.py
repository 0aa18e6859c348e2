from collections import Counter
from itertools import permutations

import pytest

from arenarl.domains.stated_facts import minutes_of
from arenarl.domains.travel.names import CATEGORIES, PREFERENCES, PREFIXES
from arenarl.domains.travel.world import build_world, distance_km

WORLD = build_world(0)
GROUPS = [(city, category) for city in WORLD.cities for category in CATEGORIES]
LEGS = list(permutations(WORLD.cities, 2))
DATE = "2026-05-01"


def test_another_seed_makes_another_world():
    assert build_world(1).pois != WORLD.pois
    assert build_world(1).trains(DATE, "Beijing", "Wuhan") != WORLD.trains(DATE, "Beijing", "Wuhan")


def test_twelve_cities_in_china_have_four_places_of_each_kind_with_every_prefix_once_a_kind():
    assert len(WORLD.cities) == 12 and len(CATEGORIES) == 12
    assert all(len(WORLD.pois_in(city)) == 48 for city in WORLD.cities)
    assert all(len(WORLD.pois_in(*group)) == 4 for group in GROUPS)
    assert len(PREFIXES) == len({zh for _, zh in PREFIXES}) == 48
    english = {f"{prefix} {kind.capitalize()}" for prefix, _ in PREFIXES for kind in CATEGORIES}
    assert {poi.name_en for poi in WORLD.pois} == english
    assert {poi.name_zh for poi in WORLD.pois} == {zh + kind for _, zh in PREFIXES for kind in CATEGORIES.values()}
    for city in WORLD.cities.values():
        assert 73 < city.lon < 136 and 18 < city.lat < 54
        assert all(distance_km((city.lon, city.lat), (poi.lon, poi.lat)) < 5.1 for poi in WORLD.pois_in(city.key))


def test_tags_agree_with_prices_ratings_and_hours():
    for pois in (WORLD.pois_in(*group) for group in GROUPS):
        assert len({poi.price_yuan for poi in pois}) == 4
        assert {poi for poi in pois if "cheap" in poi.tags} == set(sorted(pois, key=lambda poi: poi.price_yuan)[:2])
        assert [poi for poi in pois if "top" in poi.tags] == [max(pois, key=lambda poi: poi.rating)]
        late = [poi for poi in pois if "late" in poi.tags]
        assert late == [poi for poi in pois if poi.closes >= "21:00"] and len(late) == 2
        carried = Counter(tag for poi in pois for tag in poi.tags if tag in PREFERENCES)
        assert set(carried) == set(PREFERENCES) and max(carried.values()) <= 2
        assert all(1 <= len(set(poi.tags) & set(PREFERENCES)) <= 2 for poi in pois)


def test_attributes_are_independent():
    for first, second in permutations(("cheap", "late", "top", *PREFERENCES), 2):
        if not {first, second} <= set(PREFERENCES):
            with_second = [first in poi.tags for poi in WORLD.pois if second in poi.tags]
            share = sum(first in poi.tags for poi in WORLD.pois) / len(WORLD.pois)
            assert sum(with_second) / len(with_second) == pytest.approx(share, abs=0.1)


def test_places_are_found_by_either_name_and_within_a_radius_nearest_first():
    poi = WORLD.pois[100]
    assert WORLD.find_poi(f" {poi.name_en.upper()} ") is WORLD.find_poi(poi.name_zh) is poi
    assert WORLD.find_poi("Lotus") is WORLD.find_city("Atlantis") is None
    found = WORLD.pois_within(poi.point, 3.0)
    assert found[0] == (0.0, poi) and found == sorted(found, key=lambda pair: pair[0])
    assert {place for _, place in found} == {near for near in WORLD.pois if distance_km(poi.point, near.point) <= 3.0}


def test_every_two_cities_have_flights_and_direct_and_transfer_trains():
    for leg in LEGS:
        flights, trains = WORLD.flights(DATE, *leg), WORLD.trains(DATE, *leg)
        direct = [train for train in trains if train.via is None]
        assert 3 <= len(flights) <= 4 and 2 <= len(direct) <= 3 and len(trains) - len(direct) == 1
        assert len({journey.number for journey in flights + trains}) == len(flights + trains)
        for journeys in (flights, trains):
            assert [journey.departs for journey in journeys] == sorted(journey.departs for journey in journeys)
        for journey in flights + trains:
            arrives = minutes_of(journey.departs) + journey.minutes
            assert minutes_of(journey.arrives) == arrives and journey.arrives < "24:00"
            assert journey.price_yuan % 10 == 0 and journey.price_yuan > 0 and journey.via not in leg


def test_trains_are_mostly_cheaper_and_flights_faster_on_long_legs():
    cheaper = []
    for date in ("2026-05-01", "2026-05-02", "2026-05-03"):
        for leg in LEGS:
            train, flight = (min(j.price_yuan for j in kind(date, *leg)) for kind in (WORLD.trains, WORLD.flights))
            cheaper.append(train < flight)
    assert 0.8 < sum(cheaper) / len(cheaper) < 1
    for leg in (("Beijing", "Kunming"), ("Harbin", "Shenzhen")):
        assert max(j.minutes for j in WORLD.flights(DATE, *leg)) < min(j.minutes for j in WORLD.trains(DATE, *leg))


def test_a_route_is_the_sum_of_its_legs():
    # 0.1 degrees of latitude are 11.12 km in a straight line, 14.46 km on the road
    route = WORLD.route([(104.0, 30.5), (104.0, 30.6)], "driving")
    assert (route.distance_km, route.minutes, route.cost_yuan) == (14.5, 29 + 3, 39)
    points = [poi.point for poi in WORLD.pois_in("Wuhan")[:3]]
    for mode in ("driving", "walking", "transit"):
        whole, first, second = (WORLD.route(part, mode) for part in (points, points[:2], points[1:]))
        assert whole.minutes == first.minutes + second.minutes and whole.cost_yuan == first.cost_yuan + second.cost_yuan
        assert whole.distance_km == pytest.approx(first.distance_km + second.distance_km)
    assert WORLD.route(points, "walking").cost_yuan == 0
