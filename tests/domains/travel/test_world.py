from collections import Counter
from itertools import permutations

import pytest
from hash_seeds import printed_in_two_processes

from arenarl.domains.travel.names import CATEGORIES, PREFERENCES, PREFIXES
from arenarl.domains.travel.world import build_world, distance_km

WORLD = build_world(0)
GROUPS = [(city, category) for city in WORLD.cities for category in CATEGORIES]
LEGS = list(permutations(WORLD.cities, 2))
DATE = "2026-05-01"
FINGERPRINT = (
    "import hashlib; from arenarl.domains.travel.world import build_world; w = build_world(0);legs = "
    "[(w.flights('2026-05-01', a, b), w.trains('2026-05-01', a, b)) for a in w.cities for b in w.cities if a != "
    "b];print(hashlib.sha256(repr((w.pois, legs)).encode()).hexdigest())"
)


def test_the_same_seed_gives_the_same_world_in_every_process():
    one, other = printed_in_two_processes(FINGERPRINT)
    assert one == other


def test_another_seed_gives_another_world():
    assert build_world(1).pois != WORLD.pois
    assert build_world(1).trains(DATE, "Beijing", "Wuhan") != WORLD.trains(DATE, "Beijing", "Wuhan")


def test_there_are_twelve_cities_with_48_places_each():
    assert len(WORLD.cities) == 12
    assert all(len(WORLD.pois_in(city)) == 48 for city in WORLD.cities)
    assert all(len(WORLD.pois_in(*group)) == 4 for group in GROUPS)


def test_every_prefix_goes_with_every_category_once():
    assert len(PREFIXES) == len({zh for _, zh in PREFIXES}) == 48
    assert {poi.name_en for poi in WORLD.pois} == {
        f"{en} {key.capitalize()}" for en, _ in PREFIXES for key in CATEGORIES
    }
    assert {poi.name_zh for poi in WORLD.pois} == {zh + kind for _, zh in PREFIXES for kind in CATEGORIES.values()}


def test_coordinates_are_in_china_and_places_near_their_city():
    for city in WORLD.cities.values():
        assert 73 < city.lon < 136 and 18 < city.lat < 54
        assert all(distance_km((city.lon, city.lat), (poi.lon, poi.lat)) < 5.1 for poi in WORLD.pois_in(city.key))


@pytest.mark.parametrize("group", GROUPS, ids="-".join)
def test_tags_of_a_group_say_what_they_promise(group):
    pois = WORLD.pois_in(*group)
    assert len({poi.price_yuan for poi in pois}) == 4
    assert {poi for poi in pois if "cheap" in poi.tags} == set(sorted(pois, key=lambda poi: poi.price_yuan)[:2])
    assert [poi for poi in pois if "top" in poi.tags] == [max(pois, key=lambda poi: poi.rating)]
    late = [poi for poi in pois if "late" in poi.tags]
    assert late == [poi for poi in pois if poi.closes >= "21:00"] and len(late) == 2
    carried = Counter(tag for poi in pois for tag in poi.tags if tag in PREFERENCES)
    assert set(carried) == set(PREFERENCES) and max(carried.values()) <= 2
    assert all(1 <= len(set(poi.tags) & set(PREFERENCES)) <= 2 for poi in pois)


def test_no_attribute_tells_of_another():
    for first, second in permutations(("cheap", "late", "top", *PREFERENCES), 2):
        with_second = [poi for poi in WORLD.pois if second in poi.tags]
        if {first, second} <= set(PREFERENCES):
            continue
        share = sum(first in poi.tags for poi in with_second) / len(with_second)
        assert share == pytest.approx(sum(first in poi.tags for poi in WORLD.pois) / len(WORLD.pois), abs=0.1)


def test_places_and_cities_are_found_by_either_name():
    poi = WORLD.pois[0]
    assert WORLD.find_poi(f" {poi.name_en.upper()} ") is WORLD.find_poi(poi.name_zh) is poi
    assert WORLD.find_poi("Lotus") is None
    assert {WORLD.find_city(name).key for name in ("Xian", "xi'an", "西安", "西安市")} == {"Xian"}
    assert WORLD.find_city("Atlantis") is None


def test_places_within_a_radius_come_nearest_first():
    poi = WORLD.pois[100]
    found = WORLD.pois_within((poi.lon, poi.lat), 3.0)
    expected = {other for other in WORLD.pois if distance_km((poi.lon, poi.lat), (other.lon, other.lat)) <= 3.0}
    assert found[0] == (0.0, poi)
    assert {other for _, other in found} == expected
    assert [kilometres for kilometres, _ in found] == sorted(kilometres for kilometres, _ in found)


@pytest.mark.parametrize("leg", LEGS, ids="-".join)
def test_every_two_cities_have_flights_and_direct_and_transfer_trains(leg):
    flights, trains = WORLD.flights(DATE, *leg), WORLD.trains(DATE, *leg)
    direct = [train for train in trains if train.via is None]
    assert 3 <= len(flights) <= 4 and 2 <= len(direct) <= 3 and len(trains) - len(direct) == 1
    assert len({journey.number for journey in flights + trains}) == len(flights + trains)
    for journeys in (flights, trains):
        assert [j.departs for j in journeys] == sorted(j.departs for j in journeys)
    for journey in flights + trains:
        hours, minutes = (int(part) for part in journey.departs.split(":"))
        arrives = 60 * hours + minutes + journey.minutes
        assert journey.arrives == f"{arrives // 60:02d}:{arrives % 60:02d}" and journey.arrives < "24:00"
        assert journey.price_yuan % 10 == 0 and journey.price_yuan > 0
        assert journey.via not in leg


def test_trains_are_mostly_cheaper_and_flights_faster_on_long_legs():
    cheaper = []
    for date in ("2026-05-01", "2026-05-02", "2026-05-03", "2026-05-04", "2026-05-05"):
        for leg in LEGS:
            train, flight = (
                min(j.price_yuan for j in journeys(date, *leg)) for journeys in (WORLD.trains, WORLD.flights)
            )
            cheaper.append(train < flight)
    assert 0.8 < sum(cheaper) / len(cheaper) < 1
    for leg in (("Beijing", "Kunming"), ("Harbin", "Shenzhen")):
        assert max(j.minutes for j in WORLD.flights(DATE, *leg)) < min(j.minutes for j in WORLD.trains(DATE, *leg))


def test_a_route_is_the_sum_of_its_legs():
    points = [(poi.lon, poi.lat) for poi in WORLD.pois_in("Wuhan")[:3]]
    for mode in ("driving", "walking", "transit"):
        whole, first, second = (WORLD.route(part, mode) for part in (points, points[:2], points[1:]))
        assert whole.minutes == first.minutes + second.minutes and whole.cost_yuan == first.cost_yuan + second.cost_yuan
        assert whole.distance_km == pytest.approx(first.distance_km + second.distance_km)
    assert WORLD.route(points, "walking").cost_yuan == 0


def test_a_route_matches_numbers_worked_by_hand():
    # 0.1 degrees of latitude are 11.12 km as the crow flies, 14.46 km on the road.
    route = WORLD.route([(104.0, 30.5), (104.0, 30.6)], "driving")
    assert (route.distance_km, route.minutes, route.cost_yuan) == (14.5, 29 + 3, 39)
