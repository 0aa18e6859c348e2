"""Facts made vague (Eq. 2, InfoAgent): f_entity hides names behind what they stand for,
f_static turns dates and numbers into ranges.

f_llm, the rephrasing by an LLM, comes last and works on the whole question: `rephrasing`. What a vague fact still
demands is kept beside its words (`Clue`), so that the entities it fits can be counted.
"""

import random
import re
from dataclasses import dataclass

from arenarl.domains.research.entities import Entity, Fact
from arenarl.domains.stated_facts import place_of

SUBJECT, OBJECT = "<subject>", "<object>"  # stand in a pattern for the two entities of a fact
_MONTH = r"(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_DATE = re.compile(rf"(\bon )?(?:\d{{1,2}} )?(?:{_MONTH} )?(?:\d{{1,2}}, )?\b(1\d{{3}}|20\d{{2}})\b(?!,\d)")
_NUMBER = re.compile(r"\b\d{1,3}(?:,\d{3})+\b|\b\d+\b")
_PRONOUN = re.compile(r"^(?:He|She|It|They)\b")
_THIRDS = (("early ", 0, 3), ("mid-", 4, 6), ("late ", 7, 9))  # of a decade: how it is called, first and last year


@dataclass(frozen=True)
class Clue:
    """A vague fact of an entity that is not named.

    `pattern` says it with <subject> for the entity; it holds for entities whose `attribute` has this `value`, or a
    number from `low` to `high`.
    """

    attribute: str
    pattern: str
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


def fuzzy_static(text: str, rng: random.Random) -> tuple[str, int | None, int | None]:
    """f_static: every date of a text becomes a part of a decade, every other number a round one;
    and the range of the first of them.

    >>> fuzzy_static("born on 14 March 1879, the third of 12 children", random.Random(0))
    ('born in the late 1870s, the third of around 10 children', 1877, 1879)
    """
    ranges: list[tuple[int, int]] = []

    def keep(fuzzy: tuple[str, int, int]) -> str:
        ranges.append(fuzzy[1:])
        return fuzzy[0]

    parts, end = [], 0
    for date in _DATE.finditer(text):
        parts += [
            (text[end : date.start()], False),
            (f"{'in ' if date[1] else ''}{keep(fuzzy_year(int(date[2]), rng))}", True),
        ]
        end = date.end()
    parts.append((text[end:], False))
    said = [
        part if is_done else _NUMBER.sub(lambda n: keep(fuzzy_number(int(n[0].replace(",", "")))), part)
        for part, is_done in parts
    ]
    low, high = ranges[0] if ranges else (None, None)
    return "".join(said), low, high


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
    """f_static after f_entity, on a fact that is no relation.
    A value that is no bare number is demanded as it is, so the words leave it alone."""
    pattern = pattern_of(fact, entity)
    if (place := place_of(fact.value, pattern)) < 0:  # hidden with a name
        return Clue(fact.attribute, pattern, value=fact.value)
    before, after = pattern[:place], pattern[place + len(fact.value) :]
    if fact.number is None:
        return Clue(
            fact.attribute, fuzzy_static(before, rng)[0] + fact.value + fuzzy_static(after, rng)[0], value=fact.value
        )
    is_year = 1000 <= fact.number <= 2099 and "," not in fact.value
    said, low, high = fuzzy_year(fact.number, rng) if is_year else fuzzy_number(fact.number)
    return Clue(fact.attribute, fuzzy_static(before, rng)[0] + said + fuzzy_static(after, rng)[0], low=low, high=high)
