import random
from dataclasses import replace
from itertools import cycle

import pytest

from arenarl.domains.rubrics import domain_rubric
from arenarl.domains.travel.queries import SUBTASKS, make_queries
from arenarl.domains.travel.teacher import Teacher
from arenarl.domains.travel.tools import TravelEnvironment
from arenarl.domains.travel.truth import ANSWER_DIMENSIONS, PATH_DIMENSIONS, TravelTruth, examine, has_truth, read_lines
from arenarl.domains.travel.world import build_world, distance_km
from arenarl.trajectory import Query

total_score = domain_rubric("travel", "en").total

WORLD = build_world(0)
ENVIRONMENTS = COMPACT, ENGLISH, CHINESE = [
    TravelEnvironment(WORLD, *form) for form in (("compact",), ("full", "en"), ("full", "zh"))
]
each_environment = pytest.mark.parametrize("environment", ENVIRONMENTS, ids=["compact", "full en", "full zh"])
POI = WORLD.pois_in("Chengdu")[0]
LEG = {"date": "2026-05-01", "from_city": "Beijing", "to_city": "Wuhan"}


def answer(*lines):
    return {"role": "assistant", "reasoning_content": "", "content": "<answer>\n" + "\n".join(lines) + "\n</answer>"}


def look_up(name, environment=COMPACT, **arguments):
    """Return the messages of a call and its result."""
    function = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "assistant", "reasoning_content": "", "content": "", "tool_calls": [function]},
        {"role": "tool", "content": environment.call(name, arguments)},
    ]


def find(poi):
    return look_up("search_poi", query=poi.name_en)


def facts(poi):
    return f"¥{poi.price_yuan} {poi.opens}-{poi.closes}"


def truth_of(subtask, wanted, *messages):
    flat = [message for part in messages for message in (part if isinstance(part, list) else [part])]
    return examine(WORLD, Query("q", "travel", subtask, "en", "?", wanted), [{"role": "user", "content": "?"}, *flat])


def facts_of(text):
    (line,) = read_lines(WORLD, text)
    return set(line.facts)


@pytest.mark.parametrize(("text", "expected"), [
    ("Lotus Museum ¥30 09:00-17:00 4.5 1.2km", {("price", "30"), ("hours", "09:00-17:00"), ("distance", "1.2")}),
    ("driving 12.0km 27min ¥34", {("distance", "12.0"), ("duration", "27"), ("price", "34")}),
    ("荷花博物馆，门票￥30，营业时间9:00至17:00", {("price", "30"), ("hours", "09:00-17:00")}),
    ("人均30元，距离1.2公里，约18分钟", {("price", "30"), ("distance", "1.2"), ("duration", "18")}),
    ("It costs 30 yuan, 5 km away, 18 minutes on foot, open 9:00 to 17:00",
     {("price", "30"), ("distance", "5.0"), ("duration", "18"), ("hours", "09:00-17:00")}),
    ("at 10:00, then at 14:00", set()), ("rated 4.5, P0030, 248 Renmin Road", set()),
    ("1小时20分钟", {("duration", "80")}), ("1个小时20分", {("duration", "80")}),
    ("1 h 20 min", {("duration", "80")}), ("2 hours and 5 minutes", {("duration", "125")}),
    ("18min到达", {("duration", "18")}), ("24小时营业", set()),
    ("¥1,290", {("price", "1290")}), ("1,290元", {("price", "1290")}), ("¥30.5", {("price", "30.5")}),
    ("30.50元", {("price", "30.5")}), ("¥20,9:00起", {("price", "20")}), ("评分4.5分", set()),
    ("Lotus Museum 9am-5:30pm", {("hours", "09:00-17:30")}), ("minimum 3 minimal", set()),
    ("¥" + "9" * 8, set()), ("9" * 8 + "km", set()),
])  # fmt: skip
def test_facts_are_found_by_their_form_only(text, expected):
    assert facts_of(text) == expected


