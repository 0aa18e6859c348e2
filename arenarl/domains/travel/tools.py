"""The six Open-Travel tools (Appendix C, ArenaRL) over the embedded world.

Results have two forms. `full` is JSON with all fields; its tools take coordinates, as the paper's map service does.
`compact` is English with one line per record; its tools take names, for a policy too small to copy coordinates. Facts
have the same spelling in both (¥20, 09:00-17:00, 5.2km, 18min), which `truth` relies on. A result depends only on the
arguments of its call.
"""

import datetime
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import pairwise
from typing import Any, Self

from arenarl.config.schema import EnvironmentConfig
from arenarl.domains.bm25 import BM25, pairs, search_form, singular
from arenarl.domains.travel.llm_timetable import LLMTimetable
from arenarl.domains.travel.names import CATEGORIES, TAGS
from arenarl.domains.travel.schemas import Language, Results, travel_schemas
from arenarl.domains.travel.world import Journey, Poi, Point, Route, World, build_world
from arenarl.llm.client import LLMClient
from arenarl.rollout.environment import Schema, ToolError, as_written, check_call

DEFAULT_YEAR = 2026  # year of dates that name none
DEFAULT_RADIUS_M = 3000.0
MAX_RADIUS_M = 50_000.0
CHINA = ((73.0, 136.0), (18.0, 54.0))  # longitudes, latitudes
NO_RESULTS = "no results"  # in the compact form
_CITY_NAME = re.compile(r"(?=.{1,40}\Z)[^\W\d_]+(?:['’ -][^\W\d_]+){0,4}")
_DATE = re.compile(r"(?:(20[0-9]{2})-)?([0-9]{1,2})-([0-9]{1,2})")
_WORD = re.compile(r"[a-z0-9]+|[\u4e00-\u9fff]+")
_EMPHASIS = 4  # repetitions of city and category in the guide, so that they outweigh any mix of tags


