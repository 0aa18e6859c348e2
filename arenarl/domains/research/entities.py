"""Entities and their facts: what a page says, in a form that questions can be made of and answers checked against (Eq.
1, InfoAgent)."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property


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
    def attributes(self) -> dict[str, str]:
        """What has one value and is no relation."""
        return {attribute: fact.value for attribute, fact in self.single.items() if fact.target is None}

    @cached_property
    def single(self) -> dict[str, Fact]:
        """The facts whose attribute has one value, relations included."""
        counts = Counter(fact.attribute for fact in self.facts)
        return {fact.attribute: fact for fact in self.facts if counts[fact.attribute] == 1}

    @property
    def noun(self) -> str:
        """What it is, for a text that must not name it: "novel", "harbour town"."""
        return self.attributes.get("type", self.kind)
