"""The noise-free truth about a travel trajectory: covered needs, grounded facts, met constraints.

The embedded judge adds noise to it; evaluation reports it without noise. `examine` reads the text that an LLM judge
reads: tool calls, results and answer, in Chinese or English, full or compact. It finds entities by name and facts by
their form (¥20, 09:00-17:00, 5.2km, 18min), and compares them with the trajectory's tool results and the world.
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
# the words of tool results
_TOOLS_MODES = {"driving": ("driving", "驾车"), "walking": ("walking", "步行"), "transit": ("transit", "公交")}
_KINDS = ("flight", "train")


@dataclass
class TravelTruth(Truth):
    """Noise-free findings on one trajectory. Lists hold shares in [0, 1]; their means give the dimension scores."""

    needs: list[float] = field(default_factory=list)  # per need of the query: a tool result has the information
    usefulness: list[float] = field(default_factory=list)  # per call: how well its result fits the query
    evidence: list[float] = field(default_factory=list)  # per expected fact: a tool result has it
    delivered: list[float] = field(default_factory=list)  # per item that the query requires: the answer has it
    constraints: dict[str, bool | None] = field(default_factory=dict)  # None: unknown in a reduced view
    facts_expected: int = 0
    facts_stated: int = 0
    facts_grounded: int = 0
    clarity: float = 0.0

    @property
    def groundedness(self) -> float:
        """The share of stated facts that a tool result of this trajectory confirms; 0 without stated facts."""
        return self.facts_grounded / self.facts_stated if self.facts_stated else 0.0

    @property
    def invented_facts(self) -> float:
        """The share of stated facts that no tool result of this trajectory confirms; 0 without stated facts."""
        return 1 - self.groundedness if self.facts_stated else 0.0

    @property
    def constraints_met(self) -> float:
        return mean_of([is_met for is_met in self.constraints.values() if is_met is not None])

    def dimensions(self) -> dict[str, float]:
        lists = (self.needs, self.usefulness, self.evidence, self.delivered)
        # `facts_stated` in the denominator makes an invented fact cost something
        details = self.facts_grounded / max(1, self.facts_expected, self.facts_stated)
        shares = (*map(mean_of, lists), self.constraints_met, details, self.clarity)
        return {name: 10.0 * share for name, share in zip(PATH_DIMENSIONS + ANSWER_DIMENSIONS, shares, strict=True)}

    def figures(self) -> dict[str, float]:
        return {name: 100.0 * getattr(self, name) for name in ("groundedness", "constraints_met", "invented_facts")}

    def findings(self) -> dict[str, Any]:
        return {"groundedness": round(self.groundedness, 3), "constraints": self.constraints}

    def passes(self) -> dict[str, bool]:
        return {"constraints": self.constraints_met == 1}

    def checklist(self) -> dict[str, bool]:
        return {name: bool(is_met) for name, is_met in self.constraints.items()}

    def information(self) -> float:
        return sum(self.needs) + sum(self.evidence)


@dataclass
class Line:
    """The places, flight and train numbers, facts and clock time in a line of an answer or a record of a result."""

    text: str
    pois: list[Poi]
    numbers: list[str]
    facts: list[Fact]
    clock: str | None  # HH:MM

    @property
    def poi(self) -> Poi | None:
        """The first place; None without one."""
        return self.pois[0] if self.pois else None

    @property
    def entity(self) -> str | None:
        """The first place's id, else the first flight or train number."""
        return self.pois[0].poi_id if self.pois else self.numbers[0] if self.numbers else None


def read_lines(world: World, text: str) -> list[Line]:
    """Read the lines of an answer or compact result, or the records of a JSON result."""
    records = re.split(r"[\n;；。]", text)
    try:
        data = json.loads(text)
        if isinstance(data, dict):  # every item of a top-level list is a record
            parts = [part for value in data.values() for part in (value if isinstance(value, list) else [value])]
            records = [" ".join(forms.leaves_of(part)) for part in parts]
    except (ValueError, RecursionError):
        pass  # not JSON, or one with thousands of digits or brackets: read lines
    return [_read_line(world, record) for record in records if record.strip()]


def read_answer(world: World, query: Query, turns: list[Turn]) -> list[Line]:
    """Read the answer's lines. The query's `near` is removed: "1.2km from Lotus Park" describes another place."""
    near = world.find_poi(query.constraints.get("near") or "")
    lines = read_lines(world, last_answer(turns))
    for line in lines:
        line.pois = [poi for poi in line.pois if poi != near]
    return lines