class TravelEnvironment:
    """The six tools as an `Environment`, shared by all trajectories."""

    shared = True

    def __init__(
        self, world: World, results: Results = "full", language: Language = "zh", timetable: LLMTimetable | None = None
    ):
        """With a `timetable`, flights and trains come from it instead of the world, and their calls are awaitable."""
        self.world = world
        self.is_compact = results == "compact"
        self.language: Language = "en" if self.is_compact else language
        self.max_results = 2 if self.is_compact else 5
        self.tools = travel_schemas(results, self.language)
        self._guide = PoiIndex(world, guide_words)
        self._addresses = PoiIndex(world, address_words)
        self.timetable = timetable
        self._handlers: dict[str, Callable[..., Any]] = {
            "search_poi": self._search_poi,
            "around_search": self._around_search,
            "get_navigation": self._get_navigation,
            "universal_search": self._universal_search,
            "search_flights": partial(self._search_journeys, "flight"),
            "search_train_tickets": partial(self._search_journeys, "train"),
        }

    @classmethod
    def from_config(cls, config: EnvironmentConfig, language: Language, client: LLMClient | None = None) -> Self:
        """Create the environment; with a `client`, an LLM invents tickets if `environment.tickets` is an LLM."""
        world, uses_llm = build_world(config.world_seed), client and config.tickets.name == "llm"
        timetable = LLMTimetable(config.tickets, client, world, language) if uses_llm else None
        return cls(world, config.results, language, timetable)

    def add_tool(self, schema: Schema, answer: Callable[..., str]) -> None:
        """Add a tool. `answer` takes the schema's arguments by name, and raises ToolError for a call that fails."""
        self.tools = [*self.tools, schema]
        self._handlers[schema["function"]["name"]] = answer

    def reset(self, query: Any) -> None:
        pass

    def call(self, name: str, arguments: dict[str, Any] | str) -> str | Awaitable[str]:
        try:
            checked = check_call(self.tools, name, arguments)
            return self._handlers[name](**checked)
        except ToolError as error:
            return f"Error: {error}"

    def _search_poi(self, query: str) -> str:
        exact = self.world.find_poi(query)
        return self._show_pois([exact] if exact else self._addresses.search(query, self.max_results))

    def _around_search(self, location: str, radius: float = DEFAULT_RADIUS_M, keyword: str = "") -> str:
        if not 100 <= radius <= MAX_RADIUS_M:
            raise ToolError(f"radius must be 100 to {MAX_RADIUS_M:.0f} metres, not {radius:g}.")
        center = self._find_place(location) if self.is_compact else _parse_point("location", location)
        # leave out the centre itself
        around = [pair for pair in self.world.pois_within(center, radius / 1000) if pair[0] > 0.001]
        matches = _match_keyword(keyword, around)[: self.max_results]
        return self._show_pois([poi for _, poi in matches], [kilometres for kilometres, _ in matches])

    def _get_navigation(self, via_points: str = "", mode: str = "driving", **ends: Any) -> str:
        via_texts = [text for text in via_points.replace("；", ";").split(";") if text.strip()]
        if self.is_compact:
            points = [self._find_place(name) for name in (ends["start"], *via_texts, ends["end"])]
        else:
            start = _check_point("start_lon,start_lat", (ends["start_lon"], ends["start_lat"]))
            end = _check_point("end_lon,end_lat", (ends["end_lon"], ends["end_lat"]))
            points = [start, *(_parse_point("via_points", text) for text in via_texts), end]
        route = self.world.route(points, mode)
        if self.is_compact:
            return f"{mode} {_show_route(route)['distance']} {route.minutes}min ¥{route.cost_yuan}"
        legs = [self.world.route(leg, mode) for leg in pairwise(points)]
        return _to_json({"route": _show_route(route), "legs": [_show_route(leg) for leg in legs] if via_texts else []})

    def _universal_search(self, query: str) -> str:
        pois = self._guide.search(query, self.max_results)
        if self.is_compact:
            return self._show_pois(pois)
        return _to_json({"results": [{"title": self._name(poi), "text": self._describe(poi)} for poi in pois]})

    def _search_journeys(self, kind: str, date: str, from_city: str, to_city: str) -> str | Awaitable[str]:
        start, end = self._find_city("from_city", from_city), self._find_city("to_city", to_city)
        if start == end:
            raise ToolError(f"from_city and to_city are both {start}; they must differ.")
        leg = _parse_date(date), start, end
        if self.timetable:
            return self._invent_journeys(kind, leg)
        return self._show_journeys(kind, self.world.flights(*leg) if kind == "flight" else self.world.trains(*leg))

    async def _invent_journeys(self, kind: str, leg: tuple[str, str, str]) -> str:
        journeys = await self.timetable.journeys(kind, *leg)
        return "Error: the ticket service does not answer." if journeys is None else self._show_journeys(kind, journeys)

    def _show_journeys(self, kind: str, journeys: list[Journey]) -> str:
        if self.is_compact:
            return _show_best(journeys)
        if kind == "flight":
            return _to_json({"flights": [self._show_journey(journey, "airport") for journey in journeys]})
        direct = [self._show_journey(journey, "station") for journey in journeys if journey.via is None]
        transfer = [self._show_journey(journey, "station") for journey in journeys if journey.via is not None]
        return _to_json({"direct": direct, "transfer": transfer})

    def _find_city(self, argument: str, name: str) -> str:
        """Return the city's key. With an LLM's timetable, a city unknown to the world keeps its name."""
        if city := self.world.find_city(name):
            return city.key
        if self.timetable and _CITY_NAME.fullmatch(name.strip()):
            return name.strip()
        keys = list(self.world.cities)
        nearest = get_close_matches(name.strip().title(), keys, n=1)
        hint = f'Did you mean "{nearest[0]}"?' if nearest else f"Cities: {', '.join(keys)}."
        raise ToolError(f"{argument}: unknown city {as_written(name)}. {hint}")

    def _find_place(self, name: str) -> Point:
        place = self.world.find_poi(name) or self.world.find_city(name)
        if place is None:
            nearest = self._addresses.search(name, 1)
            hint = f' Did you mean "{nearest[0].name_en}"?' if nearest else ""
            raise ToolError(f"unknown place {as_written(name)}.{hint}")
        return place.point

    def _name(self, poi: Poi) -> str:
        return poi.name_zh if self.language == "zh" else poi.name_en

    def _show_pois(self, pois: list[Poi], distances_km: Sequence[float] = ()) -> str:
        distances = [f"{kilometres:.1f}km" for kilometres in distances_km] or [""] * len(pois)
        places, is_zh, records = list(zip(pois, distances, strict=True)), self.language == "zh", []
        if self.is_compact:
            facts = "{0.name_en} ¥{0.price_yuan} {0.opens}-{0.closes} {0.rating} {1}".format
            return "\n".join(facts(*place).rstrip() for place in places) or NO_RESULTS
        for poi, distance in places:
            business = {
                "cost": f"¥{poi.price_yuan}",
                "rating": f"{poi.rating:.1f}",
                "opening_hours": f"{poi.opens}-{poi.closes}",
                "tags": [TAGS[tag] if is_zh else tag for tag in poi.tags],
            }
            record = {
                "name": self._name(poi),
                "type": CATEGORIES[poi.category] if is_zh else poi.category,
                "address": poi.address_zh if is_zh else poi.address_en,
                "location": f"{poi.lon:.6f},{poi.lat:.6f}",
                "business": business,
            }
            records.append(record | ({"distance": distance} if distance else {}))
        return _to_json({"pois": records})

    def _describe(self, poi: Poi) -> str:
        """Describe a place in the words of a city guide."""
        city, hours = self.world.cities[poi.city], f"{poi.opens}-{poi.closes}"
        if self.language == "zh":
            kind, tags = CATEGORIES[poi.category], "、".join(TAGS[tag] for tag in poi.tags)
            place = f"{self._name(poi)}位于{poi.address_zh}，是{city.name_zh}的一家{kind}，特点：{tags}"
            return f"{place}。人均¥{poi.price_yuan}，营业时间{hours}，评分{poi.rating}。"
        place = f"{self._name(poi)} at {poi.address_en} is a {poi.category} in {city.name_en} ({', '.join(poi.tags)})"
        return f"{place}. It costs ¥{poi.price_yuan} per person, is open {hours} and is rated {poi.rating}."

    def _show_journey(self, journey: Journey, terminal: str) -> dict[str, str]:
        record = {
            f"{journey.kind}_number": journey.number,
            "price": f"¥{journey.price_yuan}",
            f"departure_{terminal}": getattr(journey, f"from_terminal_{self.language}"),
            f"arrival_{terminal}": getattr(journey, f"to_terminal_{self.language}"),
            "departure_time": journey.departs,
            "arrival_time": journey.arrives,
            "duration": f"{journey.minutes}min",
        }
        if journey.via:
            record["transfer_city"] = self.world.city_name(journey.via, self.language)
        return record


