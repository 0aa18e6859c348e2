"""The truth about a travel view without tool results: the answer alone, or thoughts, calls and answer.

Sections 3.2 and 3.3 of ArenaRL define these views. The checks know the city and kind of every named place, the form of
flight and train numbers, and the facts that each tool returns. The prices, opening hours, distances, durations, tags
and journeys in the answer count as true, and each call as successful. A constraint without a statement in the answer
is None; without the place or journey it is False.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from arenarl.domains import stated_facts as forms
from arenarl.domains.travel.names import CATEGORIES, EVENING, EVENING_WORDS, MODES, OF_SEVERAL, TAGS
from arenarl.domains.travel.truth import Line, TravelTruth, chosen_mode, clarity_of, read_answer, read_stops
from arenarl.domains.travel.world import Poi, World
from arenarl.trajectory import Query, ToolCall, calls_of, read_turns

_PLACE_TOOLS = ("search_poi", "around_search", "universal_search")
_JOURNEY_TOOLS = {"flight": "search_flights", "train": "search_train_tickets"}
_RIDES = r"train|flight|plane|\brail|火车|高铁|动车|列车|航班|飞机"
_TRANSPORT = re.compile("|".join([*(words.pattern for words in MODES.values()), _RIDES]), re.IGNORECASE)
_SUM = re.compile("total|合计|总计|总共|共计", re.IGNORECASE)
_NOT = "".join(rf"(?<!{word})" for word in (r"\bnot ", r"\bnot a ", r"\bno ", r"\bnon-", "n't ", "n’t "))
_TAG_WORDS = {tag: re.compile(rf"{_NOT}\b{tag}\b(?! of\b)|(?<!不){word}", re.IGNORECASE) for tag, word in TAGS.items()}


def examine_view(world: World, query: Query, messages: list[dict[str, Any]]) -> TravelTruth:
    """Examine a view without tool results; its query must have a truth."""
    view = _View(world, query, messages)
    _EXAMINERS[query.subtask](view)
    truth = view.truth
    # `facts` has one entry per place and kind, so a second price does not change the number
    truth.facts_stated = truth.facts_grounded = len(view.facts)
    truth.clarity = clarity_of(view.answer)
    return truth


class _View:
    """The parsed calls and answer of a view.

    `facts` has the stated values by (place or journey, kind), in the answer's order. A line without a name belongs to
    the name before it; a line about a route, a ride or another visit belongs to None. `totals` has the stated totals.
    """

    def __init__(self, world: World, query: Query, messages: list[dict[str, Any]]):
        turns = read_turns(messages)
        self.world, self.wanted, self.truth = world, query.constraints, TravelTruth()
        self.calls = list(calls_of(turns))  # (call, is_new)
        self.answer = read_answer(world, query, turns)
        self.facts: dict[tuple[str | None, str], list[str]] = defaultdict(list)
        self.totals: list[float] = []
        self.lines_about: dict[str | None, list[Line]] = defaultdict(list)
        entity = None
        for line in self.answer:
            entity = line.entity or entity
            about = entity if line.entity or not _is_about_way(line) else None
            self.lines_about[about].append(line)
            for kind, value in line.facts:
                if line.entity or kind != "price" or not forms.TOTAL.search(line.text):
                    self.facts[about, kind].append(value)
            if not line.entity and (total := _total_in(line.text)) is not None:
                self.totals.append(total)

    def stated(self, about: str | None, kind: str) -> list[str]:
        return self.facts.get((about, kind), [])

    def amount(self, about: str | None, kind: str) -> float | None:
        """Return the first stated amount; None without one."""
        values = self.stated(about, kind)
        return float(values[0]) if values else None

    def clock(self, about: str | None) -> str | None:
        """Return the clock time of the visit; None without one."""
        return next((line.clock for line in self.lines_about.get(about, []) if line.clock), None)

    def metres(self, about: str | None) -> float | None:
        """Return the first stated distance; None without one."""
        facts = (fact for line in self.lines_about.get(about, []) for fact in forms.read_facts(line.text))
        return next((fact.value for fact in facts if fact.kind == "distance"), None)

    def expect(self, entity: str | None, **tools: tuple[str, ...]) -> None:
        """Record which kinds of facts the answer should state, and whether a call used a tool that returns each."""
        called = {call.name for call, _ in self.calls}
        self.truth.facts_expected += len(tools)
        self.truth.evidence += [float(entity is not None and not called.isdisjoint(names)) for names in tools.values()]

    def need(self, has: Callable[[ToolCall], bool]) -> None:
        """Record a need of the query, and whether a call covers it."""
        self.truth.needs.append(float(any(has(call) for call, _ in self.calls)))

    def rate_calls(self, useful: Callable[[ToolCall], float]) -> None:
        """Record how useful each call is, by its name and arguments; a repeated call counts 0."""
        self.truth.usefulness = [is_new * useful(call) for call, is_new in self.calls]

    def asks_for(self, call: ToolCall, *categories: str) -> bool:
        """Return whether a call searches for places of one of these kinds."""
        words = [word for category in categories for word in (category, CATEGORIES[category])]
        return call.name in _PLACE_TOOLS and _names(call, words)

    def asks_for_journey(self, call: ToolCall, start: str, end: str) -> bool:
        """Return whether a call searches flights or trains between these cities on the query's day."""
        if call.name not in _JOURNEY_TOOLS.values() or not isinstance(call.arguments, dict):
            return False
        cities = [self.world.find_city(str(call.arguments.get(key))) for key in ("from_city", "to_city")]
        is_of_day = str(call.arguments.get("date")).strip() in (self.wanted["date"], self.wanted["date"][5:])
        return is_of_day and [city and city.key for city in cities] == [start, end]

    def place_checks(self, poi: Poi | None) -> dict[str, bool | None]:
        """Check the constraints on a single place, with the names of `truth`."""
        wanted, about = self.wanted, poi.poi_id if poi else None
        checks = {wanted["preference"]: self.says_tag(about, wanted["preference"])}
        if (limit := wanted.get("max_price_yuan")) is not None:
            checks["max_price"] = _is_within(self.amount(about, "price"), limit)
        if (clock := wanted.get("open_at")) is not None:
            checks["open_at"] = self.is_open(about, clock)
        return checks if poi else dict.fromkeys(checks, False)

    def is_open(self, about: str | None, clock: str | None) -> bool | None:
        """Return whether any stated opening hours include the clock time; None without hours or clock time."""
        stated = self.stated(about, "hours")
        return any(forms.is_open(*hours.split("-"), clock) for hours in stated) if stated and clock else None

    def says_tag(self, about: str | None, tag: str) -> bool | None:
        """Return True if a line about the place has the tag's word, else None."""
        return any(_TAG_WORDS[tag].search(line.text) for line in self.lines_about.get(about, [])) or None

    def is_in_evening(self, about: str) -> bool | None:
        """Return whether the visit is in the evening: by its clock time, else by a word; None if it has neither."""
        if clock := self.clock(about):
            return clock >= EVENING
        return any(EVENING_WORDS.search(line.text) for line in self.lines_about[about]) or None


