"""Open-Travel's queries in the five subtasks of Section 5.1: draw constraints, then write them in Chinese or English.

A query's `constraints` hold exactly what its text says, in the form that `truth` checks. Every search has a place that
meets it, every journey and route can meet its limits, and every budget buys the cheapest places with the preference.
Opening hours are not considered: 509 of 1,000 1-Day queries have an evening stop. For 174 of these no matching place is
open in the evening, and for 18 more none within the budget (M-Day: 502, 174 and 7).
"""

import random
from functools import partial
from typing import Any

from arenarl.domains.domain import draw_new
from arenarl.domains.travel.names import CATEGORIES, PREFERENCES, TAGS
from arenarl.domains.travel.world import World, distance_km
from arenarl.trajectory import Query

SUBTASKS = ("Direction", "1-Day", "Compare", "Search", "M-Day")
HELD_OUT = "M-Day"  # excluded from SFT (5.1)
Constraints = dict[str, Any]
Texts = tuple[str, str]  # a query in English and Chinese

_MODES = {  # the English phrase for a mode -> the Chinese one, the mode
    "by car": ("开车", "driving"),
    "with heavy luggage": ("带着大件行李", "driving"),
    "by metro": ("坐地铁", "transit"),
    "without a car": ("不开车", "transit"),
    "on foot": ("步行", "walking"),
    "as a stroll": ("散步", "walking"),
}


def make_queries(world: World, subtask: str, language: str, count: int, seed: str, taken: set[str]) -> list[Query]:
    """Return `count` queries of a subtask whose texts are not in `taken`, and add the texts to it."""
    rng = random.Random(f"{seed}:{subtask}:{language}")
    draw, say = _SUBTASKS[subtask]

    def draw_query(number: int) -> Query:
        wanted = draw(world, rng)
        english, chinese = say(world, wanted)
        text = chinese if language == "zh" else english
        return Query(f"{seed}-{subtask}-{number:05d}", "travel", subtask, language, text, wanted)

    return draw_new(draw_query, count, taken)


def _draw_search(world: World, rng: random.Random) -> Constraints:
    target = rng.choice(world.pois)
    near = rng.choice([poi for poi in world.pois_in(target.city) if poi.category not in (target.category, "hotel")])
    radius_km = next(km for km in (1, 2, 3, 5, 8, 12) if distance_km(near.point, target.point) <= km)
    wanted = {"city": target.city, "near": near.name_en, "category": target.category, "radius_m": radius_km * 1000}
    wanted["preference"] = rng.choice([tag for tag in target.tags if tag in PREFERENCES])
    prices = sorted(poi.price_yuan for poi in world.pois_in(target.city, target.category))
    wanted["max_price_yuan"] = max(10, prices[1]) if "cheap" in target.tags and rng.random() < 0.7 else None
    wanted["open_at"] = rng.choice(("19:00", "20:00")) if "late" in target.tags and rng.random() < 0.7 else None
    return wanted


def _say_search(world: World, wanted: Constraints) -> Texts:
    price, clock, km = wanted["max_price_yuan"], wanted["open_at"], wanted["radius_m"] // 1000
    kind = f"{wanted['preference']} {wanted['category']}"
    limits = _optional(price, ", at most {} yuan") + _optional(clock, ", open at {}")
    english = f"Find a {kind} within {km} km of {wanted['near']} in {wanted['city']}{limits}."
    kind = f"{TAGS[wanted['preference']]}的{CATEGORIES[wanted['category']]}"
    limits = _optional(price, "，人均不超过{}元") + _optional(clock, "，{}还在营业")
    near = world.city_name(wanted["city"], "zh") + world.find_poi(wanted["near"]).name_zh
    return english, f"请在{near}附近{km}公里内找一家适合{kind}{limits}。"


def _draw_day(world: World, rng: random.Random, days: int = 1) -> Constraints:
    city = rng.choice(sorted(world.cities))
    preference = rng.choice(PREFERENCES)
    kinds = [category for category in CATEGORIES if category != "hotel"]
    categories = rng.sample(kinds, 4 if days > 1 else rng.choice((2, 3)))
    prices = [[poi.price_yuan for poi in world.pois_in(city, kind) if preference in poi.tags] for kind in categories]
    budget = sum(map(min, prices)) + 10 * len(categories) if rng.random() < 0.6 else None
    evening = categories[-1] if rng.random() < 0.5 else None
    wanted = {"city": city, "categories": categories, "preference": preference, "days": days}
    wanted |= {"budget_yuan": budget, "evening": evening}
    if days > 1 or rng.random() < 0.3:
        others = [other for other in sorted(world.cities) if other != city]
        wanted |= {"from_city": rng.choice(others), "date": _draw_date(rng)}
    return wanted