def _match_keyword(keyword: str, around: list[tuple[float, Poi]]) -> list[tuple[float, Poi]]:
    """Return the places that match a word of the keyword, most matching words first, then nearest.

    If the keyword names categories, only their places match. Without a keyword all places match.
    """
    words = set(query_tokens(keyword))
    if not words:
        return around

    def is_named(word_en: str, word_zh: str) -> bool:
        return word_en in words or word_zh in keyword

    categories = {category for category, name_zh in CATEGORIES.items() if is_named(category, name_zh)}
    tags = {tag for tag, name_zh in TAGS.items() if is_named(tag, name_zh)}

    def count(poi: Poi) -> int:
        prefixes = poi.name_en.split()[0].lower(), poi.name_zh.removesuffix(CATEGORIES[poi.category])
        return (poi.category in categories) + len(tags.intersection(poi.tags)) + is_named(*prefixes)

    fitting = [pair for pair in around if not categories or pair[1].category in categories]
    scored = [(count(poi), kilometres, poi) for kilometres, poi in fitting]
    return [(kilometres, poi) for matched, kilometres, poi in sorted(scored, key=lambda item: -item[0]) if matched]


def _parse_point(argument: str, text: str) -> Point:
    try:
        lon, lat = (float(part) for part in text.replace("，", ",").split(","))
    except ValueError as error:
        hint = "search_poi gives the location of a place by its name"
        raise ToolError(f"{argument} must be 'longitude,latitude', not {as_written(text)}; {hint}.") from error
    return _check_point(argument, (lon, lat))


def _check_point(argument: str, point: Point) -> Point:
    if not all(low <= value <= high for value, (low, high) in zip(point, CHINA, strict=True)):
        order = "longitude 73 to 136 comes first, then latitude 18 to 54"
        raise ToolError(f"{argument}: {point[0]:g},{point[1]:g} is not in China ({order}).")
    return point


