"""What is true of a travel trajectory: which needs its calls covered, which facts its answer bears out,
which constraints it meets.

The embedded judge scores from this and adds noise; evaluation reports it as it is. It reads the same text an LLM judge
would (tool calls, results and answer, Chinese or English, full or compact), finds entities by name and facts by their
form (¥20, 09:00-17:00, 5.2km, 18min), and compares them with the tool results of the same trajectory and with the
world.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from arenarl.domains.domain import Truth, mean_of
from arenarl.domains.stated_facts import (
    CLOCK,
    DURATION,
    HOURS,
    PRICE,
    SERVICE_NUMBER,
    TOTAL,
    duration_of,
    leaves_of,
    price_of,
    starts_with_visit,
    with_clocks,
)
from arenarl.domains.travel.constraints import FORMS
from arenarl.domains.travel.names import CATEGORIES, EVENING, MODES, PREFIXES, TAGS
from arenarl.domains.travel.world import Journey, Poi, World, distance_km
from arenarl.trajectory import Query, Turn, last_answer, read_turns

PATH_DIMENSIONS = ("path_breadth", "path_relevance", "path_detail")
ANSWER_DIMENSIONS = ("answer_relevance", "answer_feasibility", "answer_details", "answer_clarity")

Fact = tuple[str, str]  # (kind, value), e.g. ("price", "20"), ("hours", "09:00-17:00")

_NAME = re.compile(
    "(?:{}) (?:{})|(?:{})(?:{})".format(
        "|".join(en for en, _ in PREFIXES),
        "|".join(key.capitalize() for key in CATEGORIES),
        "|".join(zh for _, zh in PREFIXES),
        "|".join(CATEGORIES.values()),
    ),
    re.IGNORECASE,
)
_DISTANCE = re.compile(r"(?<![\d.])(\d{1,7}(?:\.\d{1,6})?)\s*(?:km|公里|千米)", re.IGNORECASE)
# as results write them
_TOOLS_MODES = {"driving": ("driving", "驾车"), "walking": ("walking", "步行"), "transit": ("transit", "公交")}


@dataclass
class TravelTruth(Truth):
    """Noise-free findings on one trajectory. Every list holds shares in [0, 1];
    means of them become the dimension scores."""

    needs: list[float] = field(default_factory=list)  # information the query calls for: did a tool result hold it?
    usefulness: list[float] = field(default_factory=list)  # for each call: how well what came back fits the query
    # facts the answer should state: did the policy get to see them?
    evidence: list[float] = field(default_factory=list)
    delivered: list[float] = field(default_factory=list)  # items the query asks for: are they in the answer?
    constraints: dict[str, bool | None] = field(default_factory=dict)  # None: a reduced view says nothing about it
    facts_expected: int = 0
    facts_stated: int = 0
    facts_grounded: int = 0
    clarity: float = 0.0

    @property
    def groundedness(self) -> float:
        """Share of the stated facts that tool results of this trajectory bear out; 0 if it states none."""
        return self.facts_grounded / self.facts_stated if self.facts_stated else 0.0

    @property
    def invented_facts(self) -> float:
        """Share of the stated facts that no tool result of this trajectory bears out; 0 if it states none."""
        return 1 - self.groundedness if self.facts_stated else 0.0

    @property
    def constraints_met(self) -> float:
        return mean_of([is_met for is_met in self.constraints.values() if is_met is not None])

    def dimensions(self) -> dict[str, float]:
        """Scores from 0 to 10 for every dimension of the travel rubric."""
        # so that an invented fact costs something
        detailed = self.facts_grounded / max(1, self.facts_expected, self.facts_stated)
        shares = (
            mean_of(self.needs),
            mean_of(self.usefulness),
            mean_of(self.evidence),
            mean_of(self.delivered),
            self.constraints_met,
            detailed,
            self.clarity,
        )
        return {name: 10.0 * share for name, share in zip(PATH_DIMENSIONS + ANSWER_DIMENSIONS, shares, strict=True)}

    def figures(self) -> dict[str, float]:
        shares = {
            "groundedness": self.groundedness,
            "constraints_met": self.constraints_met,
            "invented_facts": self.invented_facts,
        }
        return {name: 100.0 * share for name, share in shares.items()}

    def findings(self) -> dict[str, Any]:
        return {"groundedness": round(self.groundedness, 3), "constraints": self.constraints}

    def passes(self) -> dict[str, bool]:
        return {"constraints": self.constraints_met == 1}

    def checklist(self) -> dict[str, bool]:
        return {name: bool(is_met) for name, is_met in self.constraints.items()}


@dataclass
class Line:
    """What one line of an answer or one record of a tool result mentions."""

    text: str
    pois: list[Poi]
    numbers: list[str]
    facts: list[Fact]
    clock: str | None

    @property
    def entity(self) -> str | None:
        return self.pois[0].poi_id if self.pois else self.numbers[0] if self.numbers else None


def read_lines(world: World, text: str) -> list[Line]:
    """The lines of an answer or compact result, or the records of a JSON result."""
    return [_read_line(world, line) for line in _records(text) if line.strip()]


def read_answer(world: World, query: Query, turns: list[Turn]) -> list[Line]:
    """The answer's lines, without the place that the query starts from:
    "1.2km from Lotus Park" is about the place recommended."""
    near = world.find_poi(query.constraints.get("near") or "")
    lines = read_lines(world, last_answer(turns))
    for line in lines:
        line.pois = [poi for poi in line.pois if poi != near]
    return lines


def read_stops(answer: list[Line], wanted: dict) -> dict[str, tuple[Poi, str | None]]:
    """By category, the first place in the query's city that the answer names, and the clock time of its line."""
    stops: dict[str, tuple[Poi, str | None]] = {}
    for line in answer:
        for poi in line.pois[:1]:
            if poi.city == wanted["city"] and poi.category in wanted["categories"]:
                stops.setdefault(poi.category, (poi, line.clock))
    return stops


