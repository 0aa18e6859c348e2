import json
import re
from itertools import product

import pytest

from arenarl.domains.travel.names import CATEGORIES, PREFERENCES, TAGS
from arenarl.domains.travel.tools import PoiIndex, TravelEnvironment, guide_words
from arenarl.domains.travel.world import build_world, distance_km
from arenarl.rollout.environment import check_call

WORLD = build_world(0)
CHINESE = TravelEnvironment(WORLD, "full", "zh")
ENGLISH = TravelEnvironment(WORLD, "full", "en")
COMPACT = TravelEnvironment(WORLD, "compact")
TOOLS = ["search_poi", "around_search", "get_navigation", "universal_search", "search_flights", "search_train_tickets"]
LEG = {"date": "2026-05-01", "from_city": "Beijing", "to_city": "Wuhan"}
POI, OTHER = WORLD.pois_in("Chengdu")[0], WORLD.pois_in("Chengdu")[20]
POINT = f"{POI.lon},{POI.lat}"
ENDS = {"start_lon": POI.lon, "start_lat": POI.lat, "end_lon": OTHER.lon, "end_lat": OTHER.lat}


def full(name, environment=ENGLISH, **arguments):
    return json.loads(environment.call(name, arguments))


@pytest.mark.parametrize("environment", [CHINESE, ENGLISH, COMPACT])
def test_the_six_tools_are_the_papers_in_the_environments_language(environment):
    assert [tool["function"]["name"] for tool in environment.tools] == TOOLS
    for tool in environment.tools:
        assert tool["type"] == "function" and tool["function"]["description"]
        assert all(schema["description"] for schema in tool["function"]["parameters"]["properties"].values())
        is_chinese = re.search("[\u4e00-\u9fff]", json.dumps(tool, ensure_ascii=False))
        assert bool(is_chinese) == (environment is CHINESE)


def test_a_place_has_address_location_and_business_and_is_found_by_name_or_address_in_either_language():
    (record,) = full("search_poi", query=POI.name_en)["pois"]
    business = record.pop("business")
    assert list(record.values()) == [POI.name_en, POI.category, POI.address_en, f"{POI.lon:.6f},{POI.lat:.6f}"]
    hours = f"{POI.opens}-{POI.closes}"
    assert list(business.values()) == [f"¥{POI.price_yuan}", str(POI.rating), hours, list(POI.tags)]
    assert list(record) == ["name", "type", "address", "location"]
    assert list(business) == ["cost", "rating", "opening_hours", "tags"]
    names = (POI.name_zh, POI.name_en.lower(), f"成都的{POI.name_zh}", f"the {POI.name_en} in Chengdu")
    for query in (*names, POI.address_zh, POI.address_en):
        assert full("search_poi", CHINESE, query=query)["pois"][0]["name"] == POI.name_zh
    assert full("search_poi", query="zzz") == {"pois": []}


def test_around_search_returns_the_category_within_the_radius_best_matches_first_then_nearest():
    pois = full("around_search", location=POINT, radius=9000, keyword="quiet cafe")["pois"]
    assert {record["type"] for record in pois} == {"cafe"}
    order = [("quiet" not in record["business"]["tags"], float(record["distance"][:-2])) for record in pois]
    assert order == sorted(order)
    chinese = full("around_search", CHINESE, location=POINT, radius="9000", keyword="安静的咖啡馆")["pois"]
    assert chinese[0]["type"] == "咖啡馆"
    for record in full("around_search", location=POINT, radius=2000)["pois"]:
        kilometres = distance_km(POI.point, WORLD.find_poi(record["name"]).point)
        assert 0 < kilometres <= 2 and record["distance"] == f"{kilometres:.1f}km"
    assert full("around_search", location="80.0,40.0", radius=500, keyword="park") == {"pois": []}
    for keyword, names in ((OTHER.name_en, [OTHER.name_en]), ("bank", [])):
        pois = full("around_search", location=POINT, radius=12000, keyword=keyword)["pois"]
        assert [poi["name"] for poi in pois[:1]] == names