def _parse_date(text: str) -> str:
    """Convert MM-DD or YYYY-MM-DD, in this century, into YYYY-MM-DD; raise ToolError for any other text."""
    try:
        year, month, day = _DATE.fullmatch(text.strip()).groups(DEFAULT_YEAR)
        return datetime.date(int(year), int(month), int(day)).isoformat()
    except (AttributeError, ValueError) as error:
        form = f"a day as YYYY-MM-DD, such as {DEFAULT_YEAR}-05-01"
        raise ToolError(f"date must be {form}, not {as_written(text)}.") from error


def _show_route(route: Route) -> dict[str, str]:
    return {
        "mode": route.mode,
        "distance": f"{route.distance_km:.1f}km",
        "duration": f"{route.minutes}min",
        "cost": f"¥{route.cost_yuan}",
    }


def _show_best(journeys: list[Journey]) -> str:
    """Write the cheapest and the fastest journey, by departure; if one journey is both, the two cheapest."""
    by_price = sorted(journeys, key=lambda journey: (journey.price_yuan, journey.minutes))
    fastest = min(journeys, key=lambda journey: (journey.minutes, journey.price_yuan))
    best = [by_price[0], fastest if fastest != by_price[0] else by_price[1]]
    lines = []
    for journey in sorted(best, key=lambda journey: journey.departs):
        change = f" via {journey.via}" if journey.via else ""
        lines.append(f"{journey.number} {journey.departs}-{journey.arrives} ¥{journey.price_yuan}{change}")
    return "\n".join(lines)


def _to_json(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False)


class PoiIndex:
    """BM25 search over places, each described by a list of English and Chinese words; a tie goes to the better rating.

    bm25s can split only text with spaces, so it gets our own tokens: lower-case words of Latin text, and characters and
    pairs of characters of Chinese text.
    """

    def __init__(self, world: World, describe: Callable[[World, Poi], list[str]]):
        self.pois = sorted(world.pois, key=lambda poi: (-poi.rating, poi.poi_id))
        self._bm25 = BM25(b=0.0)  # ignore the length: every description is about one place
        self._bm25.index([_document_tokens(describe(world, poi)) for poi in self.pois], show_progress=False)

    def search(self, text: str, limit: int) -> list[Poi]:
        """Return at most `limit` places, best first, without places of score 0."""
        tokens = [token for token in query_tokens(text) if token in self._bm25.vocab_dict]
        if not tokens:
            return []
        scores = self._bm25.get_scores(tokens).round(4)
        order = (-scores).argsort(kind="stable")[:limit]
        return [self.pois[index] for index in order if scores[index] > 0]


def guide_words(world: World, poi: Poi) -> list[str]:
    """Return the guide's words for a place: city, kind, name and tags in both languages."""
    city = world.cities[poi.city]
    tags = [word for tag in poi.tags for word in (tag, TAGS[tag])]
    kind = [city.key, city.name_zh, poi.category, CATEGORIES[poi.category]] * _EMPHASIS
    return [*kind, poi.name_en, poi.name_zh, *tags]


def address_words(world: World, poi: Poi) -> list[str]:
    return [poi.name_en, poi.name_zh, poi.address_en, poi.address_zh]


def query_tokens(text: str) -> list[str]:
    """Return the distinct tokens of a query, in order, with single characters for one-character Chinese words (寺).

    >>> query_tokens("Quiet temples in Xi'an, 安静的寺")
    ['quiet', 'temple', 'in', 'xian', '安', '静', '的', '寺', '安静', '静的', '的寺']
    """
    tokens: dict[str, None] = {}
    for word in _words(text):
        if word.isascii():
            tokens[word] = None
        else:
            tokens |= dict.fromkeys(word) | dict.fromkeys(pairs(word))
    return list(tokens)


def _document_tokens(words: Iterable[str]) -> list[str]:
    """Return a description's tokens, without the characters of longer Chinese words: 安 would match 西安 and 安静."""
    split = [word for text in words for word in _words(text)]
    return [token for word in split for token in ([word] if word.isascii() or len(word) == 1 else pairs(word))]


def _words(text: str) -> list[str]:
    return [singular(word) for word in _WORD.findall(search_form(text))]