def examine(world: World, query: Query, messages: list[dict]) -> TravelTruth:
    """Examine one trajectory that ended with an answer, of a query that `has_truth`."""
    return _EXAMINERS[query.subtask](_Reading(world, query, messages)).finish()


class _Reading:
    """One trajectory, read once: its calls with their records, what is known of each entity, and its answer's lines."""

    def __init__(self, world: World, query: Query, messages: list[dict]):
        self.world, self.query, self.wanted = world, query, query.constraints
        turns = read_turns(messages)
        self.calls = list(self._read_calls(turns))
        self.answer = read_answer(world, query, turns)
        self.known: dict[str | None, set[Fact]] = defaultdict(set)
        self.routes: set[Fact] = set()
        for name, _, lines, _ in self.calls:
            for line in lines:
                self.known[line.entity].update(line.facts)
                if name == "get_navigation":
                    self.routes.update(line.facts)
        self.truth = TravelTruth()

    def _read_calls(self, turns: list[Turn]) -> Iterator[tuple[str, dict, list[Line], bool]]:
        """(name, arguments, records, is_new) of every call; malformed ones have no arguments,
        failed ones no records."""
        seen = set()
        for turn in turns:
            for call, observation in zip(turn.tool_calls, turn.observations, strict=False):
                arguments = call.arguments if isinstance(call.arguments, dict) else {}
                key = (call.name, json.dumps(arguments, sort_keys=True))
                has_failed = observation.startswith("Error")
                yield call.name, arguments, [] if has_failed else read_lines(self.world, observation), key not in seen
                seen.add(key)

    def expect(self, entity: str | None, *kinds: str) -> None:
        """The answer should state facts of these kinds about this entity; note whether the policy got to see each."""
        known = self.known[entity] if entity else self.routes
        self.truth.facts_expected += len(kinds)
        self.truth.evidence += [float(any(kind == fact[0] for fact in known)) for kind in kinds]

    def finish(self) -> TravelTruth:
        """What holds for every subtask: facts against evidence, and whether the answer is short and free of repeats."""
        truth, is_grounded = self.truth, {}
        for line in self.answer:
            for fact in line.facts:
                if fact[0] == "price" and line.entity is None and TOTAL.search(line.text):
                    continue  # a sum, which no tool returns
                is_of_route = fact in self.routes and (fact[0] in ("distance", "duration") or line.entity is None)
                about = None if is_of_route else line.entity
                is_grounded[about, fact] = is_of_route or fact in self.known[about]  # once, however often it is said
        truth.facts_stated, truth.facts_grounded = len(is_grounded), sum(is_grounded.values())
        truth.clarity = clarity_of(self.answer)
        return truth


def clarity_of(answer: list[Line]) -> float:
    """Return the share of distinct lines; up to half of it is lost for lines without a place, journey or fact."""
    if not answer:
        return 0.0
    unique = len({line.text for line in answer}) / len(answer)
    return unique * (0.5 + 0.5 * mean_of([float(bool(line.facts or line.entity)) for line in answer]))


