"""A corpus: pages, their entities and the relations between them; the embedded encyclopedia or your own JSONL pages.

A line of a JSONL corpus has `url`, `title` and `text`, and may have `kind`, `aliases`, `links` (urls) and `facts`
(`attribute`, `value`, `sentence`, and for a relation `target`, the other entity's url). If a linked page has no such
relation, the first sentence that names the page becomes one. `arenarl.domains.research.extraction` adds facts for
closed questions with an LLM.
"""

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from arenarl.domains.research.encyclopedia import invent
from arenarl.domains.research.facts import Entity, Fact
from arenarl.domains.research.pages import Page
from arenarl.domains.research.passages import PageIndex
from arenarl.domains.stated_facts import place_of, stands_in
from arenarl.system.errors import UserError, current_folder
from arenarl.system.user_input import first_problem
from arenarl.trajectory import numbered_records

LINK = "link"  # attribute of a relation that is known by its sentence only
LARGER = "raise environment.search.corpus_size (with a corpus of your own: add pages)"  # remedy for too few queries
_Text = Annotated[str, Field(min_length=1)]
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[^\sa-z])|\n+")


class _FactRecord(BaseModel):
    attribute: _Text
    value: _Text | int | float
    sentence: _Text
    target: str | None = None


class PageRecord(BaseModel):
    """A line of a JSONL corpus, which may have further fields."""

    model_config = ConfigDict(extra="allow")

    url: _Text
    title: _Text
    text: str
    kind: str | None = None
    aliases: list[_Text] | None = None
    links: list[str] | None = None
    facts: list[_FactRecord] | None = None


@dataclass(frozen=True, eq=False)
class Corpus:
    pages: list[Page]
    entities: dict[str, Entity]  # url → entity

    @property
    def facts(self) -> Iterator[Fact]:
        return (fact for entity in self.entities.values() for fact in entity.facts)

    @cached_property
    def mentions(self) -> dict[str, list[Fact]]:
        """Entity's url → facts on other pages that name it."""
        return group_by_key((fact.target, fact) for fact in self.facts if fact.target)

    def links(self, url: str) -> list[Fact]:
        """Return the relations of an entity, from its own page and from pages that name it."""
        return [fact for fact in self.entities[url].facts if fact.target] + self.mentions.get(url, [])

    @cached_property
    def by_name(self) -> dict[str, str]:
        """Entity's name → its url."""
        return {entity.name: entity.url for entity in self.entities.values()}

    def says(self, sentence: str, name: str, value: str) -> bool:
        """Return True if a sentence has both an entity's name and a value, neither inside a longer word or name.

        >>> corpus = Corpus([], {name: Entity(name, name, "place", ()) for name in ("Borstad", "East Borstad")})
        >>> sentence = "East Borstad, near Borstad, was founded in 1843."
        >>> corpus.says(sentence, "East Borstad", "Borstad"), corpus.says(sentence, "Borstad", "184")
        (True, False)
        """
        names = names_in(self, sentence)
        place = _place_of(name, sentence, names)
        return place >= 0 and _place_of(value, f"{sentence[:place]} {sentence[place + len(name) :]}", names) >= 0

    def named_in(self, text: str) -> set[str]:
        """Return the entities' names in a text, as whole words and not inside another entity's longer name."""
        names = names_in(self, text)
        return {name for name in names if _place_of(name, text, names) >= 0}

    @cached_property
    def kinds(self) -> set[tuple[str, str]]:
        """All pairs of noun and kind in the corpus, such as ("novel", "work")."""
        return {(entity.noun, entity.kind) for entity in self.entities.values()}

    @cached_property
    def index(self) -> PageIndex:
        """BM25 over the pages: the shallow retriever of Eq. 3, InfoAgent."""
        return PageIndex.build(self.pages, chunk_tokens=128)

    @cached_property
    def _by_sentence(self) -> dict[str, list[Fact]]:
        return group_by_key((fact.sentence, fact) for fact in self.facts)

    def read(self, text: str) -> list[Fact]:
        """Return the facts whose sentences appear in a text word for word.

        >>> corpus = build_corpus(0, 100)
        >>> fact = corpus.entities[corpus.pages[0].url].facts[1]
        >>> corpus.read(f"As we know: {fact.sentence}") == [], corpus.read(f"I looked it up. {fact.sentence}") == [fact]
        (True, True)
        """
        return [fact for sentence in self.sentences(text) for fact in self._by_sentence.get(sentence, [])]

    @staticmethod
    def sentences(text: str) -> list[str]:
        return [sentence.strip() for sentence in _SENTENCE_END.split(text)]