def test_navigation_drives_by_default_and_passes_the_via_points():
    direct = full("get_navigation", **ENDS)
    expected = WORLD.route([(POI.lon, POI.lat), (OTHER.lon, OTHER.lat)], "driving")
    facts = {"distance": f"{expected.distance_km}km", "duration": f"{expected.minutes}min"}
    assert direct["route"] == {"mode": "driving", **facts, "cost": f"¥{expected.cost_yuan}"}
    through = full("get_navigation", **ENDS, via_points="104.0,30.5;104.1,30.6", mode="walking")
    assert through["route"]["mode"] == "walking" and len(through["legs"]) == 3


def test_flights_and_trains_have_the_papers_fields():
    flight = full("search_flights", **LEG)["flights"][0]
    times = ["departure_time", "arrival_time", "duration"]
    assert list(flight) == ["flight_number", "price", "departure_airport", "arrival_airport", *times]
    assert flight["departure_airport"] == "Beijing Capital International Airport"
    trains = full("search_train_tickets", CHINESE, **LEG)
    assert list(trains) == ["direct", "transfer"]
    assert list(trains["direct"][0]) == ["train_number", "price", "departure_station", "arrival_station", *times]
    assert trains["direct"][0]["arrival_station"] == "武汉站" and trains["transfer"][0]["transfer_city"]


def test_dates_cities_and_numbers_have_several_spellings_and_null_arguments_are_dropped():
    for leg in (("05-01", "北京市", "wuhan"), ("2026-5-1", "北京", "Wuhan")):
        same = ENGLISH.call("search_flights", json.dumps(dict(zip(LEG, leg, strict=True))))
        assert same == ENGLISH.call("search_flights", LEG)
    checked = check_call(ENGLISH.tools, "around_search", {"location": POINT, "radius": "500", "keyword": None})
    assert checked == {"location": POINT, "radius": 500.0}


@pytest.mark.parametrize("environment", [CHINESE, ENGLISH])
def test_a_guide_text_states_every_fact_in_its_fixed_form(environment):
    query = f"{POI.name_zh} {POI.name_en} 成都"
    result = full("universal_search", environment, query=query)["results"][0]
    tags = [TAGS[tag] if environment is CHINESE else tag for tag in POI.tags]
    for fact in (result["title"], f"¥{POI.price_yuan}", f"{POI.opens}-{POI.closes}", str(POI.rating), *tags):
        assert fact in result["text"]
    assert WORLD.find_poi(result["title"]) is POI


def test_universal_search_ranks_the_best_match_first():
    index, hits = PoiIndex(WORLD, guide_words), []
    for city, (category, name_zh), preference in product(WORLD.cities.values(), CATEGORIES.items(), PREFERENCES):
        for more in ((), ("cheap", "late")):
            wanted = [preference, *more]
            pois = WORLD.pois_in(city.key, category)
            most = max(len({*wanted} & {*poi.tags}) for poi in pois)
            best = [poi for poi in pois if len({*wanted} & {*poi.tags}) == most]
            english = f"{' '.join(wanted)} {category}s in {city.name_en}"
            chinese = f"{city.name_zh}适合{'、'.join(TAGS[tag] for tag in wanted)}的{name_zh}有哪些？"
            hits += [index.search(query, 1)[0] in best for query in (english, chinese)]
    assert sum(hits) / len(hits) >= 0.99


def test_the_compact_form_takes_names_for_places_and_has_one_line_per_record_and_at_most_two():
    facts = f"{POI.name_en} ¥{POI.price_yuan} {POI.opens}-{POI.closes} {POI.rating}"
    assert COMPACT.call("search_poi", {"query": POI.name_zh}) == facts
    guide = COMPACT.call("universal_search", {"query": "quiet museum in Wuhan"}).splitlines()
    around = COMPACT.call("around_search", {"location": POI.name_en, "radius": 9000, "keyword": "cafe"}).splitlines()
    place = r"[A-Z][a-z]+ [A-Z][a-z]+ ¥\d+ \d\d:\d\d-\d\d:\d\d \d\.\d"
    assert len(guide) == len(around) == 2
    assert all(re.fullmatch(place, line) for line in guide)
    assert all(re.fullmatch(place + r" \d+\.\dkm", line) for line in around)
    assert COMPACT.call("universal_search", {"query": "zzz"}) == "no results"
    route = WORLD.route([(POI.lon, POI.lat), (OTHER.lon, OTHER.lat), (POI.lon, POI.lat)], "transit")
    arguments = {"start": POI.name_en, "end": POI.name_zh, "via_points": OTHER.name_en, "mode": "transit"}
    expected = f"transit {route.distance_km}km {route.minutes}min ¥{route.cost_yuan}"
    assert COMPACT.call("get_navigation", arguments) == expected
    assert "start_lon" not in json.dumps(COMPACT.tools)


