"""Where an answer breaks its query's constraints by what it says itself, as who knows no world can read it.

It reads prices, hours, distances, durations, numbers of flights and trains, names of stops and kinds of place, in
English and Chinese. Where a text may be meant otherwise it says nothing: of several places with a price, one within the
limit is enough. `truth` knows better; this is what an inspector of training data may go by.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from pydantic import ValidationError

from arenarl.domains.stated_facts import (
    DASH,
    SERVICE_NUMBER,
    TOTAL,
    is_open,
    minutes_of,
    read_facts,
    starts_with_visit,
    with_clocks,
)
from arenarl.domains.travel.constraints import (
    FORMS,
    CompareConstraints,
    DayConstraints,
    DirectionConstraints,
    SearchConstraints,
)
from arenarl.domains.travel.names import CATEGORIES, EVENING, EVENING_WORDS, MODES, NO_SUM, PREFIXES
from arenarl.trajectory import Query

_KINDS = {  # words besides the category's own by which an answer may name it
    "museum": ("palace", "memorial", "博物", "故宫", "纪念馆"),
    "temple": ("monastery", "pagoda", "shrine", "庙", "宫", "塔"),
    "gallery": ("art", "exhibition", "画廊", "艺术", "展"),
    "garden": ("花园", "园"),
    "park": ("lake", "hill", "mountain", "forest", "湖", "山", "绿地"),
    "market": ("bazaar", "street", "市场", "夜市", "集市", "街"),
    "theater": ("theatre", "opera", "show", "concert", "剧场", "大剧院", "演出", "戏"),
    "mall": ("shopping", "plaza", "购物", "百货", "广场"),
    "restaurant": ("lunch", "dinner", "dining", "eat", "meal", "hotpot", "饭", "餐", "食", "火锅", "菜"),
    "cafe": ("café", "coffee", "咖啡"),
    "teahouse": ("tea", "茶"),
    "hotel": ("inn", "hostel", "stay", "宾馆", "民宿", "住"),
}
_JOURNEYS = {
    "flights": r"flight|plane|航班|飞机|\b[A-Z]{2}\d{3,4}\b",
    "trains": r"train|rail|火车|高铁|动车|列车|\b[GDCZTK]\d{1,4}\b",
}
_RECOMMENDS = re.compile(r"recommend|\btake\b|choose|best|go with|推荐|建议|选择|最佳|首选", re.IGNORECASE)
_AGAINST = re.compile(
    r"\b(?:not|never|avoid|rather than|instead of)\b|n['’]t\b|不(?:推荐|建议|要|宜|选|必)|避免|并非|不是|而非",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"[,，]|\bbut\b|而是|(?=\b(?:rather than|instead of)\b)|(?=而非)", re.IGNORECASE)
# a stop's line begins with when to be there
_VISIT = re.compile(rf"[^A-Za-z\d]{{0,40}}(\d{{1,2}}:\d\d)(?:{DASH}\d{{1,2}}:\d\d)?(?!\d|:\d)")
_SHORTEST_OPENING = 3 * 60  # minutes: a shorter range may be a visit


def contradictions_of(query: Query, answer: str) -> list[str]:
    """A sentence for each constraint that the answer breaks by its own word.
    Constraints in no form of `constraints` say nothing."""
    if query.subtask not in FORMS or not answer.strip():
        return []
    try:
        wanted = FORMS[query.subtask].model_validate(query.constraints)
    except ValidationError:
        return []
    return list(_READERS[query.subtask](wanted, with_clocks(answer)))


def _search(wanted: SearchConstraints, answer: str) -> Iterator[str]:
    prices, distances, hours = (_values(answer, kind) for kind in ("price", "distance", "hours"))
    if wanted.max_price_yuan is not None and prices and min(prices) > wanted.max_price_yuan:
        yield f"The answer states a price of {min(prices):g} yuan, but at most {wanted.max_price_yuan:g} are asked for."
    # metres are stated in kilometres with one decimal
    if wanted.radius_m is not None and distances and min(distances) > 1.02 * wanted.radius_m:
        yield (
            f"The answer states a distance of {min(distances) / 1000:g} km, "
            f"but the place is to lie within {wanted.radius_m / 1000:g} km."
        )
    if wanted.open_at is not None and hours and not any(is_open(*one, minutes_of(wanted.open_at)) for one in hours):
        yield f"The hours that the answer states do not include {wanted.open_at}, when the place is to be open."


def _days(wanted: DayConstraints, answer: str) -> Iterator[str]:
    lines = _lines(answer)
    named = {line: [kind for kind in wanted.categories if _names(kind, line)] for line in lines}
    stops = {kind: [line for line in lines if named[line] == [kind]] for kind in wanted.categories}
    # with as many, one may be of the kind, whatever it is called
    if sum(map(_is_of_a_stop, lines)) < len(wanted.categories):
        yield from (
            f"The answer names no {kind}, which the query asks for."
            for kind in wanted.categories
            if _is_missing(kind, answer)
        )
    for line in dict.fromkeys(line for found in stops.values() for line in found):
        yield from _closed(line)
    if wanted.budget_yuan is not None:
        yield from _over_budget(wanted.budget_yuan, stops, lines)
    if wanted.evening in stops and (found := stops[wanted.evening]) and _is_by_day(found, answer):
        yield (
            f"The {wanted.evening} is to be visited in the evening, but the answer puts it at no evening hour: "
            f"{found[0].strip()[:200]}"
        )
    if wanted.from_city and not any(re.search(words, answer, re.IGNORECASE) for words in _JOURNEYS.values()):
        yield f"The answer does not say how to get there from {wanted.from_city}."


def _closed(line: str) -> Iterator[str]:
    """A stop at a time at which its own line says that it is closed."""
    if SERVICE_NUMBER.search(line) or not (visit := _VISIT.match(line)):
        return
    at, hours = (
        minutes_of(visit[1]),
        [one for one in _values(line[visit.end() :], "hours") if (one[1] - one[0]) % 1440 >= _SHORTEST_OPENING],
    )
    if hours and not any(is_open(*one, at) for one in hours):
        yield (
            f"A stop is planned at {visit[1]}, outside of the hours that the answer states for it: {line.strip()[:200]}"
        )


def _over_budget(budget: float, stops: dict[str, list[str]], lines: Sequence[str]) -> Iterator[str]:
    """By the first price of each kind of stop, or by a total that the answer states."""
    priced = [
        next((prices[0] for line in found if (prices := _values(line, "price")) and not TOTAL.search(line)), 0.0)
        for found in stops.values()
    ]
    totals = [
        price for line in lines if TOTAL.search(line) and not NO_SUM.search(line) for price in _values(line, "price")
    ]
    if sum(priced) > budget:
        yield (
            f"The prices that the answer states for its stops come to {sum(priced):g} yuan, "
            f"over the budget of {budget:g}."
        )
    elif totals and min(totals) > budget:
        yield f"The answer states a total of {min(totals):g} yuan, over the budget of {budget:g}."


def _is_by_day(found: Sequence[str], answer: str) -> bool:
    """Whether none of the lines that name a stop has it in the evening, by a clock or in words."""
    clocks = [clock for line in found for clock in _values(line, "clock")]
    clocks += [hours[0] for line in found if starts_with_visit(line) for hours in _values(line, "hours")[:1]]
    said_so = any(EVENING_WORDS.search(line) for line in found) or (not clocks and EVENING_WORDS.search(answer))
    return not said_so and not any(clock >= minutes_of(EVENING) for clock in clocks)


def _compare(wanted: CompareConstraints, answer: str) -> Iterator[str]:
    for kind, words in _JOURNEYS.items():
        if not re.search(words, answer, re.IGNORECASE):
            yield f"The answer says nothing of {kind}, which the query wants to be compared."
    journeys, numbers = _journeys(answer), SERVICE_NUMBER.findall(answer)
    advice = [line for line in _lines(answer) if _RECOMMENDS.search(line) and SERVICE_NUMBER.search(line)]
    recommended = [number for line in advice for number in _recommended(line)]
    chosen = next(reversed(recommended or ([] if advice else numbers)), None)  # an answer ends with what it recommends
    prices, hours = journeys.get(chosen, ([], []))
    if wanted.max_price_yuan is not None and prices and min(prices) > wanted.max_price_yuan:
        yield (
            f"The answer recommends {chosen} at {min(prices):g} yuan, "
            f"but at most {wanted.max_price_yuan:g} are asked for."
        )
    if (
        wanted.arrive_by is not None
        and hours
        and all(arrives > minutes_of(wanted.arrive_by) or arrives < departs for departs, arrives in hours)
    ):
        yield f"The answer recommends {chosen}, which it says arrives after {wanted.arrive_by}."
    yield from _better(wanted, chosen, journeys)


def _recommended(line: str) -> list[str]:
    """The flights and trains that a line of advice is for;
    where it also advises against some, those that a clause of their own recommends."""
    if not _AGAINST.search(line):
        return SERVICE_NUMBER.findall(line)
    clauses = [(clause, SERVICE_NUMBER.findall(clause)) for clause in _CLAUSE.split(line) if _RECOMMENDS.search(clause)]
    if any(_AGAINST.search(clause) and not numbers for clause, numbers in clauses):
        return []  # G101, though cheap, is not recommended
    return [numbers[0] for clause, numbers in clauses if len(numbers) == 1 and not _AGAINST.search(clause)]


def _journeys(answer: str) -> dict[str, tuple[list[float], list[tuple[int, int]]]]:
    """Prices and (departure, arrival) by the number of the flight or train whose line states them;
    lines with several numbers say nothing."""
    journeys: dict[str, tuple[list[float], list[tuple[int, int]]]] = {}
    for line in _lines(answer):
        if len(numbers := set(SERVICE_NUMBER.findall(line))) == 1:
            prices, hours = journeys.setdefault(numbers.pop(), ([], []))
            clocks = _values(line, "clock")
            prices += _values(line, "price")
            hours += _values(line, "hours") or ([(clocks[0], clocks[1])] if len(clocks) == 2 else [])
    return journeys


def _better(
    wanted: CompareConstraints, chosen: str | None, journeys: dict[str, tuple[list[float], list[tuple[int, int]]]]
) -> Iterator[str]:
    """A journey that the answer states to be cheaper, or faster, than the one it recommends,
    where no other wish can stand against it."""
    limits = (wanted.arrive_by,) if wanted.priority == "cheap" else (wanted.arrive_by, wanted.max_price_yuan)
    if wanted.priority is None or any(limit is not None for limit in limits):
        return
    if wanted.priority == "cheap":
        cost = {number: min(prices) for number, (prices, _) in journeys.items() if prices}
    else:
        cost = {
            number: min((arrives - departs) % 1440 for departs, arrives in hours)
            for number, (_, hours) in journeys.items()
            if hours
        }
    if chosen in cost and min(cost.values()) < cost[chosen]:
        better = {"cheap": "cheaper", "fast": "faster"}[wanted.priority]
        yield (
            f"The answer recommends {chosen}, but by its own words "
            f"{min(cost, key=cost.__getitem__)} is {better}, which is asked for."
        )


def _direction(wanted: DirectionConstraints, answer: str) -> Iterator[str]:
    for stop in wanted.stops:
        if _place_of(stop, answer) < 0 and _short(stop) not in answer.lower():
            yield f"The answer does not name the stop {stop}."
    ways = [[_place_of(stop, line) for stop in wanted.stops] for line in answer.splitlines()]
    whole = [places for places in ways if min(places, default=-1) >= 0]
    if whole and not any(places == sorted(places) for places in whole):
        yield f"The answer names the stops in another order than the query: {', '.join(wanted.stops)}."
    if wanted.mode and not _goes_by(wanted.mode, answer):
        yield f"The answer does not say how to go by {wanted.mode}, as the query asks."
    own = [line for line in answer.splitlines() if wanted.mode and _goes_by(wanted.mode, line)]
    minutes = [value for line in own for value in _values(line, "duration")] or _values(answer, "duration")
    if wanted.max_minutes is not None and minutes and min(minutes) > wanted.max_minutes:
        yield (
            f"The answer states a duration of {min(minutes):g} minutes, "
            f"but the way may take {wanted.max_minutes:g} at most."
        )


_READERS: dict[str, Callable[..., Iterator[str]]] = {
    "Search": _search,
    "1-Day": _days,
    "M-Day": _days,
    "Compare": _compare,
    "Direction": _direction,
}


def _lines(answer: str) -> list[str]:
    return [line for line in re.split(r"[\n;；。]", answer) if line.strip()]


def _values(text: str, kind: str) -> list:
    """The values of a kind of fact, in the text's order."""
    return [fact.value for fact in read_facts(text) if fact.kind == kind]


