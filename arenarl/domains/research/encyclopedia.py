"""Invents the embedded encyclopedia: persons, places, works, teams and events whose dates and relations agree.

Entities are drawn in historical order. Places are older than all persons, a teacher is older than the pupil, and works
and clubs date from their founder's adult life. Prizes go to works of the year before, and cups to existing clubs. A
page's first paragraph states each fact in one short sentence of regular form. The prose below names related entities
and states no facts.
"""

import math
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

from arenarl.domains.research import names
from arenarl.domains.research.facts import Entity, Fact
from arenarl.domains.research.pages import Page

SITE = "https://encyclopedia.example/"
TODAY = 2020
SHARES = {"place": 0.15, "team": 0.08, "person": 0.4, "event": 0.12}  # shares of all entities; the rest are works

SENTENCES = {  # attribute → sentence of a page, with the entity's {name} and the fact's {value}
    "type": "{name} is {value}.", "region": "{name} lies in {value}.",
    "founding year": "{name} was founded in {value}.", "population": "{name} has {value} people.",
    "product": "{name} is known for {value}.", "home team": "{name} is the home of {value}.",
    "birth year": "{name} was born in {value}.", "home town": "{name} grew up in {value}.",
    "death year": "{name} died in {value}.", "teacher": "{name} studied under {value}.",
    "instrument": "{name} played the {value}.", "work": "{name} created {value}.",
    "team founded": "{name} founded {value}.", "team coached": "{name} coached {value}.",
    "author": "{name} was created by {value}.", "release year": "{name} appeared in {value}.",
    "setting": "{name} is set in {value}.", "topic": "{name} is about {value}.", "prize": "{name} won {value}.",
    "ground": "{name} plays in {value}.", "founder": "{name} was founded by {value}.",
    "colour": "{name} wears {value}.", "coach": "{name} was coached by {value}.", "seats": "{name} has {value} seats.",
    "cup": "{name} won {value}.", "venue": "{name} took place in {value}.", "year": "{name} was held in {value}.",
    "winner": "{name} was won by {value}.", "opener": "{name} was opened by {value}.",
    "visitors": "{name} drew {value} visitors.", "days": "{name} lasted {value} days.",
    "event": "{name} hosted {value}.",
}  # fmt: skip
QUESTIONS = {  # attribute → question with {} for the entity, and words for a search
    "region": ("Where does {} lie?", "lies in"), "founding year": ("When was {} founded?", "founded in"),
    "population": ("How many people does {} have?", "people"), "product": ("What is {} known for?", "known for"),
    "birth year": ("When was {} born?", "born"), "home town": ("Where did {} grow up?", "grew up"),
    "death year": ("When did {} die?", "died"), "teacher": ("Who did {} study under?", "studied under"),
    "instrument": ("What did {} play?", "played"), "author": ("Who created {}?", "created by"),
    "release year": ("When did {} appear?", "appeared"), "setting": ("Where is {} set?", "set in"),
    "topic": ("What is {} about?", "about"), "ground": ("Where does {} play?", "plays in"),
    "founder": ("Who founded {}?", "founded by"), "colour": ("Which colour does {} wear?", "wears"),
    "coach": ("Who coached {}?", "coached by"), "seats": ("How many seats does {} have?", "seats"),
    "venue": ("Where did {} take place?", "took place"), "winner": ("What won {}?", "won by"),
    "year": ("When was {} held?", "held in"), "work": ("What did {} create?", "created"),
    "home team": ("Which club plays in {}?", "home of"), "team founded": ("Which club did {} found?", "founded"),
    "team coached": ("Which club did {} coach?", "coached"), "prize": ("Which prize did {} win?", "won"),
    "cup": ("Which cup did {} win?", "won"), "event": ("What did {} host?", "hosted"),
    "opener": ("Who opened {}?", "opened by"), "visitors": ("How many visitors did {} draw?", "visitors"),
    "days": ("How many days did {} last?", "lasted days"),
}  # fmt: skip


@dataclass(eq=False)
class Draft:
    """An entity whose facts are still being drawn."""

    kind: str
    name: str
    type: str
    born: int  # year
    ends: int = TODAY
    facts: list[tuple[str, "str | Draft"]] = field(default_factory=list)  # (attribute, value or other entity)
    aliases: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return SITE + self.name.lower().replace(" ", "-")

    def add(self, facts: dict[str, "str | int | Draft"]) -> None:
        for attribute, value in facts.items():
            if not isinstance(value, Draft):
                value = f"{value:,}" if attribute in _COUNTS else str(value)
            self.facts.append((attribute, value))