def test_an_empty_text_has_no_lines_and_journey_numbers_are_found():
    assert read_lines(WORLD, "") == []
    for text in ("Train G123 leaves", "火车 G123 出发", "推荐G123次列车", "乘坐G123航班", "（G123）", "G123"):
        assert read_lines(WORLD, text)[0].numbers == ["G123"]
        assert read_lines(WORLD, text.replace("G123", "CA1234"))[0].numbers == ["CA1234"]


def test_a_journey_has_the_same_facts_in_every_form_and_language():
    for tool, of_world in (("search_flights", WORLD.flights), ("search_train_tickets", WORLD.trains)):
        journeys = {journey.number: journey for journey in of_world(*LEG.values())}
        for environment in ENVIRONMENTS:
            lines = [line for line in read_lines(WORLD, environment.call(tool, LEG)) if line.numbers]
            assert len(lines) == (2 if environment is COMPACT else len(journeys))
            for line in lines:
                journey = journeys[line.numbers[0]]
                expected = {("price", str(journey.price_yuan)), ("hours", f"{journey.departs}-{journey.arrives}")}
                assert expected <= set(line.facts)


def test_dimensions_worked_by_hand():
    truth = TravelTruth(needs=[1, 0], usefulness=[1, 0.5, 0], evidence=[1, 1, 0, 0], delivered=[1],
                  constraints={"a": True, "b": False, "c": False, "d": False},
                  facts_expected=4, facts_stated=5, facts_grounded=3, clarity=0.8)  # fmt: skip
    expected = [5.0, 5.0, 5.0, 10.0, 2.5, 6.0, 8.0]  # details: 3 of 5, because 5 are stated and only 4 expected
    assert list(truth.dimensions().values()) == pytest.approx(expected)
    assert list(truth.dimensions()) == [*PATH_DIMENSIONS, *ANSWER_DIMENSIONS]
    assert total_score(truth.dimensions()) == pytest.approx(0.6 * 5 + 0.4 * 26.5 / 4)
    assert truth.groundedness == 0.6 and truth.constraints_met == 0.25
    assert set(TravelTruth().dimensions().values()) == {0.0}
    assert TravelTruth().groundedness == TravelTruth().invented_facts == 0.0


@each_environment
@pytest.mark.parametrize("subtask", SUBTASKS)
def test_the_teacher_with_full_skill_is_grounded_and_nearly_reaches_10_and_without_skill_does_not(environment, subtask):
    teacher, language = Teacher(WORLD, environment), "zh" if environment is CHINESE else "en"
    for query in make_queries(WORLD, subtask, language, 8, "truth", set()):
        solved = [teacher.solve(query, random.Random(0), skill).messages for skill in (1.0, 0.0)]
        full, zero = (examine(WORLD, query, messages) for messages in solved)
        assert total_score(full.dimensions()) > 9 and 2 < total_score(zero.dimensions()) < 8
        assert full.groundedness == 1.0


DEGENERATE = ["[" * 5000, '{"a": ' * 5000, *(f"{'9' * 5000}{unit}" for unit in ("", "km", "min")), "¥" + "9" * 5000]
DEGENERATE += ["null", "[1]", '{"a": 1}', "99:99-99:99", "\ud800"]


def test_mangled_trajectories_and_degenerate_answers_have_scores_from_0_to_10(taught):
    rng = random.Random(0)
    for pair, text in zip(taught[::3], cycle(DEGENERATE), strict=False):
        *before, last = pair.trajectory.messages
        kept = [message for message in pair.trajectory.messages if rng.random() < 0.8]
        rng.shuffle(kept)
        degenerate = [[*before, answer(words)] for words in (text, f"{POI.name_en} {text}")]
        for messages in (kept, kept * 3, [*kept, last], *degenerate):
            assert all(0 <= score <= 10 for score in examine(WORLD, pair.query, messages).dimensions().values())


NEAR = WORLD.pois_in("Wuhan", "mall")[0]
PICK = WORLD.pois_in("Wuhan", "cafe")[0]
KM = distance_km(PICK.point, NEAR.point)