def _examine_search(view: _View) -> None:
    wanted, truth = view.wanted, view.truth
    near = view.world.find_poi(wanted["near"])
    view.need(lambda call: view.asks_for(call, wanted["category"]))
    view.need(lambda call: call.name == "around_search")

    def useful(call: ToolCall) -> float:
        is_locating = call.name == "search_poi" and _names(call, [near.name_en, near.name_zh])
        return float(is_locating or (call.name != "search_poi" and view.asks_for(call, wanted["category"])))

    view.rate_calls(useful)
    pick = next((line.poi for line in view.answer if line.poi), None)
    fits = pick is not None and (pick.city, pick.category) == (wanted["city"], wanted["category"])
    truth.delivered = [float(fits)]
    metres = view.metres(pick.poi_id) if pick else None
    metres = view.metres(None) if metres is None else metres
    is_near = _is_within(metres, wanted["radius_m"]) if pick else False
    truth.constraints = {"category": fits, "radius": is_near, **view.place_checks(pick)}
    view.expect(pick and pick.poi_id, price=_PLACE_TOOLS, hours=_PLACE_TOOLS, distance=("around_search",))


def _examine_days(view: _View) -> None:
    wanted, truth = view.wanted, view.truth
    leg = (wanted["from_city"], wanted["city"]) if wanted.get("from_city") else None
    for category in wanted["categories"]:
        view.need(lambda call, kind=category: view.asks_for(call, kind))
    view.need(lambda call: call.name == "get_navigation")
    if leg:
        view.need(lambda call: view.asks_for_journey(call, *leg))
        truth.delivered.append(float(any(line.numbers for line in view.answer)))

    def useful(call: ToolCall) -> float:
        if call.name in _JOURNEY_TOOLS.values():
            return float(leg is not None and view.asks_for_journey(call, *leg))
        return float(call.name == "get_navigation" or view.asks_for(call, *wanted["categories"]))

    view.rate_calls(useful)
    stops = {category: poi.poi_id for category, (poi, _) in read_stops(view.answer, wanted).items()}
    truth.delivered += [float(category in stops) for category in wanted["categories"]]
    for category in wanted["categories"]:
        view.expect(stops.get(category), price=_PLACE_TOOLS, hours=_PLACE_TOOLS)
    view.expect("the way", distance=("get_navigation",), duration=("get_navigation",))
    truth.constraints = {"complete": len(stops) == len(wanted["categories"])}
    for category in wanted["categories"]:
        stop = stops.get(category)
        has_tag = view.says_tag(stop, wanted["preference"]) if stop else False
        is_open = view.is_open(stop, view.clock(stop)) if stop else False
        truth.constraints |= {f"{wanted['preference']} {category}": has_tag, f"{category} open": is_open}
    if (budget := wanted.get("budget_yuan")) is not None:  # for the sum of the prices and every stated total
        prices = [price for stop in stops.values() if (price := view.amount(stop, "price")) is not None]
        sums = [*view.totals, *([sum(prices)] if prices else [])]
        truth.constraints["budget"] = _is_within(max(sums, default=None), budget)
    if evening := wanted.get("evening"):
        truth.constraints["evening"] = view.is_in_evening(stops[evening]) if evening in stops else False


