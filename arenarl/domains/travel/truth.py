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

from arenarl.domains import stated_facts as forms
from arenarl.domains.domain import Truth, mean_of
from arenarl.domains.travel.constraints import FORMS
from arenarl.domains.travel.names import CATEGORIES, EVENING, MODES, PREFIXES, TAGS
from arenarl.domains.travel.world import Journey, Poi, World, distance_km
from arenarl.trajectory import Query, Turn, last_answer, read_turns

PATH_DIMENSIONS = ("path_breadth", "path_relevance", "path_detail")
ANSWER_DIMENSIONS = ("answer_relevance", "answer_feasibility", "answer_details", "answer_clarity")

Fact = tuple[str, str]  # (kind, value), e.g. ("price", "20"), ("hours", "09:00-17:00")

_ENGLISH, _CHINESE = ("|".join(names) for names in zip(*PREFIXES, strict=True))
_NAME = re.compile(
    rf"(?:{_ENGLISH}) (?:{'|'.join(CATEGORIES)})|(?:{_CHINESE})(?:{'|'.join(CATEGORIES.values())})", re.IGNORECASE
)
_DISTANCE = re.compile(r"(?<![\d.])(\d{1,7}(?:\.\d{1,6})?)\s*(?:km|公里|千米)", re.IGNORECASE)
# as results write them
_TOOLS_MODES = {"driving": ("driving", "驾车"), "walking": ("walking", "步行"), "transit": ("transit", "公交")}
_KINDS = ("flight", "train")


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
        lists = (self.needs, self.usefulness, self.evidence, self.delivered)
        # so that an invented fact costs something
        detailed = self.facts_grounded / max(1, self.facts_expected, self.facts_stated)
        shares = (*map(mean_of, lists), self.constraints_met, detailed, self.clarity)
        return {name: 10.0 * share for name, share in zip(PATH_DIMENSIONS + ANSWER_DIMENSIONS, shares, strict=True)}

    def figures(self) -> dict[str, float]:
        return {name: 100.0 * getattr(self, name) for name in ("groundedness", "constraints_met", "invented_facts")}

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
    clock: str | None  # such as 09:00

    @property
    def poi(self) -> Poi | None:
        """The first place."""
        return self.pois[0] if self.pois else None

    @property
    def entity(self) -> str | None:
        """The first place's id, else the first flight or train number."""
        return self.pois[0].poi_id if self.pois else self.numbers[0] if self.numbers else None


def read_lines(world: World, text: str) -> list[Line]:
    """The lines of an answer or compact result, or the records of a JSON result."""
    records = re.split(r"[\n;；。]", text)
    try:
        data = json.loads(text)
        if isinstance(data, dict):  # a text for each dictionary inside the top-level lists
            parts = [part for value in data.values() for part in (value if isinstance(value, list) else [value])]
            records = [" ".join(forms.leaves_of(part)) for part in parts]
    except (ValueError, RecursionError):
        pass  # no JSON, a number of thousands of digits, or thousands of brackets: the lines
    return [_read_line(world, record) for record in records if record.strip()]


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
        if line.poi and line.poi.city == wanted["city"] and line.poi.category in wanted["categories"]:
            stops.setdefault(line.poi.category, (line.poi, line.clock))
    return stops


def examine(world: World, query: Query, messages: list[dict]) -> TravelTruth:
    """Examine one trajectory that ended with an answer, of a query that `has_truth`."""
    reading = _Reading(world, query, messages)
    _EXAMINERS[query.subtask](reading)
    truth, is_grounded = reading.truth, {}
    for line in reading.answer:
        for fact in line.facts:
            if fact[0] == "price" and line.entity is None and forms.TOTAL.search(line.text):
                continue  # a sum, which no tool returns
            is_of_route = fact in reading.routes and (fact[0] in ("distance", "duration") or line.entity is None)
            about = None if is_of_route else line.entity
            is_grounded[about, fact] = is_of_route or fact in reading.known[about]  # counts once, however often stated
    truth.facts_stated, truth.facts_grounded = len(is_grounded), sum(is_grounded.values())
    truth.clarity = clarity_of(reading.answer)
    return truth