def search_for(poi=PICK, **changes):
    """Return the truth of an answer that recommends `poi`; PICK meets the constraints exactly before the changes."""
    wanted = {"city": "Wuhan", "near": NEAR.name_en, "category": "cafe",
              "radius_m": KM * 1000 + 1, "preference": PICK.tags[0],
              "max_price_yuan": PICK.price_yuan, "open_at": PICK.opens} | changes  # fmt: skip
    return truth_of("Search", wanted, find(poi), answer(f"{poi.name_en} {facts(poi)}"))


@pytest.mark.parametrize(("changes", "missed"), [
    ({}, []), ({"radius_m": KM * 1000 - 1}, ["radius"]), ({"max_price_yuan": PICK.price_yuan - 1}, ["max_price"]),
    ({"open_at": PICK.closes}, ["open_at"]), ({"open_at": "04:00"}, ["open_at"]),
    ({"category": "temple"}, ["category"]), ({"city": "Xian"}, ["category"]), ({"preference": "top"}, ["top"]),
])  # fmt: skip
def test_each_constraint_of_a_search_is_checked_on_its_own(changes, missed):
    constraints = search_for(**changes).constraints
    assert len(constraints) == 5 and "top" not in PICK.tags
    assert [name for name, is_met in constraints.items() if not is_met] == missed


SEARCH = {"city": "Wuhan", "near": NEAR.name_en, "category": "cafe", "radius_m": 5000, "preference": "quiet"}


def test_an_answer_without_a_place_meets_no_constraint_and_a_place_in_another_city_misses_category_and_radius():
    truth = truth_of("Search", SEARCH, answer("I found none."))
    assert set(truth.constraints.values()) == {False} and truth.delivered == [0.0]
    constraints = search_for(WORLD.pois_in("Harbin", "cafe")[0]).constraints
    assert constraints["category"] is constraints["radius"] is False


def test_the_place_of_departure_is_not_the_recommendation():
    english = f"Near {NEAR.name_en}: {PICK.name_en} {facts(PICK)}"
    for text in (english, f"{NEAR.name_zh}附近的{PICK.name_zh}，{facts(PICK)}"):
        truth = truth_of("Search", SEARCH | {"radius_m": 50_000}, find(PICK), answer(text))
        assert truth.constraints["category"] and truth.groundedness == 1.0


def recommend(*lines, seen=(PICK,)):
    """Return the truth of an answer after these places were looked up."""
    return truth_of("Search", SEARCH, *map(find, seen), answer(*lines))


def counts(truth):
    return truth.facts_stated, truth.facts_grounded


def priced(extra=0):
    return f"{PICK.name_en} ¥{PICK.price_yuan + extra}"


OTHER = next(poi for poi in WORLD.pois_in("Wuhan", "cafe") if poi.price_yuan != PICK.price_yuan)


@pytest.mark.parametrize(("lines", "seen", "stated_and_grounded"), [
    ([priced(), priced(1)], [PICK], (2, 1)),
    ([f"{PICK.name_en} {facts(PICK)}"], [], (2, 0)),
    ([f"{PICK.name_en} ¥{OTHER.price_yuan}"], [PICK, OTHER], (1, 0)),  # seen of another place
    ([f"{priced()}, that is {PICK.price_yuan} yuan"], [PICK], (1, 1)),
    *(([priced(), f"{word} ¥999"], [PICK], (1, 1)) for word in ("Total:", "Budget", "合计", "总共")),
    ([priced(), f"On a budget: {priced(1)}", "Total: 77.7km"], [PICK], (3, 1)),
])  # fmt: skip
def test_only_a_seen_fact_of_the_same_place_is_grounded_and_counts_once(lines, seen, stated_and_grounded):
    assert counts(recommend(*lines, seen=seen)) == stated_and_grounded


@each_environment
def test_an_answer_may_be_in_another_language_than_the_results(environment):
    messages = look_up("search_poi", environment, query=PICK.name_en)
    english = f"{priced()}, open {PICK.opens} to {PICK.closes}"
    for text in (english, f"{PICK.name_zh}，{PICK.price_yuan}元，{PICK.opens}至{PICK.closes}"):
        assert counts(truth_of("Search", SEARCH, messages, answer(text))) == (2, 2)


