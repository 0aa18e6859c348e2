"""Which facts of an answer nothing bears out that the policy was told: what tools returned, and the query.

An inspector knows no world, so it looks for values: a fact is borne out if its value stands anywhere in a tool result,
whatever it is said of there. What it lets pass may still be said of the wrong place, which is the LLM's to see. What it
must not do is to blame an honest answer, so that what no tool returns by its nature is no fact here: a plan's own
times, sums, list numbers. These exceptions are our choice.
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

_DERIVED = re.compile(  # a line of this kind reckons: it sums up, or compares
    TOTAL.pattern
    + r"|\bsum\b|altogether|on average|per day|\bsav(?:es?|ings?)\b|cheaper|faster|slower|longer|shorter|difference"
    r"|more expensive"
    r"|小计|总费用|平均|节省|便宜|更快|更慢|相差|[\d)]\s?[x×*+=]\s?[¥￥$(\d]",
    re.IGNORECASE,
)
# how long, a plan decides
_STAY = re.compile(r"visit|\bstay|\bspend|\ballow|explor|\bbreak\b|游览|停留|参观|逗留|预留|休息", re.IGNORECASE)
_OPENING = re.compile(r"\bopens?\b|opening|\bhours\b|营业|开放|开门", re.IGNORECASE)
_NUMBERING = re.compile(  # of lists, headings and steps
    r"^[\s#>*|-]*(?:\d{1,3}(?:\.\d{1,2}){0,3}[.)、）:：](?!\d)|\d{1,2}(?:\.\d{1,2}){1,3}\s(?=(?-i:[A-Z]))"
    r"|(?:step|day|part|section|chapter)\s\d{1,4})"
    r"|^#+\s?\d{1,2}(?:\.\d{1,2}){1,3}\s",
    re.IGNORECASE,
)
_SAYINGS = {("percentage", 100), ("duration", 24 * 60)}  # 100% sure, open 24 hours
# minutes: a shorter range of hours is a plan's, unless its line is of opening hours or a timetable
_SHORTEST_OPENING = 5 * 60
_DAYS_AHEAD = 14  # of a date that the query names, a plan may name too
_AMOUNTS = ("price", "distance", "duration", "percentage")


def ungrounded(query: Query, trajectory: Trajectory) -> list[Fact]:
    """The facts of the answer that neither a tool result nor the query bears out, each once, in the answer's order."""
    evidence = _Evidence(query, trajectory)
    stated = {(fact.kind, fact.value): fact for line in trajectory.answer.splitlines() for fact in _stated(line)}
    return [fact for fact in stated.values() if not evidence.bears_out(fact)]


def _stated(line: str) -> Iterator[Fact]:
    """The facts of a line that somebody must have told the policy."""
    line = with_clocks(_NUMBERING.sub(" ", line))
    is_timetable = SERVICE_NUMBER.search(line) is not None
    is_short_opening = is_timetable or _OPENING.search(line) is not None
    exempt = {*(_AMOUNTS if _DERIVED.search(line) else ()), *(["duration"] if _STAY.search(line) else [])}
    exempt |= set() if is_timetable else {"clock"}  # when to be somewhere is the plan's own
    facts = [fact for fact in read_facts(line) if fact.kind not in exempt]
    visits = [fact for fact in facts if fact.kind == "hours"][:1] if starts_with_visit(line) else []
    for fact in facts:
        if fact in visits:
            continue
        is_visit = (
            fact.kind == "hours" and not is_short_opening and (fact.value[1] - fact.value[0]) % 1440 < _SHORTEST_OPENING
        )
        is_count = fact.kind == "number" and fact.value < 100 and fact.text.isdigit()
        if not (is_visit or is_count or (fact.kind, fact.value) in _SAYINGS):
            yield fact


class _Evidence:
    """All values that the policy was told, by kind: those of kinds with amounts sorted,
    to be looked up within what a fact may be off."""

    def __init__(self, query: Query, trajectory: Trajectory):
        # text actions are answered as "user"
        told = [message["content"] for message in trajectory.messages if message["role"] in ("tool", "user")]
        # an error repeats what the policy wrote
        texts = [query.query, *(_readable(text) for text in told if not text.startswith("Error"))]
        self.text = _same("\n".join(texts))
        self.values: dict[str, set] = defaultdict(set)
        for text in texts:
            self._read(text)
        self.values["date"].update(
            day for fact in read_facts(query.query) if fact.kind == "date" for day in _days_after(*fact.value)
        )
        self.sorted = {kind: sorted(self.values[kind]) for kind in (*_AMOUNTS, "number", "any")}

    def _read(self, text: str) -> None:
        for fact in read_facts(text):
            self.values[fact.kind].add(fact.value)
        clocks = clocks_of(text)
        self.values["clock"].update(clocks)
        for start, end in zip(clocks, clocks[1:], strict=False):  # a timetable's fields stand side by side
            self.values["hours"] |= {(start, end), (end, start)}
            self.values["duration"].add((end - start) % 1440)
        self.values["any"] |= self.values["number"] | numbers_of(text)

    def bears_out(self, fact: Fact) -> bool:
        """Whether the value was told. Numbers without a unit may be anything:
        metres or km, minutes or seconds, a share or percent."""
        if fact.kind == "url":
            url = re.sub(r"^(?:https?://)?(?:www\.)?|#.*$|/$", "", _same(fact.value))
            return re.search(rf"{re.escape(url)}/?(?![a-z0-9_/?=&%-]|\.[a-z0-9])", self.text) is not None
        if fact.kind == "citation":
            return _same(fact.value) in self.text
        if fact.kind == "date":
            return any(
                known[1:] == fact.value[1:] and None in (known[0], fact.value[0]) or known == fact.value
                for known in self.values["date"]
            )
        if fact.kind in ("hours", "clock", "service"):
            return fact.value in self.values[fact.kind]
        if fact.kind == "number":
            return self._holds("any", fact, 1)
        scales = {"price": (1,), "distance": (1, 1000), "duration": (1, 1 / 60), "percentage": (1, 100)}[fact.kind]
        return self._holds(fact.kind, fact, 1) or any(self._holds("number", fact, scale) for scale in scales)

    def _holds(self, kind: str, fact: Fact, scale: float) -> bool:
        """Whether a number of this kind, times `scale`, is the fact's within what that may be off."""
        slack = fact.within + 1e-9 * max(1.0, fact.value)
        known, least = self.sorted[kind], (fact.value - slack) / scale
        index = bisect_left(known, least)
        return index < len(known) and known[index] <= (fact.value + slack) / scale


def _readable(text: str) -> str:
    """A result without JSON's escapes and commas: one key or value a line.
    A timetable may have the trains' numbers as keys."""
    try:
        return "\n".join(leaves_of(parse_json(text), with_keys=True))
    except ValueError:
        return text


def _same(text: str) -> str:
    return " ".join(text.casefold().split())


def _days_after(year: int | None, month: int, day: int) -> Iterator[tuple[int | None, int, int]]:
    try:
        first = datetime.date(year or 2024, month, day)
    except ValueError:  # no such day
        return
    for later in range(1, _DAYS_AHEAD + 1):
        one = first + datetime.timedelta(days=later)
        yield one.year if year else None, one.month, one.day