class _Reading:
    """One trajectory, read once.

    `calls`: (tool, records, is_new) of each call. `known`: the facts that tools returned, by place or journey.
    `routes`: the facts that they returned about ways.
    """

    def __init__(self, world: World, query: Query, messages: list[dict]):
        turns = read_turns(messages)
        self.world, self.wanted, self.truth = world, query.constraints, TravelTruth()
        self.answer = read_answer(world, query, turns)
        self.calls = list(self._read_calls(turns))
        self.results = [line for _, lines, _ in self.calls for line in lines]
        self.known: dict[str | None, set[Fact]] = defaultdict(set)
        for line in self.results:
            self.known[line.entity].update(line.facts)
        ways = [line for tool, lines, _ in self.calls for line in lines if tool == "get_navigation"]
        self.routes = {fact for line in ways for fact in line.facts}

    def _read_calls(self, turns: list[Turn]) -> Iterator[tuple[str, list[Line], bool]]:
        """Yield (tool, records, is_new) of every call; a failed call has no records."""
        seen = set()
        for turn in turns:
            for call, observation in zip(turn.tool_calls, turn.observations, strict=False):
                arguments = call.arguments if isinstance(call.arguments, dict) else {}
                key = (call.name, json.dumps(arguments, sort_keys=True))
                lines = [] if observation.startswith("Error") else read_lines(self.world, observation)
                yield call.name, lines, key not in seen
                seen.add(key)

    def rate_calls(self, useful: Callable[[str, list[Line]], float]) -> None:
        """Record how useful each call is by its tool and records; a repeated call is of no use."""
        self.truth.usefulness = [is_new * useful(tool, lines) for tool, lines, is_new in self.calls]

    def expect(self, known: set[Fact], *kinds: str) -> None:
        """Record the kinds of facts that the answer should state, and for each whether the policy saw one."""
        self.truth.facts_expected += len(kinds)
        self.truth.evidence += [float(any(kind == fact[0] for fact in known)) for kind in kinds]


def clarity_of(answer: list[Line]) -> float:
    """Return the share of distinct lines; up to half of it is lost for lines without a place, journey or fact."""
    if not answer:
        return 0.0
    unique = len({line.text for line in answer}) / len(answer)
    return unique * (0.5 + 0.5 * mean_of([float(bool(line.facts or line.entity)) for line in answer]))


def _examine_search(reading: _Reading) -> None:
    wanted, truth = reading.wanted, reading.truth
    near = reading.world.find_poi(wanted["near"])

    def checks(poi: Poi) -> dict[str, bool]:
        is_of_kind = (poi.city, poi.category) == (wanted["city"], wanted["category"])
        is_near = distance_km(poi.point, near.point) * 1000 <= wanted["radius_m"]
        return {"category": is_of_kind, "radius": is_near, **_place_checks(poi, wanted)}

    def useful(tool: str, lines: list[Line]) -> float:
        if tool == "search_poi":
            return float(any(near in line.pois for line in lines))
        return max((mean_of(checks(line.poi).values()) for line in lines if line.poi), default=0.0)

    reading.rate_calls(useful)
    around = [line for tool, lines, _ in reading.calls for line in lines if tool == "around_search"]
    kinds = {line.poi.category for line in reading.results if line.poi}
    truth.needs = [float(wanted["category"] in kinds), float(any(line.poi for line in around))]
    pick = next((line.poi for line in reading.answer if line.poi), None)
    truth.constraints = checks(pick) if pick else dict.fromkeys(checks(near), False)
    truth.delivered = [float(truth.constraints["category"])]
    reading.expect(reading.known[pick.poi_id] if pick else set(), "price", "hours", "distance")


