"""What a judge can tell of a travel trajectory whose tool results it is not shown (3.2 and 3.3, ArenaRL): the answer alone, or the calls too.

The judge keeps general knowledge: which names are places, of which city and kind; the form of a flight's or train's number; what each tool is
for. Prices, opening hours, distances, durations, tags and rival journeys are what the answer states, and are believed. A constraint of which
the answer says nothing is None. A call is believed to have returned what it asks for.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from arenarl.domains.stated_facts import TOTAL, minutes_of, starts_with_visit
from arenarl.domains.travel.names import CATEGORIES, MODES, TAGS
from arenarl.domains.travel.truth import EVENING, Line, TravelTruth, chosen_mode, clarity_of, padded, read_lines
from arenarl.domains.travel.world import Poi, World
from arenarl.trajectory import Query, ToolCall, read_turns

_PLACE_TOOLS = ("search_poi", "around_search", "universal_search")
_JOURNEY_TOOLS = {"flight": "search_flights", "train": "search_train_tickets"}
_TRANSPORT = re.compile("|".join([*(word for words in MODES.values() for word in words), "train", "flight", "火车", "高铁", "航班"]), re.IGNORECASE)
_NO_SUM = re.compile(r"budget|预算|for (?:two|\d)|people|[两\d]\s?人", re.IGNORECASE)  # the limit itself, or a price of several persons
_EVENING_WORD = re.compile(r"evening|night|dinner|sunset|晚|夜", re.IGNORECASE)
_TAG_WORDS = {
    tag: re.compile(rf"(?<!\bnot )(?<!\bno )(?<!\bnon-)\b{tag}\b(?! of\b)|(?<!不){word}", re.IGNORECASE) for tag, word in TAGS.items()
}


def examine_view(world: World, query: Query, messages: list[dict[str, Any]]) -> TravelTruth:
    """Examine a view without tool results, of a query that `has_truth`."""
    view = _View(world, query, messages)
    _EXAMINERS[query.subtask](view)
    truth = view.truth
    truth.facts_stated = truth.facts_grounded = len(view.facts)
    truth.clarity = clarity_of(view.answer)
    return truth


class _View:
    """The calls, and the answer's lines with what each states about what.

    `facts` are the values by (about, kind), in the answer's order. A line without a name is about the place or journey named last, unless it is
    of the way or of another visit: about None. `totals` are the sums that the answer states.
    """

    def __init__(self, world: World, query: Query, messages: list[dict[str, Any]]):
        turns = read_turns(messages)
        self.world, self.wanted, self.truth = world, query.constraints, TravelTruth()
        self.calls = [call for turn in turns for call in turn.tool_calls]
        self.answer = read_lines(world, (turns[-1].answer or "") if turns else "")
        near = world.find_poi(self.wanted.get("near") or "")
        for line in self.answer:
            line.pois = [poi for poi in line.pois if poi != near]
        self.facts: dict[tuple[str | None, str], list[str]] = defaultdict(list)
        self.totals: list[float] = []
        self.lines_about: dict[str | None, list[Line]] = defaultdict(list)
        named = None
        for line in self.answer:
            named = line.entity or named
            about = named if line.entity or not _is_of_way(line) else None
            self.lines_about[about].append(line)
            for kind, value in line.facts:
                if line.entity or kind != "price" or not TOTAL.search(line.text):
                    self.facts[about, kind].append(value)
                elif not _NO_SUM.search(line.text) and not _TRANSPORT.search(line.text):
                    self.totals.append(float(value))

    def stated(self, about: str | None, kind: str) -> list[str]:
        return self.facts.get((about, kind), [])

    def amount(self, about: str | None, kind: str) -> float | None:
        """The first that the answer states."""
        values = self.stated(about, kind)
        return float(values[0]) if values else None

    def clock(self, about: str | None) -> str | None:
        """When the answer plans to be there."""
        return next((padded(line.clock) for line in self.lines_about.get(about, []) if line.clock), None)

    def expect(self, entity: str | None, **tools: tuple[str, ...]) -> None:
        """The answer should state a fact of each of these kinds; note whether a call asks one of the tools that return it."""
        called = {call.name for call in self.calls}
        self.truth.facts_expected += len(tools)
        self.truth.evidence += [float(entity is not None and not called.isdisjoint(names)) for names in tools.values()]

    def rate_calls(self, useful: Callable[[ToolCall], float]) -> None:
        """Note how useful each call is by its name and arguments; a repeated one is of no use."""
        seen = set()
        for call in self.calls:
            key = (call.name, json.dumps(call.arguments, sort_keys=True))
            self.truth.usefulness.append(0.0 if key in seen else useful(call))
            seen.add(key)

    def asks_for(self, call: ToolCall, *categories: str) -> bool:
        return call.name in _PLACE_TOOLS and _names(call, [word for category in categories for word in (category, CATEGORIES[category])])

    def asks_for_journey(self, call: ToolCall, start: str, end: str) -> bool:
        """Whether a call asks for flights or trains of the query's day between these cities."""
        if call.name not in _JOURNEY_TOOLS.values() or not isinstance(call.arguments, dict):
            return False
        cities = [self.world.find_city(str(call.arguments.get(key))) for key in ("from_city", "to_city")]
        is_of_day = str(call.arguments.get("date")).strip() in (self.wanted["date"], self.wanted["date"][5:])
        return is_of_day and [city and city.key for city in cities] == [start, end]

    def tag_checks(self, poi: Poi | None, wanted: dict[str, Any]) -> dict[str, bool | None]:
        """The constraints on a single place, as `truth` has them."""
        about = poi.poi_id if poi else None
        checks = {wanted["preference"]: self.says_tag(about, wanted["preference"])}
        if (limit := wanted.get("max_price_yuan")) is not None:
            checks["max_price"] = _is_within(self.amount(about, "price"), limit)
        if (clock := wanted.get("open_at")) is not None:
            checks["open_at"] = _is_open(self.stated(about, "hours"), clock)
        if wanted.get("is_cheap"):
            checks["cheap"] = self.says_tag(about, "cheap")
        return checks if poi else dict.fromkeys(checks, False)

    def says_tag(self, about: str | None, tag: str) -> bool | None:
        """True where a line about the place has the tag's word; elsewhere nothing is known."""
        return any(_TAG_WORDS[tag].search(line.text) for line in self.lines_about.get(about, [])) or None