def test_compact_timetables_have_the_cheapest_and_the_fastest_journey():
    for name, kind in (("search_flights", WORLD.flights), ("search_train_tickets", WORLD.trains)):
        journeys = kind(*LEG.values())
        lines = COMPACT.call(name, LEG).splitlines()
        shown = [journey for journey in journeys if any(line.startswith(f"{journey.number} ") for line in lines)]
        assert len(lines) == len(shown) == 2
        assert all(re.fullmatch(r"[A-Z]+\d+ \d\d:\d\d-\d\d:\d\d ¥\d+( via \w+)?", line) for line in lines)
        for key in (lambda journey: journey.price_yuan, lambda journey: journey.minutes):
            assert min(map(key, shown)) == min(map(key, journeys))


@pytest.mark.parametrize(("name", "arguments", "expected"), [
    ("serch_poi", {}, 'unknown tool "serch_poi". Did you mean "search_poi"?'),
    ("search_poi", '{"query": ', "not valid JSON"),
    ("search_poi", "[" * 100_000, "not valid JSON"),
    ("search_poi", {}, "search_poi needs the argument query"),
    ("around_search", {"location": POINT, "radius": 10**400}, "radius must be a number"),
    ("around_search", {"location": POINT, "radius": 1}, "radius must be 100 to 50000 metres"),
    ("around_search", {"location": "Lotus Museum", "radius": 500}, "location must be 'longitude,latitude'"),
    ("around_search", {"location": "30.57,104.06", "radius": 500}, "longitude 73 to 136 comes first"),
    ("get_navigation", ENDS | {"start_lon": float("nan")}, "start_lon must be a number"),
    ("get_navigation", ENDS | {"via_points": "here"}, "via_points must be"),
    ("get_navigation", ENDS | {"mode": "flying"}, "mode must be one of driving, walking, transit"),
    ("search_flights", LEG | {"to_city": "Beijng"}, 'unknown city "Beijng". Did you mean "Beijing"?'),
    ("search_flights", LEG | {"to_city": "Atlantis"}, "Cities: Beijing, Shanghai"),
    ("search_flights", LEG | {"to_city": "北京"}, "both Beijing"),
    *(
        ("search_train_tickets", LEG | {"date": date}, "YYYY-MM-DD")
        for date in ("tomorrow", "2026-02-30", "9" * 30 + "-1-1", "26-1-1", "0001-01-01", "1999-01-01",
                     "2100-01-01", "2026-05-01-01", "٢٠٢٦-05-01", "+1-+1", "1_0-1", "")
    ),
])  # fmt: skip
def test_a_wrong_call_gives_an_observation_with_the_reason(name, arguments, expected):
    observation = ENGLISH.call(name, arguments)
    assert observation.startswith("Error: ") and expected in observation
    assert len(observation) < 400


def test_an_unknown_name_gets_the_nearest_name_and_every_error_can_be_encoded():
    misspelt = f"{POI.name_en.split()[0]} Musem"
    observation = COMPACT.call("around_search", {"location": misspelt, "radius": 500})
    assert observation.startswith(f'Error: unknown place "{misspelt}". Did you mean "{POI.name_en.split()[0]} ')
    for arguments in (LEG | {"to_city": "\ud800"}, {"\ud800": 1}):
        COMPACT.call("search_flights", json.dumps(arguments)).encode()