def _examine_days(reading: _Reading) -> None:
    """1-Day and M-Day: a stop for every category, tags and budget, open when visited,
    an evening stop in the evening."""
    wanted, truth, categories = reading.wanted, reading.truth, reading.wanted["categories"]

    def fit(poi: Poi) -> float:
        is_evening = wanted.get("evening") == poi.category
        limits = {"preference": wanted["preference"], "open_at": "19:00" if is_evening else None}
        checks = _place_checks(poi, limits)
        if wanted.get("budget_yuan") is not None:
            checks["cheap"] = "cheap" in poi.tags
        return 0.25 + 0.75 * mean_of(checks.values())

    def useful(tool: str, lines: list[Line]) -> float:
        if tool in ("get_navigation", "search_flights", "search_train_tickets"):
            return float(any(line.facts for line in lines))
        pois = [line.poi for line in lines if line.poi and line.poi.city == wanted["city"]]
        return max((fit(poi) for poi in pois if poi.category in categories), default=0.0)

    reading.rate_calls(useful)
    found = {line.poi.category for line in reading.results if line.poi and line.poi.city == wanted["city"]}
    truth.needs = [*(float(category in found) for category in categories), float(bool(reading.routes))]
    if wanted.get("from_city"):
        journeys = reading.world.journeys(wanted["date"], wanted["from_city"], wanted["city"])
        numbers = {journey.number for journey in journeys}
        truth.needs.append(float(any(not numbers.isdisjoint(line.numbers) for line in reading.results)))
        truth.delivered.append(float(any(not numbers.isdisjoint(line.numbers) for line in reading.answer)))
    stops = read_stops(reading.answer, wanted)
    truth.delivered += [float(category in stops) for category in categories]
    for category in categories:
        known = reading.known[stops[category][0].poi_id] if category in stops else set()
        reading.expect(known, "price", "hours")
    reading.expect(reading.routes, "distance", "duration")
    is_complete = len(stops) == len(categories)
    truth.constraints = {"complete": is_complete}
    for category in categories:
        poi, clock = stops.get(category, (None, None))
        is_open = poi is not None and clock is not None and poi.opens <= clock < poi.closes
        has_tag = poi is not None and wanted["preference"] in poi.tags
        truth.constraints |= {f"{wanted['preference']} {category}": has_tag, f"{category} open": is_open}
    if (budget := wanted.get("budget_yuan")) is not None:
        truth.constraints["budget"] = is_complete and sum(poi.price_yuan for poi, _ in stops.values()) <= budget
    if wanted.get("evening"):
        _, clock = stops.get(wanted["evening"], (None, None))
        truth.constraints["evening"] = clock is not None and clock >= EVENING


def _examine_compare(reading: _Reading) -> None:
    wanted, truth = reading.wanted, reading.truth
    leg = (wanted["date"], wanted["from_city"], wanted["to_city"])
    journeys = {journey.number: journey for journey in reading.world.journeys(*leg)}

    def of_leg(lines: list[Line]) -> list[Journey]:
        return [journeys[number] for line in lines for number in line.numbers if number in journeys]

    reading.rate_calls(lambda _, lines: float(bool(of_leg(lines))))
    seen, named = of_leg(reading.results), of_leg(reading.answer)
    truth.needs = [float(any(journey.kind == kind for journey in seen)) for kind in _KINDS]
    for kind in _KINDS:
        journey = next((journey for journey in named if journey.kind == kind), None)
        truth.delivered.append(float(journey is not None))
        reading.expect(reading.known[journey.number] if journey else set(), "price", "hours")
    # the last journey named is the recommendation; the priority holds against all that the policy saw of both kinds
    choice, key = named[-1] if named else None, "price_yuan" if wanted["priority"] == "cheap" else "minutes"
    saw_both = {journey.kind for journey in seen} == set(_KINDS)
    is_best = choice is not None and saw_both and getattr(choice, key) == min(getattr(journey, key) for journey in seen)
    truth.constraints = {"date and cities": choice is not None, wanted["priority"]: is_best}
    if (limit := wanted.get("max_price_yuan")) is not None:
        truth.constraints["max_price"] = choice is not None and choice.price_yuan <= limit
    if (latest := wanted.get("arrive_by")) is not None:
        truth.constraints["arrive_by"] = choice is not None and choice.arrives <= latest


def _examine_direction(reading: _Reading) -> None:
    wanted, truth = reading.wanted, reading.truth
    stops = [reading.world.find_poi(name) for name in wanted["stops"]]
    routes = {mode: reading.world.route([poi.point for poi in stops], mode) for mode in MODES}
    facts = {}
    for mode, route in routes.items():
        facts[mode] = {("distance", f"{route.distance_km:.1f}"), ("duration", str(route.minutes))}

    def shown(lines: list[Line]) -> set[str]:
        """The modes whose whole way a line states."""
        return {mode for mode in MODES for line in lines if facts[mode] <= set(line.facts)}

    def useful(tool: str, lines: list[Line]) -> float:
        is_full_route = tool == "get_navigation" and shown(lines)
        is_locating = tool == "search_poi" and any(poi in stops for line in lines for poi in line.pois)
        return 1.0 if is_full_route or is_locating else 0.3 if lines else 0.0

    reading.rate_calls(useful)
    modes = shown(reading.results)
    truth.needs = [float(wanted["mode"] in modes), float(len(modes) >= 2)]
    named, ids = [poi.poi_id for line in reading.answer for poi in line.pois], [poi.poi_id for poi in stops]
    truth.delivered = [float(stop in named) for stop in ids]
    chosen = chosen_mode([line.text for line in reading.answer])
    truth.constraints = {"order": named[: len(ids)] == ids, "mode": chosen == wanted["mode"]}
    if (limit := wanted.get("max_minutes")) is not None:
        truth.constraints["max_minutes"] = chosen in modes and routes[chosen].minutes <= limit
    reading.expect(reading.routes, "distance", "duration", "price")