def _examine_search(view: _View) -> None:
    wanted, truth = view.wanted, view.truth
    near = view.world.find_poi(wanted["near"])
    truth.needs = [
        float(any(view.asks_for(call, wanted["category"]) for call in view.calls)),
        float(any(call.name == "around_search" for call in view.calls)),
    ]

    def useful(call: ToolCall) -> float:
        is_locating = call.name == "search_poi" and _names(call, [near.name_en, near.name_zh])
        return float(is_locating or (call.name != "search_poi" and view.asks_for(call, wanted["category"])))

    view.rate_calls(useful)
    answered = [line.pois[0] for line in view.answer if line.pois]
    pick = answered[0] if answered else None
    fits = pick is not None and (pick.city, pick.category) == (wanted["city"], wanted["category"])
    truth.delivered = [float(fits)]
    distance = None if pick is None else view.amount(pick.poi_id, "distance") or view.amount(None, "distance")
    is_near = _is_within(distance, wanted["radius_m"] / 1000) if pick else False
    truth.constraints = {"category": fits, "radius": is_near, **view.tag_checks(pick, wanted)}
    view.expect(pick and pick.poi_id, price=_PLACE_TOOLS, hours=_PLACE_TOOLS, distance=("around_search",))


def _examine_days(view: _View) -> None:
    wanted, truth = view.wanted, view.truth
    leg = (wanted["from_city"], wanted["city"]) if wanted.get("from_city") else None
    truth.needs = [float(any(view.asks_for(call, category) for call in view.calls)) for category in wanted["categories"]]
    truth.needs.append(float(any(call.name == "get_navigation" for call in view.calls)))
    if leg:
        truth.needs.append(float(any(view.asks_for_journey(call, *leg) for call in view.calls)))
        truth.delivered.append(float(any(line.numbers for line in view.answer)))

    def useful(call: ToolCall) -> float:
        if call.name in _JOURNEY_TOOLS.values():
            return float(leg is not None and view.asks_for_journey(call, *leg))
        return float(call.name == "get_navigation" or view.asks_for(call, *wanted["categories"]))

    view.rate_calls(useful)
    stops: dict[str, str] = {}
    for line in view.answer:
        for poi in line.pois[:1]:
            if poi.city == wanted["city"] and poi.category in wanted["categories"]:
                stops.setdefault(poi.category, poi.poi_id)
    truth.delivered += [float(category in stops) for category in wanted["categories"]]
    for category in wanted["categories"]:
        view.expect(stops.get(category), price=_PLACE_TOOLS, hours=_PLACE_TOOLS)
    view.expect("the way", distance=("get_navigation",), duration=("get_navigation",))
    truth.constraints = _day_constraints(view, stops)