def test_invented_facts_lower_the_details_once_more_are_stated_than_expected():
    """Expected are price, hours and distance."""
    half = recommend(priced(), priced(1))
    assert half.groundedness == 0.5 and half.figures()["invented_facts"] == 50.0
    assert half.dimensions()["answer_details"] == pytest.approx(10 / 3)
    answers = [[f"{PICK.name_en} {facts(PICK)}", *map(priced, range(1, 1 + count))] for count in range(4)]
    scores = [recommend(*lines).dimensions()["answer_details"] for lines in answers]
    assert scores == pytest.approx([20 / 3, 20 / 3, 20 / 4, 20 / 5])


def test_a_repeated_fact_earns_nothing():
    route = look_up("get_navigation", start=NEAR.name_en, end=PICK.name_en)
    kilometres = WORLD.route([NEAR.point, PICK.point], "driving").distance_km
    lines = [f"{poi.name_en} {kilometres:.1f}km" for poi in WORLD.pois_in("Wuhan", "cafe")]
    assert counts(truth_of("Search", SEARCH, route, answer(*lines))) == (1, 1)
    often = recommend(*[f"{'very ' * count}good: {priced()}" for count in range(6)])
    assert often.dimensions()["answer_details"] <= recommend(priced()).dimensions()["answer_details"]


def test_repeated_and_empty_lines_reduce_clarity():
    line = f"{PICK.name_en} {facts(PICK)}"
    answers = ([line], [line] * 4, [line, "I hope this helps", "Enjoy", "Bye"])
    assert [recommend(*lines).clarity for lines in answers] == [1.0, 0.25, 0.625]


def test_a_repeated_call_is_useless_and_a_failed_or_empty_call_covers_no_need():
    around = look_up("around_search", location=NEAR.name_en, radius=9000, keyword="cafe")
    wrong = look_up("around_search", location="Nowhere", radius=9000, keyword="cafe")
    empty = look_up("around_search", ENGLISH, location=f"{NEAR.lon},{NEAR.lat}", radius=100, keyword="cafe")
    end = answer(PICK.name_en)
    once = truth_of("Search", SEARCH, around, end).usefulness
    assert truth_of("Search", SEARCH, around, around, end).usefulness == [*once, 0.0]
    assert truth_of("Search", SEARCH, wrong, around, end).usefulness == [0.0, *once] and once[0] > 0
    assert [truth_of("Search", SEARCH, call, end).needs for call in (wrong, empty)] == [[0.0, 0.0], [0.0, 0.0]]


MUSEUM, MALL = WORLD.pois_in("Wuhan", "museum")[0], WORLD.pois_in("Wuhan", "mall")[1]
TAG, COST = MUSEUM.tags[0], MUSEUM.price_yuan + MALL.price_yuan


def at(clock, poi, name="name_en"):
    return f"{clock} {getattr(poi, name)} {facts(poi)}"


MORNING, NOON = at("10:00", MUSEUM), at("13:00", MALL)


@pytest.mark.parametrize(("lines", "changes", "missed"), [
    ([MORNING, NOON], {}, set()), ([at("10:00", MUSEUM, "name_zh"), at("13:00", MALL, "name_zh")], {}, set()),
    ([MORNING, NOON], {"budget_yuan": COST - 1}, {"budget"}),
    # the world's prices count, not the answer's
    ([f"10:00 {MUSEUM.name_en} ¥0", f"13:00 {MALL.name_en} ¥0"], {"budget_yuan": COST - 1}, {"budget"}),
    # a range before a place is the time of the visit, as large models write it
    *(([at(clock, MUSEUM), NOON], {}, set())
      for clock in (MUSEUM.opens, "12:00", "10:00-12:00", "2:30 p.m.", "下午2:00-4:00")),
    *(([at(clock, MUSEUM), NOON], {}, {"museum open"})
      for clock in (MUSEUM.closes, "07:59", "7:59", "23:00", "晚上10点", "")),
    *(([MORNING, *other], {}, {"complete", "mall open", "budget"})
      for other in ([], [at("13:00", WORLD.pois_in("Xian", "mall")[0])])),
    *(([MORNING, at(clock, MALL)], {"evening": "mall"}, set()) for clock in ("18:00", "19:00", "晚上七点半")),
    ([MORNING, at("17:59", MALL)], {"evening": "mall"}, {"evening"}),
])  # fmt: skip
def test_each_constraint_of_a_day_plan_is_checked_on_its_own(lines, changes, missed):
    wanted = {"city": "Wuhan", "categories": ["museum", "mall"], "preference": TAG, "days": 1, "budget_yuan": COST,
              "evening": None} | changes  # fmt: skip
    constraints = truth_of("1-Day", wanted, find(MUSEUM), find(MALL), answer(*lines)).constraints
    has_tag = constraints.pop(f"{TAG} mall")
    assert has_tag == (TAG in MALL.tags and "complete" not in missed)
    assert set(constraints) - {"evening"} == {"complete", "museum open", "mall open", "budget", f"{TAG} museum"}
    assert {name for name, is_met in constraints.items() if not is_met} == missed