def _examine_search(reading: _Reading) -> _Reading:
    wanted, truth = reading.wanted, reading.truth
    near = reading.world.find_poi(wanted["near"])
    fits = [
        _poi_check(wanted),
        lambda poi: distance_km((poi.lon, poi.lat), (near.lon, near.lat)) * 1000 <= wanted["radius_m"],
    ]
    candidates = {
        poi.poi_id
        for _, _, lines, _ in reading.calls
        for line in lines
        for poi in line.pois[:1]
        if poi.category == wanted["category"]
    }
    truth.needs = [
        float(bool(candidates)),
        float(any(name == "around_search" and _has_place(lines) for name, _, lines, _ in reading.calls)),
    ]
    for name, _, lines, is_new in reading.calls:
        if name == "search_poi":
            truth.usefulness.append(is_new * float(_mentions(lines, [near])))
            continue
        scores = [
            mean_of([fit(line.pois[0]) for fit in fits] + list(_tag_checks(line.pois[0], wanted).values()))
            for line in lines
            if line.pois
        ]
        truth.usefulness.append(is_new * max(scores, default=0.0))
    answered = [line.pois[0] for line in reading.answer if line.pois]
    pick = answered[0] if answered else None
    truth.delivered = [float(pick is not None and fits[0](pick))]
    truth.constraints = {"category": False, "radius": False, **dict.fromkeys(_tag_checks(None, wanted), False)}
    if pick is not None:
        truth.constraints = {"category": fits[0](pick), "radius": fits[1](pick), **_tag_checks(pick, wanted)}
    reading.expect(pick.poi_id if pick else "nothing", "price", "hours", "distance")
    return reading


def _examine_days(reading: _Reading) -> _Reading:
    """1-Day and M-Day: a stop for every category, tags and budget, open when visited,
    an evening stop in the evening."""
    wanted, truth = reading.wanted, reading.truth
    found = [
        poi for _, _, lines, _ in reading.calls for line in lines for poi in line.pois[:1] if poi.city == wanted["city"]
    ]
    truth.needs = [float(any(poi.category == category for poi in found)) for category in wanted["categories"]]
    truth.needs.append(float(bool(reading.routes)))
    for name, _, lines, is_new in reading.calls:
        if name in ("get_navigation", "search_flights", "search_train_tickets"):
            truth.usefulness.append(is_new * float(any(line.facts for line in lines)))
            continue
        pois = [
            line.pois[0]
            for line in lines
            if line.pois and line.pois[0].city == wanted["city"] and line.pois[0].category in wanted["categories"]
        ]
        truth.usefulness.append(
            is_new
            * max(
                (0.25 + 0.75 * mean_of(list(_tag_checks(poi, _at(wanted, poi)).values())) for poi in pois), default=0.0
            )
        )
    if wanted.get("from_city"):
        journeys = reading.world.flights(wanted["date"], wanted["from_city"], wanted["city"])
        journeys = {
            j.number for j in journeys + reading.world.trains(wanted["date"], wanted["from_city"], wanted["city"])
        }
        truth.needs.append(
            float(
                any(number in journeys for _, _, lines, _ in reading.calls for line in lines for number in line.numbers)
            )
        )
        truth.delivered.append(float(any(number in journeys for line in reading.answer for number in line.numbers)))
    stops = read_stops(reading.answer, wanted)
    truth.delivered += [float(category in stops) for category in wanted["categories"]]
    for category in wanted["categories"]:
        reading.expect(stops[category][0].poi_id if category in stops else "nothing", "price", "hours")
    reading.expect(None, "distance", "duration")
    truth.constraints = _day_constraints(wanted, stops)
    return reading


def _day_constraints(wanted: dict, stops: dict[str, tuple[Poi, str | None]]) -> dict[str, bool]:
    is_complete = len(stops) == len(wanted["categories"])
    constraints = {"complete": is_complete}
    for category in wanted["categories"]:
        poi, clock = stops.get(category, (None, None))
        constraints[f"{wanted['preference']} {category}"] = poi is not None and wanted["preference"] in poi.tags
        constraints[f"{category} open"] = (
            poi is not None and clock is not None and poi.opens <= padded(clock) < poi.closes
        )
    if wanted.get("budget_yuan") is not None:
        constraints["budget"] = (
            is_complete and sum(poi.price_yuan for poi, _ in stops.values()) <= wanted["budget_yuan"]
        )
    if wanted.get("evening"):
        poi, clock = stops.get(wanted["evening"], (None, None))
        constraints["evening"] = clock is not None and padded(clock) >= EVENING
    return constraints