# facts per page, so that pages are short and their lists complete
_MOST = {"work": 2, "team founded": 2, "team coached": 2, "prize": 1, "cup": 1, "event": 2}
_COUNTS = ("population", "seats", "visitors")
_ALL_WORK_TYPES = [name for types in names.WORK_TYPES.values() for name in types]


def invent(seed: str, size: int) -> list[tuple[Entity, Page]]:
    """Return `size` entities with their pages; equal arguments give equal results in every process."""
    rng = random.Random(seed)
    counts = {kind: int(size * share) for kind, share in SHARES.items()}
    places = _places(rng, counts["place"])
    persons = _persons(rng, counts["person"], places)
    works = _works(rng, size - sum(counts.values()), persons, places)
    teams = _teams(rng, counts["team"], persons, places)
    events = _events(rng, counts["event"], persons, places, works, teams)
    return [_finish(draft, rng) for draft in (*places, *persons, *works, *teams, *events)]


def _draw_names(rng: random.Random, count: int, *parts: Sequence[str], extra: Sequence[str]) -> list[str]:
    """Draw distinct combinations of the parts. If `count` exceeds two thirds of their number, add words of `extra`."""
    pool = ["".join(words) for words in product(*parts)]
    prefixes = longest = [""]
    while len(pool) * len(prefixes) * 2 < count * 3:
        longest = [f"{word} {prefix}" for prefix in longest for word in extra if word not in prefix]
        prefixes = prefixes + longest
    picks = rng.sample(range(len(pool) * len(prefixes)), count)
    return [prefixes[pick // len(pool)] + pool[pick % len(pool)] for pick in picks]


def _slots(rng: random.Random, drafts: Sequence[Draft], attribute: str) -> list[Draft]:
    """Return each draft as often as its page may list this attribute, shuffled; callers pop from the end."""
    slots = [draft for draft in drafts for _ in range(_MOST[attribute])]
    rng.shuffle(slots)
    return slots


def _places(rng: random.Random, count: int) -> list[Draft]:
    places = []
    for name in _draw_names(rng, count, names.PLACE_STARTS, names.PLACE_ENDS, extra=names.PLACE_PREFIXES):
        place = Draft("place", name, rng.choice(names.TOWN_TYPES), rng.randint(1100, 1799))
        place.add({"region": rng.choice(names.REGIONS), "founding year": place.born})
        place.add({"population": rng.randint(8, 990) * 100, "product": rng.choice(names.PRODUCTS)})
        places.append(place)
    return places


def _persons(rng: random.Random, count: int, places: list[Draft]) -> list[Draft]:
    surnames = ["".join(parts) for parts in product(names.SURNAME_STARTS, names.SURNAME_ENDS)]
    shares = names.PROFESSIONS.items()
    professions = [profession for profession, share in shares for _ in range(math.ceil(count * share))][:count]
    rng.shuffle(professions)
    full_names = _draw_names(rng, count, [f"{name} " for name in names.GIVEN], surnames, extra=names.GIVEN)
    pairs = zip(full_names, professions, strict=True)
    persons = [Draft("person", name, profession, rng.randint(1801, 1985)) for name, profession in pairs]
    persons.sort(key=lambda person: person.born)
    by_profession: dict[str, list[Draft]] = {profession: [] for profession in names.PROFESSIONS}
    for person in persons:
        dies = person.born + rng.randint(45, 90)
        person.ends = min(dies, TODAY)
        person.add({"birth year": person.born, "home town": rng.choice(places)})
        elders = by_profession[person.type]
        start = bisect_left(elders, person.born - 45, key=lambda elder: elder.born)
        end = bisect_left(elders, person.born - 19, key=lambda elder: elder.born)
        teacher = rng.choice(elders[start:end]) if start < end else None
        if teacher and teacher.ends >= person.born + 16 and rng.random() < 0.7:
            person.add({"teacher": teacher})
        if rng.random() < 0.6:
            person.add({"instrument": rng.choice(names.INSTRUMENTS)})
        if dies <= TODAY:
            person.add({"death year": dies})
        elders.append(person)
    initials = [f"{person.name[0]}. {person.name.rsplit(' ', 1)[1]}" for person in persons]
    counts = Counter(initials)
    for person, initial in zip(persons, initials, strict=True):
        person.aliases = (initial,) if counts[initial] == 1 else ()
    return persons


def _works(rng: random.Random, count: int, persons: list[Draft], places: list[Draft]) -> list[Draft]:
    authors = _slots(rng, [person for person in persons if person.type in names.WORK_TYPES], "work")
    works = []
    for name in _draw_names(rng, count, [f"{word} " for word in names.ADJECTIVES], names.NOUNS, extra=names.ADJECTIVES):
        author = authors.pop()
        year = rng.randint(author.born + 20, min(author.ends, author.born + 75))
        work = Draft("work", name, rng.choice(names.WORK_TYPES[author.type]), year)
        work.add({"author": author, "release year": year, "setting": rng.choice(places)})
        work.add({"topic": rng.choice(names.TOPICS)})
        author.add({"work": work})
        works.append(work)
    return works


def _teams(rng: random.Random, count: int, persons: list[Draft], places: list[Draft]) -> list[Draft]:
    merchants = _slots(rng, [person for person in persons if person.type == "merchant"], "team founded")
    coaches = _slots(rng, [person for person in persons if person.type == "coach"], "team coached")
    teams = []
    for place in rng.sample(places, count):
        founder = merchants.pop()
        founded = rng.randint(founder.born + 25, min(founder.ends, founder.born + 70))
        team = Draft("team", f"{place.name} {rng.choice(names.ANIMALS)}", f"{rng.choice(names.SPORTS)} club", founded)
        team.add({"ground": place, "founding year": founded, "founder": founder})
        team.add({"colour": rng.choice(names.COLOURS), "seats": rng.randint(3, 90) * 100})
        coach = coaches.pop()
        if founded < coach.ends:
            team.add({"coach": coach})
            coach.add({"team coached": team})
        founder.add({"team founded": team})
        place.add({"home team": team})
        teams.append(team)
    return teams


def _events(
    rng: random.Random, count: int, persons: list[Draft], places: list[Draft], works: list[Draft], teams: list[Draft]
) -> list[Draft]:
    events: dict[str, Draft] = {}
    venues = _slots(rng, places, "event")
    winners = {"cup": _slots(rng, teams, "cup"), "prize": _slots(rng, works, "prize"), "fair": []}
    while len(events) < count:
        kind = rng.choice([kind for kind, slots in winners.items() if slots or kind == "fair"])
        venue, winner = venues[-1], winners[kind][-1] if winners[kind] else None
        if kind == "cup":
            sport, year = winner.type.removesuffix(" club"), rng.randint(winner.born, TODAY)
            name, type_ = f"{_series(rng, sport, names.SPORTS)} Cup {year}", f"{sport} cup"
        elif kind == "prize":
            year = winner.born + 1
            name, type_ = f"{_series(rng, winner.type, _ALL_WORK_TYPES)} Prize {year}", f"{winner.type} prize"
        else:
            year = rng.randint(1850, TODAY)
            name, type_ = f"{venue.name} Fair {year}", "fair"
        opener = rng.choice(persons)
        if name in events or not opener.born + 30 <= year <= opener.ends:
            continue
        venues.pop()
        event = events[name] = Draft("event", name, type_, year, year)
        event.add({"venue": venue, "year": year})
        if winner:
            event.add({"winner": winner})
            winners[kind].pop().add({kind: event})
        event.add({"opener": opener, "visitors": rng.randint(5, 400) * 100, "days": rng.randint(2, 9)})
        venue.add({"event": event})
    return list(events.values())


def _series(rng: random.Random, of: str, kinds: Sequence[str]) -> str:
    """Draw the adjective of a cup or prize; each adjective belongs to one sport or kind of work."""
    return rng.choice(names.ADJECTIVES[kinds.index(of) :: len(kinds)])


def _finish(draft: Draft, rng: random.Random) -> tuple[Entity, Page]:
    sentence = SENTENCES["type"].format(name=draft.name, value=f"{article(draft.type)} {draft.type}")
    facts = [Fact(draft.url, "type", draft.type, sentence)]
    for attribute, value in draft.facts:
        name, target = (value.name, value.url) if isinstance(value, Draft) else (value, None)
        facts.append(Fact(draft.url, attribute, name, SENTENCES[attribute].format(name=draft.name, value=name), target))
    lead = " ".join(fact.sentence for fact in facts)
    others = [fact.value for fact in facts if fact.target]
    prose = [text for text in rng.sample(names.PROSE[draft.kind], 3) if others or "{other}" not in text]
    below = " ".join(text.format(other=rng.choice(others or [""])) for text in prose)
    entity = Entity(draft.url, draft.name, draft.kind, tuple(facts), draft.aliases)
    return entity, Page(draft.url, draft.name, f"{lead}\n\n{below}")


def article(noun: str) -> str:
    """Return the indefinite article.

    >>> article("opera"), article("novel")
    ('an', 'a')
    """
    return "an" if noun[0] in "aeiou" else "a"
