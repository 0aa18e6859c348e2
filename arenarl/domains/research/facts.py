"""Entities and their facts, exact (Eq. 1, InfoAgent) and made vague (Eq. 2).

A fact is what a page says, in a form that questions can be made of and answers checked against. To make it vague,
f_entity hides names behind what they stand for, and f_static turns dates and numbers into ranges. What a vague fact
still demands is kept beside its words (`Clue`), so that the entities it fits can be counted. f_llm, the rephrasing by
an LLM, comes last and works on the whole question: `extraction.rephrase`.
"""

import random
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from arenarl.domains.stated_facts import place_of

SUBJECT, OBJECT = "<subject>", "<object>"  # stand in a pattern for the two entities of a fact
_MONTH = r"(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_DATE = re.compile(rf"(\bon )?(?:\d{{1,2}} )?(?:{_MONTH} )?(?:\d{{1,2}}, )?\b(1\d{{3}}|20\d{{2}})\b(?!,\d)")
_NUMBER = re.compile(r"\b\d{1,3}(?:,\d{3})+\b|\b\d+\b")
_PRONOUN = re.compile(r"^(?:He|She|It|They)\b")
_THIRDS = (("early ", 0, 3), ("mid-", 4, 6), ("late ", 7, 9))  # of a decade: how it is called, first and last year


@dataclass(frozen=True)
class Fact:
    """One fact of an entity, and the sentence of its page that says it.

    >>> Fact("x/kelmar", "founding year", "1643", "Kelmar was founded in 1643.").number
    1643
    """

    url: str  # of the entity whose page says so
    attribute: str
    value: str  # as it stands in the sentence; of a relation the other entity's name
    sentence: str
    target: str | None = None  # of a relation: the other entity's url

    @property
    def number(self) -> int | None:
        digits = self.value.replace(",", "")
        return int(digits) if digits.isascii() and digits.isdigit() else None


@dataclass(frozen=True)
class Entity:
    """A node v = (name, url, facts) of Eq. 1, InfoAgent."""

    url: str
    name: str
    kind: str  # person, place, work, team, event; in a corpus of your own whatever it says
    facts: tuple[Fact, ...]
    aliases: tuple[str, ...] = ()

    @cached_property
    def single(self) -> dict[str, Fact]:
        """The facts whose attribute has one value, relations included."""
        counts = Counter(fact.attribute for fact in self.facts)
        return {fact.attribute: fact for fact in self.facts if counts[fact.attribute] == 1}

    @property
    def noun(self) -> str:
        """What it is, for a text that must not name it: "novel", "harbour town"."""
        fact = self.single.get("type")
        return fact.value if fact and fact.target is None else self.kind


@dataclass(frozen=True)
class Clue:
    """A vague fact of a hidden entity: its `attribute` has this `value`, or a number from `low` to `high`."""

    attribute: str
    pattern: str  # says it, with <subject> for the entity
    value: str | None = None
    low: int | None = None
    high: int | None = None

    def holds(self, fact: Fact) -> bool:
        if fact.attribute != self.attribute:
            return False
        if self.low is None:
            return fact.value == self.value
        return fact.number is not None and self.low <= fact.number <= self.high


def fuzzy_year(year: int, rng: random.Random) -> tuple[str, int, int]:
    """A decade or a part of one, with its first and last year.

    >>> fuzzy_year(1992, random.Random(0))
    ('the early 1990s', 1990, 1993)
    """
    decade = year - year % 10
    if rng.random() < 0.25:
        return f"the {decade}s", decade, decade + 9
    word, first, last = next(third for third in _THIRDS if third[1] <= year % 10 <= third[2])
    return f"the {word}{decade}s", decade + first, decade + last


def fuzzy_number(number: int) -> tuple[str, int, int]:
    """About so many, with the least and the most that the words stand for: numbers that round to the same first digit.

    >>> fuzzy_number(42), fuzzy_number(8400), fuzzy_number(7)
    (('around 40', 35, 44), ('around 8,000', 7500, 8499), ('5 to 9', 5, 9))
    """
    if number < 10:
        return ("fewer than 5", 0, 4) if number < 5 else ("5 to 9", 5, 9)
    unit = 10 ** (len(str(number)) - 1)
    near = (number + unit // 2) // unit * unit
    return f"around {near:,}", near - unit // 2, near + unit // 2 - 1


def fuzzy_static(text: str, rng: random.Random) -> str:
    """f_static: every date of a text becomes a part of a decade, every other number a round one.

    >>> fuzzy_static("born on 14 March 1879, the third of 12 children", random.Random(0))
    'born in the late 1870s, the third of around 10 children'
    """
    dates = list(_DATE.finditer(text))
    starts, ends = [0, *(date.end() for date in dates)], [*(date.start() for date in dates), len(text)]
    between = [_NUMBER.sub(_fuzzy_digits, text[start:end]) for start, end in zip(starts, ends, strict=True)]
    vague = [f"{'in ' if date[1] else ''}{fuzzy_year(int(date[2]), rng)[0]}" for date in dates]
    return "".join(part for pair in zip(between, [*vague, ""], strict=True) for part in pair)


def _fuzzy_digits(match: re.Match) -> str:
    return fuzzy_number(int(match[0].replace(",", "")))[0]


def pattern_of(fact: Fact, entity: Entity) -> str:
    """f_entity: the fact's sentence with <subject> for the entity whose page has it, <object> for a relation's other
    end, and what they are for all else that the page names.

    >>> fact = Fact("x/kelmar", "home team", "Kelmar Foxes", "Kelmar is the home of Kelmar Foxes.", "x/kelmar-foxes")
    >>> pattern_of(fact, Entity("x/kelmar", "Kelmar", "place", (fact,)))
    '<subject> is the home of <object>.'
    """
    hidden = {entity.name: SUBJECT}
    hidden |= {other.value: "someone or something else" for other in entity.facts if other.target}
    if fact.target:
        hidden[fact.value] = OBJECT
    longest_first = sorted(hidden, key=len, reverse=True)
    text = re.sub("|".join(map(re.escape, longest_first)), lambda name: hidden[name[0]], fact.sentence)
    if SUBJECT not in text:
        text = _PRONOUN.sub(SUBJECT, text, count=1)
    return text if SUBJECT in text else f"Of {SUBJECT} it is said: {text}"


def fuzzify(fact: Fact, entity: Entity, rng: random.Random) -> Clue:
    """f_static after f_entity, on a fact that is no relation. A value that is no bare number stays as it is."""
    pattern = pattern_of(fact, entity)
    if (place := place_of(fact.value, pattern)) < 0:  # hidden with a name
        return Clue(fact.attribute, pattern, value=fact.value)
    value, demand = fact.value, {"value": fact.value}
    if fact.number is not None:
        is_year = 1000 <= fact.number <= 2099 and "," not in fact.value
        value, low, high = fuzzy_year(fact.number, rng) if is_year else fuzzy_number(fact.number)
        demand = {"low": low, "high": high}
    before = fuzzy_static(pattern[:place], rng)
    return Clue(fact.attribute, before + value + fuzzy_static(pattern[place + len(fact.value) :], rng), **demand)