_EXAMINERS: dict[str, Callable[[_Reading], None]] = {
    "Direction": _examine_direction,
    "1-Day": _examine_days,
    "Compare": _examine_compare,
    "Search": _examine_search,
    "M-Day": _examine_days,
}


def has_truth(world: World, query: Query) -> bool:
    """Whether the query's constraints hold what its subtask is examined by, in their form, of places, cities,
    kinds and tags of this world."""
    if (form := FORMS.get(query.subtask)) is None:
        return False
    try:
        form.model_validate(query.constraints, strict=True)
    except ValidationError:
        return False
    wanted = {key: value for key, value in query.constraints.items() if value not in (None, [])}
    if not form.needed | ({"date"} if "from_city" in wanted else set()) <= wanted.keys():
        return False

    def values(*keys: str) -> list[str]:
        given = [wanted[key] for key in keys if key in wanted]
        return [name for value in given for name in (value if isinstance(value, list) else [value])]

    cities, kinds = values("from_city", "city", "to_city"), values("categories", "category")
    places = [world.find_poi(name) for name in values("stops", "near")]
    return (
        set(cities) <= world.cities.keys()
        and len({*cities}) == len(cities)
        and len(values("stops")) != 1
        and all(places)
        and len({poi.city for poi in places}.union(values("city"))) <= 1
        and set(kinds) <= CATEGORIES.keys()
        and len({*kinds}) == len(kinds)
        and wanted.get("evening") in (None, *kinds)
        and wanted.get("preference") in (None, *TAGS)
    )


def chosen_mode(lines: list[str]) -> str | None:
    """How an answer goes: by the first line with a word of the tools for it, of two the first in MODES; else by the
    first word that means one."""
    for line in lines:
        for mode, words in _TOOLS_MODES.items():
            if any(word in line for word in words):
                return mode
    text = "\n".join(lines)
    places = {mode: match.start() for mode, words in MODES.items() if (match := words.search(text))}
    return min(places, key=places.__getitem__, default=None)


def _place_checks(poi: Poi, wanted: dict) -> dict[str, bool]:
    """The constraints on a single place: preference, price, still open at a time."""
    checks = {wanted["preference"]: wanted["preference"] in poi.tags}
    if (limit := wanted.get("max_price_yuan")) is not None:
        checks["max_price"] = poi.price_yuan <= limit
    if (clock := wanted.get("open_at")) is not None:
        checks["open_at"] = poi.opens <= clock < poi.closes
    return checks


def _read_line(world: World, text: str) -> Line:
    text = forms.with_clocks(text)
    pois = [poi for match in _NAME.finditer(text) if (poi := world.find_poi(match.group()))]
    ranges = [(start.zfill(5), end.zfill(5)) for start, end in forms.HOURS.findall(text)]
    slot = ranges.pop(0)[0] if pois and forms.starts_with_visit(text) else None
    rest = forms.HOURS.sub(" ", text)
    numbers, clocks = forms.SERVICE_NUMBER.findall(text), [clock.zfill(5) for clock in forms.CLOCK.findall(rest)]
    if numbers and len(clocks) >= 2:  # a timetable's departure and arrival in fields of their own
        ranges.append((clocks[0], clocks[1]))
    facts = [("hours", f"{start}-{end}") for start, end in ranges]
    # as tool results write them: ¥1,290 is 1290, 1 h 20 min is 80
    facts += [("price", f"{forms.price_of(match):.10g}") for match in forms.PRICE.finditer(rest)]
    facts += [("distance", f"{float(match[1]):.1f}") for match in _DISTANCE.finditer(rest)]
    facts += [("duration", str(forms.duration_of(match))) for match in forms.DURATION.finditer(rest)]
    return Line(text, pois, numbers, facts, slot or (clocks[0] if clocks else None))
