"""Entities and their facts, exact (Eq. 1, InfoAgent) and made vague (Eq. 2).

Questions are made from facts, and answers are checked against them. To make a fact vague, f_entity replaces names by
descriptions, and f_static turns dates and numbers into ranges. A `Clue` keeps the wording together with the exact
condition, so the entities that meet it can be counted. f_llm, the rewording by an LLM, comes last and takes the whole
question: `extraction.rephrase`.
"""

import random
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from arenarl.domains.stated_facts import place_of

SUBJECT, OBJECT = "<subject>", "<object>"  # placeholders in a pattern for the two entities of a fact
_MONTH = r"(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_DATE = rf"(\bon )?(?:(?:\b\d{{1,2}} )?{_MONTH} (?:\d{{1,2}}, )?)?\b(1\d{{3}}|20\d{{2}})\b(?!,\d)"
_DATE_OR_NUMBER = re.compile(rf"{_DATE}|\b\d{{1,3}}(?:,\d{{3}})+\b|\b\d+\b")
_PRONOUN = re.compile(r"^(?:He|She|It|They)\b")
_THIRDS = (("early ", 0, 3), ("mid-", 4, 6), ("late ", 7, 9))  # thirds of a decade: word, first and last digit


@dataclass(frozen=True)
class Fact:
    """A fact of an entity, and the sentence of its page that states it.

    >>> Fact("x/kelmar", "founding year", "1643", "Kelmar was founded in 1643.").number
    1643
    """

    url: str  # the entity whose page has the sentence
    attribute: str
    value: str  # as written in the sentence; for a relation, the other entity's name
    sentence: str
    target: str | None = None  # for a relation, the other entity's url

    @property
    def number(self) -> int | None:
        digits = self.value.replace(",", "")
        return int(digits) if digits.isascii() and digits.isdigit() else None


@dataclass(frozen=True)
class Entity:
    """A node v = (name, url, facts) of Eq. 1, InfoAgent."""

    url: str
    name: str
    kind: str  # person, place, work, team, event; any word in a corpus of your own
    facts: tuple[Fact, ...]
    aliases: tuple[str, ...] = ()

    @cached_property
    def single(self) -> dict[str, Fact]:
        """Facts by attribute, relations included; attributes with several values are left out."""
        counts = Counter(fact.attribute for fact in self.facts)
        return {fact.attribute: fact for fact in self.facts if counts[fact.attribute] == 1}

    @property
    def noun(self) -> str:
        """A noun for a text that must not name the entity: "novel", "harbour town"."""
        fact = self.single.get("type")
        return fact.value if fact and fact.target is None else self.kind


@dataclass(frozen=True)
class Clue:
    """A vague fact of a hidden entity: its `attribute` has this `value`, or a number from `low` to `high`."""

    attribute: str
    pattern: str  # the wording, with <subject> for the entity
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
    """Return words for a decade or a part of it, with its first and last year.

    >>> fuzzy_year(1992, random.Random(0))
    ('the early 1990s', 1990, 1993)
    """
    decade = year - year % 10
    if rng.random() < 0.25:
        return f"the {decade}s", decade, decade + 9
    word, first, last = next(third for third in _THIRDS if third[1] <= year % 10 <= third[2])
    return f"the {word}{decade}s", decade + first, decade + last


def fuzzy_number(number: int) -> tuple[str, int, int]:
    """Return words for a number rounded to its first digit, with the lowest and highest number that they cover.

    >>> fuzzy_number(42), fuzzy_number(8400), fuzzy_number(7)
    (('around 40', 35, 44), ('around 8,000', 7500, 8499), ('5 to 9', 5, 9))
    """
    if number < 10:
        return ("fewer than 5", 0, 4) if number < 5 else ("5 to 9", 5, 9)
    unit = 10 ** (len(str(number)) - 1)
    near = (number + unit // 2) // unit * unit
    return f"around {near:,}", near - unit // 2, near + unit // 2 - 1


def fuzzy_static(text: str, rng: random.Random) -> str:
    """f_static: replace every date in a text by a part of a decade, and every other number by a rounded one.

    >>> fuzzy_static("born on 14 March 1879, the third of 12 children", random.Random(0))
    'born in the late 1870s, the third of around 10 children'
    """

    def vague(match: re.Match) -> str:
        on, year = match.groups()
        if year:
            return f"{'in ' if on else ''}{fuzzy_year(int(year), rng)[0]}"
        return fuzzy_number(int(match[0].replace(",", "")))[0]

    return _DATE_OR_NUMBER.sub(vague, text)


def pattern_of(fact: Fact, entity: Entity) -> str:
    """f_entity: return the fact's sentence with <subject> for its entity and <object> for a relation's other entity.

    Other entities that the page names become "someone or something else".

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
    """Apply f_entity, then f_static, to a fact that is not a relation. Only a bare number becomes vague."""
    pattern = pattern_of(fact, entity)
    if (place := place_of(fact.value, pattern)) < 0:  # the value was part of a hidden name
        return Clue(fact.attribute, pattern, value=fact.value)
    value, condition = fact.value, {"value": fact.value}
    if fact.number is not None:
        is_year = 1000 <= fact.number <= 2099 and "," not in fact.value
        value, low, high = fuzzy_year(fact.number, rng) if is_year else fuzzy_number(fact.number)
        condition = {"low": low, "high": high}
    before = fuzzy_static(pattern[:place], rng)
    return Clue(fact.attribute, before + value + fuzzy_static(pattern[place + len(fact.value) :], rng), **condition)