def _examine_compare(reading: _Reading) -> _Reading:
    wanted, truth = reading.wanted, reading.truth
    leg = (wanted["date"], wanted["from_city"], wanted["to_city"])
    journeys = {j.number: j for j in reading.world.flights(*leg) + reading.world.trains(*leg)}
    seen = [
        journeys[number]
        for _, _, lines, _ in reading.calls
        for line in lines
        for number in line.numbers
        if number in journeys
    ]
    truth.needs = [float(any(journey.kind == kind for journey in seen)) for kind in ("flight", "train")]
    for _, _, lines, is_new in reading.calls:
        truth.usefulness.append(is_new * float(any(number in journeys for line in lines for number in line.numbers)))
    named = [journeys[number] for line in reading.answer for number in line.numbers if number in journeys]
    truth.delivered = [float(any(journey.kind == kind for journey in named)) for kind in ("flight", "train")]
    for kind in ("flight", "train"):
        journey = next((journey for journey in named if journey.kind == kind), None)
        reading.expect(journey.number if journey else "nothing", "price", "hours")
    truth.constraints = _journey_constraints(wanted, named[-1] if named else None, seen)
    return reading


def _journey_constraints(wanted: dict, choice: Journey | None, seen: list[Journey]) -> dict[str, bool]:
    """The last journey an answer names is its recommendation.
    The priority holds against all that the policy saw of both kinds."""
    key = (lambda journey: journey.price_yuan) if wanted["priority"] == "cheap" else (lambda journey: journey.minutes)
    saw_both = {journey.kind for journey in seen} == {"flight", "train"}
    constraints = {
        "date and cities": choice is not None,
        wanted["priority"]: choice is not None and saw_both and key(choice) == min(map(key, seen)),
    }
    if wanted.get("max_price_yuan") is not None:
        constraints["max_price"] = choice is not None and choice.price_yuan <= wanted["max_price_yuan"]
    if wanted.get("arrive_by") is not None:
        constraints["arrive_by"] = choice is not None and choice.arrives <= wanted["arrive_by"]
    return constraints


def _examine_direction(reading: _Reading) -> _Reading:
    wanted, truth, world = reading.wanted, reading.truth, reading.world
    stops = [world.find_poi(name) for name in wanted["stops"]]
    points, ids = [(poi.lon, poi.lat) for poi in stops], [poi.poi_id for poi in stops]
    routes = {mode: world.route(points, mode) for mode in MODES}
    facts = {
        mode: {("distance", f"{route.distance_km:.1f}"), ("duration", str(route.minutes))}
        for mode, route in routes.items()
    }
    covered = {
        mode: any(facts[mode] <= set(line.facts) for _, _, lines, _ in reading.calls for line in lines)
        for mode in MODES
    }
    truth.needs = [float(covered[wanted["mode"]]), float(sum(covered.values()) >= 2)]
    for name, _, lines, is_new in reading.calls:
        is_full_route = name == "get_navigation" and any(
            facts[mode] <= set(line.facts) for mode in MODES for line in lines
        )
        is_locating = name == "search_poi" and _mentions(lines, stops)
        truth.usefulness.append(is_new * (1.0 if is_full_route or is_locating else 0.3 if lines else 0.0))
    names = [poi.poi_id for line in reading.answer for poi in line.pois]
    truth.delivered = [float(stop in names) for stop in ids]
    chosen = chosen_mode([line.text for line in reading.answer])
    truth.constraints = {"order": names[: len(ids)] == ids, "mode": chosen == wanted["mode"]}
    if wanted.get("max_minutes") is not None:
        truth.constraints["max_minutes"] = (
            chosen is not None and covered[chosen] and routes[chosen].minutes <= wanted["max_minutes"]
        )
    reading.expect(None, "distance", "duration", "price")
    return reading


_EXAMINERS: dict[str, Callable[[_Reading], _Reading]] = {
    "Direction": _examine_direction,
    "1-Day": _examine_days,
    "Compare": _examine_compare,
    "Search": _examine_search,
    "M-Day": _examine_days,
}


_NEEDED = {
    "Direction": {"stops", "mode"},
    "1-Day": {"city", "categories", "preference"},
    "Compare": {"date", "from_city", "to_city", "priority"},
    "Search": {"city", "near", "category", "radius_m", "preference"},
    "M-Day": {"city", "categories", "preference"},
}