def _names(kind: str, text: str) -> bool:
    """Whether a text names a kind of place by the word of the categories, which names of places end with."""
    return re.search(rf"\b{re.escape(kind)}(?:e?s)?\b", text, re.IGNORECASE) is not None or (
        kind in CATEGORIES and CATEGORIES[kind] in text
    )


def _is_of_a_stop(line: str) -> bool:
    """Whether a line may be about a place to visit: it has a price or a time, and is of no journey, way or sum."""
    is_other = SERVICE_NUMBER.search(line) or TOTAL.search(line) or any(_goes_by(mode, line) for mode in MODES)
    return not is_other and any(fact.kind in ("price", "clock", "hours") for fact in read_facts(line))


def _is_missing(kind: str, answer: str) -> bool:
    """Whether no word of a text can mean this kind of place; of a kind that the world lacks nobody can say."""
    return kind in CATEGORIES and not _names(kind, answer) and not any(word in answer.lower() for word in _KINDS[kind])


def _goes_by(mode: str, text: str) -> bool:
    return re.search("|".join(MODES[mode]), text, re.IGNORECASE) is not None


def _place_of(stop: str, text: str) -> int:
    """Where a text first names a stop, in either language; -1: nowhere."""
    first, _, kind = stop.lower().partition(" ")
    in_chinese = [zh + CATEGORIES[kind] for en, zh in PREFIXES if en.lower() == first and kind in CATEGORIES]
    return min((place for name in [stop.lower(), *in_chinese] if (place := text.lower().find(name)) >= 0), default=-1)


def _short(stop: str) -> str:
    """What is left of a name where it is shortened: its first word, or first two Chinese characters."""
    return stop.lower().split()[0] if stop.isascii() else stop[:2].lower()