def _day_constraints(view: _View, stops: dict[str, str]) -> dict[str, bool | None]:
    """Of the stops by category. A budget holds if the sum of their stated prices, and every stated total, is within it."""
    wanted = view.wanted
    constraints: dict[str, bool | None] = {"complete": len(stops) == len(wanted["categories"])}
    for category in wanted["categories"]:
        stop = stops.get(category)
        constraints[f"{wanted['preference']} {category}"] = view.says_tag(stop, wanted["preference"]) if stop else False
        constraints[f"{category} open"] = _is_open(view.stated(stop, "hours"), view.clock(stop)) if stop else False
    if (budget := wanted.get("budget_yuan")) is not None:
        prices = [price for stop in stops.values() if (price := view.amount(stop, "price")) is not None]
        sums = [*view.totals, *([sum(prices)] if prices else [])]
        constraints["budget"] = _is_within(max(sums, default=None), budget)
    if evening := wanted.get("evening"):
        constraints["evening"] = _is_in_evening(view, stops[evening]) if evening in stops else False
    return constraints


def _is_in_evening(view: _View, stop: str) -> bool | None:
    """By the time of the visit, else by a word; None without either."""
    if clock := view.clock(stop):
        return clock >= EVENING
    return any(_EVENING_WORD.search(line.text) for line in view.lines_about[stop]) or None


def _examine_compare(view: _View) -> None:
    wanted, truth = view.wanted, view.truth
    leg = (wanted["from_city"], wanted["to_city"])
    asked = [call.name for call in view.calls if view.asks_for_journey(call, *leg)]
    truth.needs = [float(tool in asked) for tool in _JOURNEY_TOOLS.values()]
    view.rate_calls(lambda call: float(view.asks_for_journey(call, *leg)))
    named = [number for line in view.answer for number in line.numbers]
    first = {kind: next((number for number in named if _kind_of(number) == kind), None) for kind in _JOURNEY_TOOLS}
    truth.delivered = [float(number is not None) for number in first.values()]
    for kind, number in first.items():
        view.expect(number, price=(_JOURNEY_TOOLS[kind],), hours=(_JOURNEY_TOOLS[kind],))
    choice = named[-1] if named else None
    is_best = _is_best(view, choice, {number for number in named if number != choice}) if choice else False
    truth.constraints = {"date and cities": choice is not None, wanted["priority"]: is_best}
    if (limit := wanted.get("max_price_yuan")) is not None:
        truth.constraints["max_price"] = _is_within(view.amount(choice, "price"), limit) if choice else False
    if (latest := wanted.get("arrive_by")) is not None:
        departs, arrives = (view.stated(choice, "hours") or ["-"])[0].split("-")
        truth.constraints["arrive_by"] = (departs <= arrives <= latest if arrives else None) if choice else False