def has_truth(world: World, query: Query) -> bool:
    """Whether the query's constraints hold what its subtask is examined by, in their form, of places, cities,
    kinds and tags of this world."""
    if query.subtask not in FORMS:
        return False
    try:
        FORMS[query.subtask].model_validate(query.constraints, strict=True)
    except ValidationError:
        return False
    wanted = {key: value for key, value in query.constraints.items() if value not in (None, [])}
    if not _NEEDED[query.subtask] | ({"date"} if "from_city" in wanted else set()) <= wanted.keys():
        return False
    cities = [wanted[key] for key in ("from_city", "city", "to_city") if key in wanted]
    stops, kinds = (
        wanted.get("stops", []),
        [*wanted.get("categories", []), *([wanted["category"]] if "category" in wanted else [])],
    )
    places = [world.find_poi(name) for name in [*stops, *([wanted["near"]] if "near" in wanted else [])]]
    return (
        set(cities) <= world.cities.keys()
        and len({*cities}) == len(cities)
        and len(stops) != 1
        and all(places)
        and (not places or len({poi.city for poi in places} | {wanted.get("city", places[0].city)}) == 1)
        and set(kinds) <= CATEGORIES.keys()
        and len({*kinds}) == len(kinds)
        and wanted.get("evening") in (None, *kinds)
        and wanted.get("preference") in (None, *TAGS)
    )


def _has_place(lines: list[Line]) -> bool:
    return any(line.pois for line in lines)


def _mentions(lines: list[Line], pois: list[Poi]) -> bool:
    return any(poi in pois for line in lines for poi in line.pois)


def _poi_check(wanted: dict) -> Callable[[Poi], bool]:
    return lambda poi: poi.city == wanted["city"] and poi.category == wanted["category"]


def chosen_mode(lines: list[str]) -> str | None:
    """How an answer goes: by the first line with a word of the tools for it, of two the first in MODES; else by the
    first word that means one."""
    if said := [mode for line in lines for mode, words in _TOOLS_MODES.items() if any(word in line for word in words)]:
        return said[0]
    text = "\n".join(lines)
    places = {
        mode: match.start()
        for mode, words in MODES.items()
        if (match := re.search("|".join(words), text, re.IGNORECASE))
    }
    return min(places, key=places.__getitem__, default=None)


def _tag_checks(poi: Poi | None, wanted: dict) -> dict[str, bool]:
    """The constraints on a single place: preference, price, still open at a time."""
    checks = {wanted["preference"]: poi is not None and wanted["preference"] in poi.tags}
    if wanted.get("max_price_yuan") is not None:
        checks["max_price"] = poi is not None and poi.price_yuan <= wanted["max_price_yuan"]
    if wanted.get("open_at") is not None:
        checks["open_at"] = poi is not None and poi.opens <= wanted["open_at"] < poi.closes
    if wanted.get("is_cheap"):
        checks["cheap"] = poi is not None and "cheap" in poi.tags
    return checks


def _at(wanted: dict, poi: Poi) -> dict:
    """A day's constraints as they bear on one of its places."""
    is_evening = wanted.get("evening") == poi.category
    return {
        "preference": wanted["preference"],
        "is_cheap": wanted.get("budget_yuan") is not None,
        "open_at": "19:00" if is_evening else None,
    }


def _records(text: str) -> list[str]:
    """JSON results become one text a record (the dictionaries inside the top-level lists);
    other text is split into lines."""
    lines = re.split(r"[\n;；。]", text)
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            return lines
        records = [record for value in data.values() for record in (value if isinstance(value, list) else [value])]
        return [" ".join(leaves_of(record)) for record in records]
    except (ValueError, RecursionError):  # no JSON, a number of thousands of digits, thousands of brackets
        return lines


def _read_line(world: World, text: str) -> Line:
    text = with_clocks(text)
    pois = [poi for match in _NAME.finditer(text) if (poi := world.find_poi(match.group()))]
    ranges = [(padded(start), padded(end)) for start, end in HOURS.findall(text)]
    slot = ranges.pop(0)[0] if pois and starts_with_visit(text) else None
    rest = HOURS.sub(" ", text)
    numbers, clocks = SERVICE_NUMBER.findall(text), [padded(clock) for clock in CLOCK.findall(rest)]
    if numbers and len(clocks) >= 2:  # a timetable's departure and arrival in fields of their own
        ranges.append((clocks[0], clocks[1]))
    facts = [("hours", f"{start}-{end}") for start, end in ranges] + list(_read_amounts(rest))
    return Line(text, pois, numbers, facts, slot or (clocks[0] if clocks else None))


def _read_amounts(text: str) -> Iterator[Fact]:
    """Prices, distances and durations, written as tool results write them: ¥1,290 is 1290, 1 h 20 min is 80."""
    for match in PRICE.finditer(text):
        yield "price", f"{price_of(match):.10g}"
    for match in _DISTANCE.finditer(text):
        yield "distance", f"{float(match[1]):.1f}"
    for match in DURATION.finditer(text):
        yield "duration", str(duration_of(match))


def padded(clock: str) -> str:
    return clock.zfill(5)
