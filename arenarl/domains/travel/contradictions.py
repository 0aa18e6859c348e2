"""Find contradictions between a travel answer and its query's constraints, without knowledge of the world.

The inspection of training data uses them; the judge uses `truth`, which checks against the world. An answer is read for
prices, hours, distances, durations, flight and train numbers, stops and kinds of place, in English and Chinese. An
ambiguous text does not contradict: of several prices, a single one within the limit is enough.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from pydantic import ValidationError

from arenarl.domains import stated_facts as forms
from arenarl.domains.stated_facts import SERVICE_NUMBER, TOTAL, minutes_of, read_facts
from arenarl.domains.travel import constraints
from arenarl.domains.travel.names import CATEGORIES, EVENING, EVENING_WORDS, MODES, NO_SUM, PREFIXES
from arenarl.trajectory import Query

_KINDS = {  # other words for a category in an answer
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
# the line of a stop begins with the time of the visit
_VISIT = re.compile(rf"[^A-Za-z\d]{{0,40}}(\d{{1,2}}:\d\d)(?:{forms.DASH}\d{{1,2}}:\d\d)?(?!\d|:\d)")
# flight or train number -> prices, (departure, arrival) times
_Journeys = dict[str, tuple[list[float], list[tuple[int, int]]]]
_SHORTEST_OPENING = 3 * 60  # minutes: a shorter range may be a visit


def contradictions_of(query: Query, answer: str) -> list[str]:
    """Return one sentence for each constraint that the answer contradicts; none for constraints of an unknown form."""
    if query.subtask not in constraints.FORMS or not answer.strip():
        return []
    try:
        wanted = constraints.FORMS[query.subtask].model_validate(query.constraints)
    except ValidationError:
        return []
    return list(_READERS[query.subtask](wanted, forms.with_clocks(answer)))


def _search(wanted: constraints.SearchConstraints, answer: str) -> Iterator[str]:
    prices, distances, hours = (_values(answer, kind) for kind in ("price", "distance", "hours"))
    limit, radius, clock = wanted.max_price_yuan, wanted.radius_m, wanted.open_at
    if limit is not None and prices and min(prices) > limit:
        yield f"The answer states a price of {min(prices):g} yuan, but at most {limit:g} are asked for."
    # answers round distances to 0.1 km
    if radius is not None and distances and min(distances) > 1.02 * radius:
        nearest = f"The answer states a distance of {min(distances) / 1000:g} km"
        yield f"{nearest}, but the place is to lie within {radius / 1000:g} km."
    if clock is not None and hours and not _is_open(hours, minutes_of(clock)):
        yield f"The hours that the answer states do not include {clock}, when the place is to be open."


def _days(wanted: constraints.DayConstraints, answer: str) -> Iterator[str]:
    lines = _lines(answer)
    kinds = {line: [kind for kind in wanted.categories if _names(kind, line)] for line in lines}
    stops = {kind: [line for line in lines if kinds[line] == [kind]] for kind in wanted.categories}
    # with enough stops, one of them may be of the kind under another name
    if sum(map(_is_stop, lines)) < len(wanted.categories):
        for kind in wanted.categories:
            # a kind without a word list cannot be checked
            is_named = kind not in CATEGORIES or _names(kind, answer)
            if not is_named and not any(word in answer.lower() for word in _KINDS[kind]):
                yield f"The answer names no {kind}, which the query asks for."
    for line in dict.fromkeys(line for stop in stops.values() for line in stop):
        yield from _closed_stops(line)
    if wanted.budget_yuan is not None:
        yield from _over_budget(wanted.budget_yuan, stops, lines)
    if (evening := stops.get(wanted.evening)) and _is_by_day(evening, answer):
        place = f"but the answer puts it at no evening hour: {evening[0].strip()[:200]}"
        yield f"The {wanted.evening} is to be visited in the evening, {place}"
    if wanted.from_city and not any(re.search(words, answer, re.IGNORECASE) for words in _JOURNEYS.values()):
        yield f"The answer does not say how to get there from {wanted.from_city}."


def _closed_stops(line: str) -> Iterator[str]:
    """Yield a sentence if a stop is visited outside the opening hours in its own line."""
    if SERVICE_NUMBER.search(line) or not (visit := _VISIT.match(line)):
        return
    ranges = _values(line[visit.end() :], "hours")
    hours = [(opens, closes) for opens, closes in ranges if (closes - opens) % 1440 >= _SHORTEST_OPENING]
    if hours and not _is_open(hours, minutes_of(visit[1])):
        stop = f"outside of the hours that the answer states for it: {line.strip()[:200]}"
        yield f"A stop is planned at {visit[1]}, {stop}"


def _over_budget(budget: float, stops: dict[str, list[str]], lines: Sequence[str]) -> Iterator[str]:
    """Yield a sentence if the first price of each kind of stop, or every stated total, exceeds the budget."""
    spent = 0.0
    for stop in stops.values():
        prices = [price for line in stop if not TOTAL.search(line) for price in _values(line, "price")]
        spent += sum(prices[:1])
    sums = [line for line in lines if TOTAL.search(line) and not NO_SUM.search(line)]
    totals = [price for line in sums for price in _values(line, "price")]
    if spent > budget:
        yield f"The prices that the answer states for its stops come to {spent:g} yuan, over the budget of {budget:g}."
    elif totals and min(totals) > budget:
        yield f"The answer states a total of {min(totals):g} yuan, over the budget of {budget:g}."


def _is_by_day(stop: Sequence[str], answer: str) -> bool:
    """Return True if no line of the stop puts it in the evening, by a clock time or in words."""
    clocks = [clock for line in stop for clock in _values(line, "clock")]
    clocks += [hours[0] for line in stop if forms.starts_with_visit(line) for hours in _values(line, "hours")[:1]]
    has_word = any(EVENING_WORDS.search(line) for line in stop) or (not clocks and EVENING_WORDS.search(answer))
    return not has_word and not any(clock >= minutes_of(EVENING) for clock in clocks)


def _compare(wanted: constraints.CompareConstraints, answer: str) -> Iterator[str]:
    for kind, words in _JOURNEYS.items():
        if not re.search(words, answer, re.IGNORECASE):
            yield f"The answer says nothing of {kind}, which the query wants to be compared."
    journeys, numbers = _journeys(answer), SERVICE_NUMBER.findall(answer)
    advice = [line for line in _lines(answer) if _RECOMMENDS.search(line) and SERVICE_NUMBER.search(line)]
    recommended = [number for line in advice for number in _recommendations(line)]
    chosen = next(reversed(recommended or ([] if advice else numbers)), None)  # an answer ends with what it recommends
    prices, hours = journeys.get(chosen, ([], []))
    limit, latest = wanted.max_price_yuan, wanted.arrive_by
    if limit is not None and prices and min(prices) > limit:
        yield f"The answer recommends {chosen} at {min(prices):g} yuan, but at most {limit:g} are asked for."
    if latest is not None and hours and all(not departs <= arrives <= minutes_of(latest) for departs, arrives in hours):
        yield f"The answer recommends {chosen}, which it says arrives after {latest}."
    yield from _better_journeys(wanted, chosen, journeys)


def _recommendations(line: str) -> list[str]:
    """Return the flights and trains that a line of advice recommends.

    If the line also advises against a journey, only a clause that recommends exactly one counts.
    """
    if not _AGAINST.search(line):
        return SERVICE_NUMBER.findall(line)
    clauses = [(clause, SERVICE_NUMBER.findall(clause)) for clause in _CLAUSE.split(line) if _RECOMMENDS.search(clause)]
    if any(_AGAINST.search(clause) and not numbers for clause, numbers in clauses):
        return []  # G101, though cheap, is not recommended
    return [numbers[0] for clause, numbers in clauses if len(numbers) == 1 and not _AGAINST.search(clause)]


def _journeys(answer: str) -> _Journeys:
    """Read prices and times of journeys from lines with exactly one flight or train number."""
    journeys: _Journeys = {}
    for line in _lines(answer):
        if len(numbers := set(SERVICE_NUMBER.findall(line))) == 1:
            prices, hours = journeys.setdefault(numbers.pop(), ([], []))
            clocks = _values(line, "clock")
            prices += _values(line, "price")
            hours += _values(line, "hours") or ([(clocks[0], clocks[1])] if len(clocks) == 2 else [])
    return journeys


def _better_journeys(wanted: constraints.CompareConstraints, chosen: str | None, journeys: _Journeys) -> Iterator[str]:
    """Yield a sentence if the answer states a better journey than the recommended journey, by the query's priority.

    If the query has a further limit, the better journey may break it, so nothing is yielded.
    """
    if wanted.priority is None or wanted.arrive_by is not None:
        return
    if wanted.priority == "cheap":
        cost = {number: min(prices) for number, (prices, _) in journeys.items() if prices}
    elif wanted.max_price_yuan is None:
        minutes = {number: [(end - start) % 1440 for start, end in hours] for number, (_, hours) in journeys.items()}
        cost = {number: min(durations) for number, durations in minutes.items() if durations}
    else:
        return
    if chosen in cost and min(cost.values()) < cost[chosen]:
        best, better = min(cost, key=cost.__getitem__), {"cheap": "cheaper", "fast": "faster"}[wanted.priority]
        yield f"The answer recommends {chosen}, but by its own words {best} is {better}, which is asked for."


def _direction(wanted: constraints.DirectionConstraints, answer: str) -> Iterator[str]:
    for stop in wanted.stops:
        # an answer may use only the first word, or the first two Chinese characters
        short = (stop.lower().split() or [stop])[0] if stop.isascii() else stop[:2].lower()
        if _place_of(stop, answer) < 0 and short not in answer.lower():
            yield f"The answer does not name the stop {stop}."
    ways = [[_place_of(stop, line) for stop in wanted.stops] for line in answer.splitlines()]
    whole = [places for places in ways if min(places, default=-1) >= 0]
    if whole and not any(places == sorted(places) for places in whole):
        yield f"The answer names the stops in another order than the query: {', '.join(wanted.stops)}."
    if wanted.mode and not MODES[wanted.mode].search(answer):
        yield f"The answer does not say how to go by {wanted.mode}, as the query asks."
    own = [line for line in answer.splitlines() if wanted.mode and MODES[wanted.mode].search(line)]
    minutes = [value for line in own for value in _values(line, "duration")] or _values(answer, "duration")
    limit = wanted.max_minutes
    if limit is not None and minutes and min(minutes) > limit:
        yield f"The answer states a duration of {min(minutes):g} minutes, but the way may take {limit:g} at most."


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
    """Return the values of all facts of one kind."""
    return [fact.value for fact in read_facts(text) if fact.kind == kind]


def _is_open(hours: list[tuple[int, int]], minutes: int) -> bool:
    return any(forms.is_open(opens, closes, minutes) for opens, closes in hours)


def _names(kind: str, text: str) -> bool:
    """Return whether a text has the word for a kind of place; the names of places end in it too."""
    in_english = re.search(rf"\b{re.escape(kind)}(?:e?s)?\b", text, re.IGNORECASE)
    return in_english is not None or (kind in CATEGORIES and CATEGORIES[kind] in text)


def _is_stop(line: str) -> bool:
    """Return whether a line may describe a visit: it has a price or time, but no journey, route or total."""
    is_other = SERVICE_NUMBER.search(line) or TOTAL.search(line) or any(mode.search(line) for mode in MODES.values())
    return not is_other and any(fact.kind in ("price", "clock", "hours") for fact in read_facts(line))


def _place_of(stop: str, text: str) -> int:
    """Return the first index at which a text names a stop, in either language; -1 if it does not."""
    first, _, kind = stop.lower().partition(" ")
    in_chinese = [zh + CATEGORIES[kind] for en, zh in PREFIXES if en.lower() == first and kind in CATEGORIES]
    return min((place for name in [stop.lower(), *in_chinese] if (place := text.lower().find(name)) >= 0), default=-1)