@pytest.mark.parametrize("lead", ["", "- ", "1. **", "上午", "Day 1: ", "2026-05-01 "])
def test_hours_before_a_place_are_the_visits_and_after_it_the_opening_hours(lead):
    (line,) = read_lines(WORLD, f"{lead}10:00-12:00 {MUSEUM.name_en} {facts(MUSEUM)}")
    assert line.clock == "10:00"
    assert set(line.facts) == {("price", str(MUSEUM.price_yuan)), ("hours", f"{MUSEUM.opens}-{MUSEUM.closes}")}
    (line,) = read_lines(WORLD, f"Open 09:00-17:00: {MUSEUM.name_en}")
    assert line.facts == [("hours", "09:00-17:00")]
    (line,) = read_lines(WORLD, f"{lead}10:00-12:00 G123")
    assert line.facts == [("hours", "10:00-12:00")]


FLIGHTS, TRAINS = WORLD.flights(*LEG.values()), WORLD.trains(*LEG.values())
CHEAPEST = min(FLIGHTS + TRAINS, key=lambda journey: journey.price_yuan)
BOTH = look_up("search_flights", ENGLISH, **LEG) + look_up("search_train_tickets", ENGLISH, **LEG)


def compare(choice, *messages, **changes):
    wanted = LEG | {"priority": "cheap", "max_price_yuan": None, "arrive_by": None} | changes
    named = answer(f"{FLIGHTS[0].number} or {TRAINS[0].number}", f"I take {choice.number}")
    return truth_of("Compare", wanted, *(messages or BOTH), named)


def test_the_last_named_journey_is_the_choice_must_be_the_best_of_all_seen_and_meet_the_limits():
    fastest = min(FLIGHTS + TRAINS, key=lambda journey: journey.minutes)
    for priority, best in (("cheap", CHEAPEST), ("fast", fastest)):
        for journey in FLIGHTS + TRAINS:
            constraints = compare(journey, priority=priority).constraints
            assert constraints == {"date and cities": True, priority: journey == best}
    met = compare(CHEAPEST, max_price_yuan=CHEAPEST.price_yuan, arrive_by=CHEAPEST.arrives).constraints
    assert met == dict.fromkeys(("date and cities", "cheap", "max_price", "arrive_by"), True)
    missed = compare(CHEAPEST, max_price_yuan=CHEAPEST.price_yuan - 1, arrive_by="00:01").constraints
    assert not missed["max_price"] and not missed["arrive_by"]


def test_the_best_of_one_kind_alone_or_of_another_day_does_not_count():
    half = look_up("search_flights" if CHEAPEST.kind == "flight" else "search_train_tickets", ENGLISH, **LEG)
    truth = compare(CHEAPEST, *half)
    assert not truth.constraints["cheap"] and sorted(truth.needs) == [0.0, 1.0]
    trains = WORLD.trains("2026-05-02", LEG["from_city"], LEG["to_city"])
    other = {train.number for train in trains} - {train.number for train in TRAINS}
    truth = truth_of("Compare", LEG | {"priority": "cheap", "max_price_yuan": 9999}, BOTH, answer(f"Take {min(other)}"))
    assert set(truth.constraints.values()) == {False} and truth.delivered == [0.0, 0.0]