def read_stops(answer: list[Line], wanted: dict) -> dict[str, tuple[Poi, str | None]]:
    """Return for each category the answer's first place in the query's city, and the clock time of its line."""
    stops: dict[str, tuple[Poi, str | None]] = {}
    for line in answer:
        if line.poi and line.poi.city == wanted["city"] and line.poi.category in wanted["categories"]:
            stops.setdefault(line.poi.category, (line.poi, line.clock))
    return stops


def examine(world: World, query: Query, messages: list[dict]) -> TravelTruth:
    """Examine a trajectory that ended with an answer; its query must have a truth."""
    reading = _Reading(world, query, messages)
    _EXAMINERS[query.subtask](reading)
    truth, is_grounded = reading.truth, {}
    for line in reading.answer:
        for fact in line.facts:
            if fact[0] == "price" and line.entity is None and forms.TOTAL.search(line.text):
                continue  # a total, which no tool returns
            is_route = fact in reading.routes and (fact[0] in ("distance", "duration") or line.entity is None)
            about = None if is_route else line.entity
            is_grounded[about, fact] = is_route or fact in reading.known[about]  # a repeated fact counts once
    truth.facts_stated, truth.facts_grounded = len(is_grounded), sum(is_grounded.values())
    truth.clarity = clarity_of(reading.answer)
    return truth


class _Reading:
    """A parsed trajectory.

    `calls` has (tool, records, is_new) for each call, `known` the returned facts by place or journey, and `routes` the
    facts that get_navigation returned.
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
        routes = [line for tool, lines, _ in self.calls for line in lines if tool == "get_navigation"]
        self.routes = {fact for line in routes for fact in line.facts}

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
        """Record how useful each call is, by its tool and records; a repeated call counts 0."""
        self.truth.usefulness = [is_new * useful(tool, lines) for tool, lines, is_new in self.calls]

    def expect(self, known: set[Fact], *kinds: str) -> None:
        """Record which kinds of facts the answer should state, and whether the `known` facts include each kind."""
        self.truth.facts_expected += len(kinds)
        self.truth.evidence += [float(any(kind == fact[0] for fact in known)) for kind in kinds]


def clarity_of(answer: list[Line]) -> float:
    """Return the share of distinct lines, reduced by up to half for lines without a place, journey or fact."""
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
    """Examine 1-Day and M-Day: a stop for every category, its tag, its hours, the budget, an evening stop."""
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
    categories_seen = {line.poi.category for line in reading.results if line.poi and line.poi.city == wanted["city"]}
    truth.needs = [*(float(category in categories_seen) for category in categories), float(bool(reading.routes))]
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
    # the last named journey is the recommendation; it must be the best of all seen, with both kinds seen
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

    def modes_in(lines: list[Line]) -> set[str]:
        """Return the modes for which a line states the whole route."""
        return {mode for mode in MODES for line in lines if facts[mode] <= set(line.facts)}

    def useful(tool: str, lines: list[Line]) -> float:
        is_full_route = tool == "get_navigation" and modes_in(lines)
        is_locating = tool == "search_poi" and any(poi in stops for line in lines for poi in line.pois)
        return 1.0 if is_full_route or is_locating else 0.3 if lines else 0.0

    reading.rate_calls(useful)
    modes = modes_in(reading.results)
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
    """Return whether `examine` can check the query: every field it needs has a valid value from this world."""
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
        present = [wanted[key] for key in keys if key in wanted]
        return [name for value in present for name in (value if isinstance(value, list) else [value])]

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
    """Return an answer's mode of transport; None if it names none.

    It is taken from the first line with a tool's word for a mode; within the line the order of MODES decides. Without
    such a line, it is the first word for any mode.
    """
    for line in lines:
        for mode, words in _TOOLS_MODES.items():
            if any(word in line for word in words):
                return mode
    text = "\n".join(lines)
    places = {mode: match.start() for mode, words in MODES.items() if (match := words.search(text))}
    return min(places, key=places.__getitem__, default=None)


def _place_checks(poi: Poi, wanted: dict) -> dict[str, bool]:
    """Check the constraints on a single place: preference, price, opening hours."""
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
    if numbers and len(clocks) >= 2:  # departure and arrival in separate fields
        ranges.append((clocks[0], clocks[1]))
    facts = [("hours", f"{start}-{end}") for start, end in ranges]
    # in the spelling of tool results: ¥1,290 is 1290, 1 h 20 min is 80
    facts += [("price", f"{forms.price_of(match):.10g}") for match in forms.PRICE.finditer(rest)]
    facts += [("distance", f"{float(match[1]):.1f}") for match in _DISTANCE.finditer(rest)]
    facts += [("duration", str(forms.duration_of(match))) for match in forms.DURATION.finditer(rest)]
    return Line(text, pois, numbers, facts, slot or (clocks[0] if clocks else None))