def _examine_compare(view: _View) -> None:
    wanted, truth = view.wanted, view.truth
    leg = (wanted["from_city"], wanted["to_city"])
    named = [number for line in view.answer for number in line.numbers]
    for kind, tool in _JOURNEY_TOOLS.items():
        view.need(lambda call, tool=tool: call.name == tool and view.asks_for_journey(call, *leg))
        # CA1234 is a flight, G10 a train
        number = next((number for number in named if number[:2].isalpha() == (kind == "flight")), None)
        truth.delivered.append(float(number is not None))
        view.expect(number, price=(tool,), hours=(tool,))
    view.rate_calls(lambda call: float(view.asks_for_journey(call, *leg)))
    choice = named[-1] if named else None
    is_best = _is_best(view, choice, {number for number in named if number != choice}) if choice else False
    truth.constraints = {"date and cities": choice is not None, wanted["priority"]: is_best}
    if (limit := wanted.get("max_price_yuan")) is not None:
        truth.constraints["max_price"] = _is_within(view.amount(choice, "price"), limit) if choice else False
    if (latest := wanted.get("arrive_by")) is not None:
        departs, arrives = (view.stated(choice, "hours") or ["-"])[0].split("-")
        truth.constraints["arrive_by"] = (departs <= arrives <= latest if arrives else None) if choice else False


def _is_best(view: _View, choice: str, rivals: set[str]) -> bool | None:
    """Return whether no rival is cheaper (or faster, by the query's priority); None without values to compare."""

    def cost(number: str) -> float | None:
        if view.wanted["priority"] == "cheap":
            return view.amount(number, "price")
        for hours in view.stated(number, "hours")[:1]:
            departs, arrives = map(forms.minutes_of, hours.split("-"))
            return (arrives - departs) % 1440
        return view.amount(number, "duration")

    own, others = cost(choice), [other for rival in rivals if (other := cost(rival)) is not None]
    return None if own is None or not others else own <= min(others)


def _examine_direction(view: _View) -> None:
    wanted, truth = view.wanted, view.truth
    stops = [view.world.find_poi(name) for name in wanted["stops"]]
    routes = [call.arguments for call, _ in view.calls if call.name == "get_navigation"]
    modes = [arguments.get("mode", "driving") for arguments in routes if isinstance(arguments, dict)]
    truth.needs = [float(wanted["mode"] in modes), float(len(set(map(str, modes))) >= 2)]
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
    """Return the first duration in a line with this mode, else in a line without any mode; None if there is none."""
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


def _is_about_way(line: Line) -> bool:
    """Return True for a line about a route, a ride or another visit instead of the place before it."""
    is_measured = any(kind in ("distance", "duration") for kind, _ in line.facts)
    return bool(is_measured or line.clock or forms.starts_with_visit(line.text) or _TRANSPORT.search(line.text))


def _total_in(text: str) -> float | None:
    """Return the price after a word such as "total"; None without one, for several persons, or with a ride.

    >>> [_total_in(text) for text in ("Total ¥90, budget ¥100", "Total for two people: ¥180", "Budget: ¥100")]
    [90.0, None, None]
    """
    word = _SUM.search(text)
    if not word or OF_SEVERAL.search(text) or _TRANSPORT.search(text):
        return None
    price = forms.PRICE.search(text, word.end())
    return forms.price_of(price) if price else None


def _is_within(amount: float | None, limit: float) -> bool | None:
    return None if amount is None else amount <= limit


def _names(call: ToolCall, names: list[str]) -> bool:
    text = json.dumps(call.arguments, ensure_ascii=False).lower()
    return any(name.lower() in text for name in names)