STOPS = WORLD.pois_in("Wuhan")[3:20:8]
NAMES = [poi.name_en for poi in STOPS]
WAY = {"city": "Wuhan", "stops": NAMES, "mode": "transit"}


def way(names, mode="transit", **changes):
    ends = {"start": NAMES[0], "end": NAMES[-1], "via_points": ";".join(NAMES[1:-1])}
    route = look_up("get_navigation", **ends, mode=mode)
    return truth_of("Direction", WAY | changes, route, answer(" > ".join(names), f"{mode} it is"))


def test_stops_must_be_in_order_and_the_mode_the_querys():
    assert len(NAMES) == 3 and way(NAMES).constraints == {"order": True, "mode": True}
    assert way([poi.name_zh for poi in STOPS]).constraints == {"order": True, "mode": True}
    assert way(NAMES[::-1]).constraints == {"order": False, "mode": True}
    assert way(NAMES[:2]).constraints["order"] is False and way(NAMES[:2]).delivered == [1.0, 1.0, 0.0]
    assert way(NAMES, "walking").constraints == {"order": True, "mode": False}


@pytest.mark.parametrize(("text", "mode"), [
    ("Driving: 5 km", "driving"), ("Take the METRO", "transit"), ("On foot, not by car", "walking"),
    ("By car, then walk", "driving"), ("坐地铁", "transit"), ("打车", "driving"), ("Card", None), ("", None),
    ("by car: walking 5 km", "walking"),
])  # fmt: skip
def test_the_mode_comes_from_a_tools_word_or_else_from_the_first_word_for_a_mode(text, mode):
    for wanted in ("driving", "walking", "transit"):
        assert truth_of("Direction", WAY | {"mode": wanted}, answer(text)).constraints["mode"] is (wanted == mode)


def test_only_a_route_with_all_stops_from_a_tool_meets_a_time_limit_and_covers_a_need():
    minutes = WORLD.route([poi.point for poi in STOPS], "transit").minutes
    assert way(NAMES, max_minutes=minutes).constraints["max_minutes"]
    assert not way(NAMES, max_minutes=minutes - 1).constraints["max_minutes"]
    unseen = truth_of("Direction", WAY | {"max_minutes": 999}, answer(" > ".join(NAMES), "transit"))
    assert not unseen.constraints["max_minutes"]
    short = look_up("get_navigation", start=NAMES[0], end=NAMES[-1])
    assert truth_of("Direction", WAY | {"mode": "driving"}, short, answer("driving")).needs == [0.0, 0.0]


def test_a_query_with_a_truth_can_be_examined_also_without_one_of_its_fields(taught):
    for pair in taught[::13]:
        assert has_truth(WORLD, pair.query)
        for field in pair.query.constraints:
            without = {name: value for name, value in pair.query.constraints.items() if name != field}
            query = replace(pair.query, constraints=without)
            if has_truth(WORLD, query):
                examine(WORLD, query, pair.trajectory.messages)


@pytest.mark.parametrize(("subtask", "changed"), [
    ("Search", {"near": "My Hotel"}), ("Search", {"city": "Paris"}),
    ("packing", {}), ("Direction", {"stops": ["Nowhere"]}),
    ("1-Day", {"from_city": "Wuhan"}), ("Search", {"city": "Wuhan", "near": WORLD.pois_in("Xian")[0].name_en}),
    ("Direction", {"stops": [WORLD.pois_in("Wuhan")[0].name_en, WORLD.pois_in("Xian")[0].name_en], "city": None}),
    ("Direction", {"stops": [poi.name_en for poi in WORLD.pois_in("Wuhan")[:2]], "city": "Xian"}),
])  # fmt: skip
def test_unknown_places_and_subtasks_have_no_truth(subtask, changed, taught):
    known = next(pair.query for pair in taught if pair.query.subtask == subtask or subtask == "packing")
    constraints = {key: value for key, value in known.constraints.items() if key != "date"} | changed
    assert not has_truth(WORLD, replace(known, subtask=subtask, constraints=constraints))