def _is_best(view: _View, choice: str, rivals: set[str]) -> bool | None:
    """Whether no rival that the answer names is cheaper, or faster, by what it states of both."""

    def cost(number: str) -> float | None:
        if view.wanted["priority"] == "cheap":
            return view.amount(number, "price")
        for hours in view.stated(number, "hours")[:1]:
            departs, arrives = map(minutes_of, hours.split("-"))
            return (arrives - departs) % 1440
        return view.amount(number, "duration")

    own, others = cost(choice), [other for rival in rivals if (other := cost(rival)) is not None]
    return None if own is None or not others else own <= min(others)


def _examine_direction(view: _View) -> None:
    wanted, truth = view.wanted, view.truth
    stops = [view.world.find_poi(name) for name in wanted["stops"]]
    ways = [call.arguments.get("mode", "driving") for call in view.calls if call.name == "get_navigation" and isinstance(call.arguments, dict)]
    truth.needs = [float(wanted["mode"] in ways), float(len(set(map(str, ways))) >= 2)]
    names = [name for stop in stops for name in (stop.name_en, stop.name_zh)]

    def useful(call: ToolCall) -> float:
        is_useful = call.name == "get_navigation" or (call.name == "search_poi" and _names(call, names))
        return 1.0 if is_useful else 0.3 * (call.name in (*_PLACE_TOOLS, *_JOURNEY_TOOLS.values()))

    view.rate_calls(useful)
    mentioned = [poi.poi_id for line in view.answer for poi in line.pois]
    ids = [stop.poi_id for stop in stops]
    truth.delivered = [float(stop in mentioned) for stop in ids]
    chosen = chosen_mode([line.text for line in view.answer])
    truth.constraints = {"order": mentioned[: len(ids)] == ids, "mode": chosen and chosen == wanted["mode"]}
    if (limit := wanted.get("max_minutes")) is not None:
        truth.constraints["max_minutes"] = _is_within(_minutes_by(view, chosen), limit)
    view.expect("the way", distance=("get_navigation",), duration=("get_navigation",), price=("get_navigation",))


def _minutes_by(view: _View, mode: str | None) -> float | None:
    """The first duration that the answer states in a line with this mode; where none has one, in a line without any mode."""
    stated: dict[str | None, float] = {}
    for line in view.answer:
        for minutes in (float(value) for kind, value in line.facts if kind == "duration"):
            stated.setdefault(chosen_mode([line.text]), minutes)
    return stated.get(mode, stated.get(None))


_EXAMINERS: dict[str, Callable[[_View], None]] = {
    "Direction": _examine_direction,
    "1-Day": _examine_days,
    "Compare": _examine_compare,
    "Search": _examine_search,
    "M-Day": _examine_days,
}


def _is_of_way(line: Line) -> bool:
    """Whether a line without a name is of a way, a ride or another visit, and not of the place named before."""
    is_measured = any(kind in ("distance", "duration") for kind, _ in line.facts)
    return bool(is_measured or line.clock or starts_with_visit(line.text) or _TRANSPORT.search(line.text))


def _is_within(amount: float | None, limit: float) -> bool | None:
    return None if amount is None else amount <= limit


def _kind_of(number: str) -> str:
    """CA1234 is a flight, G10 a train."""
    return "flight" if number[:2].isalpha() else "train"


def _is_open(stated: list[str], clock: str | None) -> bool | None:
    """Whether one of the stated opening hours includes a clock time, also if they end after midnight; None without hours or clock."""
    ranges = [hours.split("-") for hours in stated]
    is_open = [opens <= clock < closes if opens < closes else clock >= opens or clock < closes for opens, closes in ranges if clock]
    return any(is_open) if is_open else None


def _names(call: ToolCall, names: list[str]) -> bool:
    text = json.dumps(call.arguments, ensure_ascii=False).lower()
    return any(name.lower() in text for name in names)
