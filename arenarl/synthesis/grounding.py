"""Find the facts of an answer without support in tool results or query.

The search has no truth, so it compares values: a fact has support if its value occurs anywhere in a tool result,
whatever it describes. A value about the wrong thing passes; the LLM can find that. An honest answer must never fail, so
values that no tool returns do not count as facts, such as a plan's own times, sums and list numbers. These exceptions
are our choice.
"""

import datetime
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from arenarl.domains.stated_facts import (
    SERVICE_NUMBER,
    TOTAL,
    Fact,
    clocks_of,
    leaves_of,
    numbers_of,
    read_facts,
    starts_with_visit,
    with_clocks,
)
from arenarl.trajectory import Query, Trajectory, parse_json

_DERIVED = re.compile(  # words of lines that sum up or compare
    TOTAL.pattern
    + r"|\bsum\b|altogether|on average|per day|\bsav(?:es?|ings?)\b|cheaper|faster|slower|longer|shorter|difference"
    r"|more expensive"
    r"|小计|总费用|平均|节省|便宜|更快|更慢|相差|[\d)]\s?[x×*+=]\s?[¥￥$(\d]",
    re.IGNORECASE,
)
# words of lines whose durations the plan decides
_STAY = re.compile(r"visit|\bstay|\bspend|\ballow|explor|\bbreak\b|游览|停留|参观|逗留|预留|休息", re.IGNORECASE)
_OPENING = re.compile(r"\bopens?\b|opening|\bhours\b|营业|开放|开门", re.IGNORECASE)
_NUMBERING = re.compile(  # numbers of lists, headings and steps
    r"^[\s#>*|-]*(?:\d{1,3}(?:\.\d{1,2}){0,3}[.)、）:：](?!\d)|\d{1,2}(?:\.\d{1,2}){1,3}\s(?=(?-i:[A-Z]))"
    r"|(?:step|day|part|section|chapter)\s\d{1,4})"
    r"|^#+\s?\d{1,2}(?:\.\d{1,2}){1,3}\s",
    re.IGNORECASE,
)
_SAYINGS = {("percentage", 100), ("duration", 24 * 60)}  # 100% sure, open 24 hours
# minutes; shorter hours belong to the plan, unless the line is about opening hours or a timetable
_SHORTEST_OPENING = 5 * 60
_DAYS_AHEAD = 14  # a plan may use this many days after a date in the query
_AMOUNTS = ("price", "distance", "duration", "percentage")


def ungrounded(query: Query, trajectory: Trajectory) -> list[Fact]:
    """Return the answer's facts without support in tool results or query, each once, in the answer's order."""
    evidence = _Evidence(query, trajectory)
    facts = {(fact.kind, fact.value): fact for line in trajectory.answer.splitlines() for fact in _facts_of(line)}
    return [fact for fact in facts.values() if not evidence.supports(fact)]


def _facts_of(line: str) -> Iterator[Fact]:
    """Yield the facts of a line that must come from a tool result or the query."""
    line = with_clocks(_NUMBERING.sub(" ", line))
    is_timetable = SERVICE_NUMBER.search(line) is not None
    has_opening_hours = is_timetable or _OPENING.search(line) is not None
    exempt = {*(_AMOUNTS if _DERIVED.search(line) else ()), *(["duration"] if _STAY.search(line) else [])}
    exempt |= set() if is_timetable else {"clock"}  # the plan chooses its own times
    facts = [fact for fact in read_facts(line) if fact.kind not in exempt]
    visits = [fact for fact in facts if fact.kind == "hours"][:1] if starts_with_visit(line) else []
    for fact in facts:
        is_short = fact.kind == "hours" and (fact.value[1] - fact.value[0]) % 1440 < _SHORTEST_OPENING
        is_visit = fact in visits or is_short and not has_opening_hours
        is_count = fact.kind == "number" and fact.value < 100 and fact.text.isdigit()
        if not (is_visit or is_count or (fact.kind, fact.value) in _SAYINGS):
            yield fact


class _Evidence:
    """All values in query and tool results, by kind; amounts also sorted, for lookup within a tolerance."""

    def __init__(self, query: Query, trajectory: Trajectory):
        # observations of text actions have the role "user"
        results = [message["content"] for message in trajectory.messages if message["role"] in ("tool", "user")]
        # errors are left out because they repeat the policy's own words
        texts = [query.query, *(_lines_of_json(text) for text in results if not text.startswith("Error"))]
        self.text = _normal_form("\n".join(texts))
        self.values: dict[str, set] = defaultdict(set)
        for text in texts:
            self._read(text)
        dates = [fact.value for fact in read_facts(query.query) if fact.kind == "date"]
        self.values["date"].update(day for date in dates for day in _days_after(*date))
        self.sorted = {kind: sorted(self.values[kind]) for kind in (*_AMOUNTS, "number", "any")}

    def _read(self, text: str) -> None:
        for fact in read_facts(text):
            self.values[fact.kind].add(fact.value)
        clocks = clocks_of(text)
        self.values["clock"].update(clocks)
        for start, end in zip(clocks, clocks[1:], strict=False):  # neighbouring fields of a timetable
            self.values["hours"] |= {(start, end), (end, start)}
            self.values["duration"].add((end - start) % 1440)
        self.values["any"] |= self.values["number"] | numbers_of(text)

    def supports(self, fact: Fact) -> bool:
        """Return True if the value occurs. A number without a unit counts in any unit: metres or km, minutes or
        seconds, share or percent."""
        if fact.kind == "url":
            url = re.sub(r"^(?:https?://)?(?:www\.)?|#.*$|/$", "", _normal_form(fact.value))
            return re.search(rf"{re.escape(url)}/?(?![a-z0-9_/?=&%-]|\.[a-z0-9])", self.text) is not None
        if fact.kind == "citation":
            return _normal_form(fact.value) in self.text
        if fact.kind == "date":
            same_day = [date for date in self.values["date"] if date[1:] == fact.value[1:]]
            return any(date == fact.value or None in (date[0], fact.value[0]) for date in same_day)
        if fact.kind in ("hours", "clock", "service"):
            return fact.value in self.values[fact.kind]
        if fact.kind == "number":
            return self._has_value("any", fact, 1)
        scales = {"price": (1,), "distance": (1, 1000), "duration": (1, 1 / 60), "percentage": (1, 100)}[fact.kind]
        return self._has_value(fact.kind, fact, 1) or any(self._has_value("number", fact, scale) for scale in scales)

    def _has_value(self, kind: str, fact: Fact, scale: float) -> bool:
        """Return True if a number of this kind, times `scale`, equals the fact within its tolerance."""
        slack = fact.within + 1e-9 * max(1.0, fact.value)
        known, least = self.sorted[kind], (fact.value - slack) / scale
        index = bisect_left(known, least)
        return index < len(known) and known[index] <= (fact.value + slack) / scale


def _lines_of_json(text: str) -> str:
    """Return a JSON result as one key or value per line, without escapes. A key may be a train number."""
    try:
        return "\n".join(leaves_of(parse_json(text), with_keys=True))
    except ValueError:
        return text


def _normal_form(text: str) -> str:
    return " ".join(text.casefold().split())


def _days_after(year: int | None, month: int, day: int) -> Iterator[tuple[int | None, int, int]]:
    try:
        first = datetime.date(year or 2024, month, day)
    except ValueError:  # not a calendar day
        return
    for days in range(1, _DAYS_AHEAD + 1):
        later = first + datetime.timedelta(days=days)
        yield later.year if year else None, later.month, later.day