def _say_day(world: World, wanted: Constraints) -> Texts:
    names = [f"evening {category}" if category == wanted["evening"] else category for category in wanted["categories"]]
    stops = f"{', '.join(names[:-1])} and {names[-1]}{_optional(wanted['budget_yuan'], ', at most {} yuan')}"
    arrival = f", arriving from {wanted['from_city']} on {wanted['date']}" if "date" in wanted else ""
    trip = f"{wanted['days']}-day plan for {wanted['city']}, a {wanted['preference']} trip"
    english = f"Make a {trip}: {stops}{arrival}."
    names = ["晚上去" * (category == wanted["evening"]) + CATEGORIES[category] for category in wanted["categories"]]
    stops = f"{'、'.join(names)}{_optional(wanted['budget_yuan'], '，人均预算{}元')}"
    arrival = f"，{wanted['date']}从{world.city_name(wanted['from_city'], 'zh')}出发" if "date" in wanted else ""
    trip = f"{world.city_name(wanted['city'], 'zh')}{wanted['days']}天的行程，偏好{TAGS[wanted['preference']]}"
    return english, f"请安排{trip}，想去{stops}{arrival}。"


def _draw_compare(world: World, rng: random.Random) -> Constraints:
    start, end = rng.sample(sorted(world.cities), 2)
    wanted = {"from_city": start, "to_city": end, "date": _draw_date(rng), "priority": rng.choice(("cheap", "fast"))}
    journeys = world.journeys(wanted["date"], start, end)
    best = min(journeys, key=lambda journey: journey.price_yuan if wanted["priority"] == "cheap" else journey.minutes)
    wanted["max_price_yuan"] = best.price_yuan + rng.choice((20, 50)) if rng.random() < 0.5 else None
    deadlines = [clock for clock in ("12:00", "15:00", "18:00", "21:00", "23:00") if clock > best.arrives]
    wanted["arrive_by"] = deadlines[0] if rng.random() < 0.5 and deadlines else None
    return wanted


def _say_compare(world: World, wanted: Constraints) -> Texts:
    price, clock = wanted["max_price_yuan"], wanted["arrive_by"]
    leg = f"from {wanted['from_city']} to {wanted['to_city']} on {wanted['date']}"
    limits = _optional(price, ", at most {} yuan") + _optional(clock, ", arriving by {}")
    english = f"Compare flights and trains {leg}, {wanted['priority']}est first{limits}."
    start, end = (world.city_name(wanted[key], "zh") for key in ("from_city", "to_city"))
    goal = "最便宜" if wanted["priority"] == "cheap" else "最快"
    limits = _optional(price, "，不超过{}元") + _optional(clock, "，{}前到达")
    return english, f"{wanted['date']}从{start}到{end}，比较飞机和火车，要{goal}{limits}。"


def _draw_direction(world: World, rng: random.Random) -> Constraints:
    city = rng.choice(sorted(world.cities))
    stops = rng.sample(world.pois_in(city), rng.choice((3, 4)))
    phrase = rng.choice(list(_MODES))
    mode = _MODES[phrase][1]
    minutes = world.route([poi.point for poi in stops], mode).minutes
    wanted = {"city": city, "stops": [poi.name_en for poi in stops], "mode": mode, "phrase": phrase}
    wanted["max_minutes"] = (minutes // 30 + 1) * 30 if rng.random() < 0.4 else None
    return wanted


def _say_direction(world: World, wanted: Constraints) -> Texts:
    first, *between, last = wanted["stops"]
    way = f"from {first} via {' and '.join(between)} to {last}, {wanted['phrase']}"
    english = f"Route in {wanted['city']} {way}{_optional(wanted['max_minutes'], ', within {} minutes')}."
    first, *between, last = [world.find_poi(name).name_zh for name in wanted["stops"]]
    way = f"从{world.city_name(wanted['city'], 'zh')}的{first}出发，途经{'、'.join(between)}，到{last}"
    return english, f"{_MODES[wanted['phrase']][0]}，{way}怎么走{_optional(wanted['max_minutes'], '，{}分钟内')}？"


_SUBTASKS = {  # (draw the constraints, write them in both languages)
    "Direction": (_draw_direction, _say_direction),
    "1-Day": (_draw_day, _say_day),
    "Compare": (_draw_compare, _say_compare),
    "Search": (_draw_search, _say_search),
    "M-Day": (partial(_draw_day, days=2), _say_day),
}


def _draw_date(rng: random.Random) -> str:
    return f"2026-05-{rng.randint(1, 28):02d}"


def _optional(value: object, phrase: str) -> str:
    """Return the phrase with the value inserted, or "" for None."""
    return phrase.format(value) if value is not None else ""