def group_by_key(pairs: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    """Return a dictionary of lists: the second items of all pairs, by the first."""
    groups = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return dict(groups)


@lru_cache(maxsize=1024)
def names_in(corpus: Corpus, sentence: str) -> tuple[str, ...]:
    """Return the names of all entities that occur in a sentence, also inside longer words."""
    return tuple(name for name in corpus.by_name if name in sentence)


def _place_of(words: str, sentence: str, names: Sequence[str]) -> int:
    """Return the first index of the words in a sentence, ignoring matches inside a longer name from `names`."""
    for name in names:
        if words in name and words != name:
            sentence = sentence.replace(name, "\0" * len(name))
    return place_of(words, sentence)


@lru_cache(maxsize=4)
def build_corpus(seed: int, size: int = 3000) -> Corpus:
    """Return the embedded encyclopedia of `size` invented entities. Raises UserError for fewer than 100."""
    if size < 100:
        raise UserError(f"environment.search.corpus_size={size} is too small for every kind of entity; set 100 or more")
    pairs = invent(f"encyclopedia-{seed}-{size}", size)
    random.Random(f"order-{seed}-{size}").shuffle(pairs)
    return Corpus([page for _, page in pairs], {entity.url: entity for entity, _ in pairs})


def read_corpus(path: str | Path) -> Corpus:
    """Read a corpus of your own from JSONL; the module's docstring has the format.
    Raises UserError if a line is not a page, two pages share a url, or a fact's sentence is not in its page."""
    records = read_pages(Path(path))
    titles = {record.url: record.title for record in records.values()}
    if len(titles) < len(records):
        raise UserError(f"{path}: two pages have the same url; each must be unique")
    entities = {}
    for number, record in records.items():
        facts = tuple(_facts_of(record, titles))
        for fact in facts:
            if fact.sentence not in record.text or not stands_in(fact.value, fact.sentence):
                missing = f"the text has no sentence {fact.sentence!r} with the value {fact.value!r}"
                raise UserError(f"{path}, line {number}: {missing}; correct the fact or leave it out")
        kind, aliases = record.kind or "subject", tuple(record.aliases or ())
        entities[record.url] = Entity(record.url, record.title, kind, facts, aliases)
    return Corpus([Page(record.url, record.title, record.text) for record in records.values()], entities)


def read_pages(path: Path) -> dict[int, PageRecord]:
    """Return the pages of a JSONL file by line number.
    Raises UserError if it is missing or empty, or a line is not a page."""
    if not path.is_file():
        how = f"name a JSONL file of pages with url, title and text{current_folder(path)}"
        raise UserError(f"{path} is not a file; {how}")
    records = {}
    for number, line in numbered_records(path):
        try:
            records[number] = PageRecord.model_validate(line)
        except ValidationError as error:
            problem = f"{first_problem(error)}; a page needs url, title and text"
            raise UserError(f"{path}, line {number} is not a page: {problem}") from error
    if not records:
        raise UserError(f"{path} has no page; a page is a line with url, title and text")
    return records


def _facts_of(record: PageRecord, titles: dict[str, str]) -> Iterator[Fact]:
    """Yield a page's facts, then a relation for each further linked page, from the first sentence that names it."""
    facts = record.facts or []
    for fact in facts:
        target = fact.target if fact.target in titles else None
        yield Fact(record.url, fact.attribute, str(fact.value), fact.sentence, target)
    known = {record.url, *(fact.target for fact in facts)}
    for url in dict.fromkeys(record.links or []):
        if url in titles and url not in known:
            sentences = (text for text in Corpus.sentences(record.text) if stands_in(titles[url], text))
            if sentence := next(sentences, None):
                yield Fact(record.url, LINK, titles[url], sentence, url)
