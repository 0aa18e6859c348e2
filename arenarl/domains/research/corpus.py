"""A corpus: pages, the entities they are about, and what links them.
The embedded encyclopedia, or pages of your own from JSONL.

A line of a JSONL corpus has `url`, `title`, `text`, and may have `kind`, `aliases`, `links` (urls) and `facts`
(`attribute`, `value`, `sentence`, and `target`, the url of a relation's other end). Without facts, a sentence that
names a linked page is a relation; facts that can be asked for come from `arenarl.domains.research.extraction`, by an
LLM.
"""

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from arenarl.domains.research.encyclopedia import invent
from arenarl.domains.research.entities import Entity, Fact
from arenarl.domains.research.page_index import PageIndex
from arenarl.domains.research.pages import Page
from arenarl.domains.stated_facts import place_of, stands_in
from arenarl.system.errors import UserError
from arenarl.system.user_input import first_problem
from arenarl.trajectory import read_jsonl

LINK = "link"  # the attribute of a relation of which only the sentence is known
_Text = Annotated[str, Field(min_length=1)]
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[^\sa-z])|\n+")


class _FactRecord(BaseModel):
    attribute: _Text
    value: _Text | int | float
    sentence: _Text
    target: str | None = None


class _Record(BaseModel):
    """A line of a JSONL corpus; what else it has is nobody's business here."""

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
    entities: dict[str, Entity]  # by url

    @cached_property
    def mentions(self) -> dict[str, list[Fact]]:
        """By url, the facts of other pages that name this entity."""
        found = defaultdict(list)
        for entity in self.entities.values():
            for fact in entity.facts:
                if fact.target:
                    found[fact.target].append(fact)
        return dict(found)

    def links(self, url: str) -> list[Fact]:
        """The relations of an entity, on its own page and on those that name it."""
        return [fact for fact in self.entities[url].facts if fact.target] + self.mentions.get(url, [])

    @cached_property
    def by_name(self) -> dict[str, str]:
        """Url by name."""
        return {entity.name: entity.url for entity in self.entities.values()}

    def says(self, sentence: str, name: str, value: str) -> bool:
        """Whether a sentence names an entity and, elsewhere in it, a value:
        as whole words, and not within the longer name of another entity.

        >>> corpus = Corpus([], {name: Entity(name, name, "place", ()) for name in ("Borstad", "East Borstad")})
        >>> (
        ...     corpus.says("Borstad was founded in 1843.", "Borstad", "1843"),
        ...     corpus.says("East Borstad was founded in 1843.", "Borstad", "1843"),
        ... )
        (True, False)
        >>> (
        ...     corpus.says("Borstad has 18434 inhabitants.", "Borstad", "1843"),
        ...     corpus.says("East Borstad is near Borstad.", "East Borstad", "Borstad"),
        ... )
        (False, True)
        """
        names = names_in(self, sentence)
        place = _place_of(name, sentence, names)
        return place >= 0 and _place_of(value, f"{sentence[:place]} {sentence[place + len(name) :]}", names) >= 0

    def named_in(self, text: str) -> set[str]:
        """Return the names of the entities in a text, as whole words and not inside another entity's longer name."""
        names = names_in(self, text)
        return {name for name in names if _place_of(name, text, names) >= 0}

    @cached_property
    def kinds(self) -> dict[str, set[str]]:
        """Kinds by noun: a novel is a work."""
        found = defaultdict(set)
        for entity in self.entities.values():
            found[entity.noun].add(entity.kind)
        return dict(found)

    @cached_property
    def index(self) -> PageIndex:
        """BM25 over the pages: the shallow retriever of Eq. 3, InfoAgent."""
        return PageIndex.build(self.pages, chunk_tokens=128)

    @cached_property
    def _by_sentence(self) -> dict[str, list[Fact]]:
        said = defaultdict(list)
        for entity in self.entities.values():
            for fact in entity.facts:
                said[fact.sentence].append(fact)
        return dict(said)

    def read(self, text: str) -> list[Fact]:
        """The facts that a text states in the words of a page, whoever's they are:
        what a careful reader learns from it.

        >>> corpus = build_corpus(0, 100)
        >>> fact = corpus.entities[corpus.pages[0].url].facts[1]
        >>> corpus.read(f"As we know: {fact.sentence}") == [], corpus.read(f"I looked it up. {fact.sentence}") == [fact]
        (True, True)
        """
        return [fact for sentence in self.sentences(text) for fact in self._by_sentence.get(sentence, [])]

    @staticmethod
    def sentences(text: str) -> list[str]:
        return [sentence.strip() for sentence in _SENTENCE_END.split(text)]


@lru_cache(maxsize=1024)
def names_in(corpus: Corpus, sentence: str) -> tuple[str, ...]:
    """Every entity's name whose letters stand somewhere in a sentence."""
    return tuple(name for name in corpus.by_name if name in sentence)


def _place_of(words: str, sentence: str, names: Sequence[str]) -> int:
    """`place_of`, but not within one of these names."""
    for name in names:
        if words in name and words != name:
            sentence = sentence.replace(name, "\0" * len(name))
    return place_of(words, sentence)


@lru_cache(maxsize=4)
def build_corpus(seed: int, size: int = 3000) -> Corpus:
    """The embedded encyclopedia of `size` invented entities, the same bytes for the same arguments in every process.

    Raises:
        UserError: too few entities to fill all kinds.
    """
    if size < 100:
        raise UserError(f"a corpus of {size} entities is too small for all kinds and relations; make it 100 or more")
    made = invent(f"encyclopedia-{seed}-{size}", size)
    random.Random(f"order-{seed}-{size}").shuffle(made)
    return Corpus([page for _, page in made], {entity.url: entity for entity, _ in made})


def read_corpus(path: str | Path) -> Corpus:
    """A corpus of your own: a JSON line a page, as this module's docstring says.

    Raises:
        UserError: a line is no page, two pages share a url, or a fact's sentence is not in its page.
    """
    records = read_pages(Path(path))
    titles = {record["url"]: record["title"] for record in records}
    if len(titles) < len(records):
        raise UserError(f"{path}: two pages have the same url; each must be unique")
    entities = {}
    for number, record in enumerate(records, start=1):
        facts = tuple(_known_facts(record, titles)) + tuple(_links(record, titles))
        if wrong := [
            fact for fact in facts if fact.sentence not in record["text"] or not stands_in(fact.value, fact.sentence)
        ]:
            raise UserError(
                f"{path}, line {number}: the page does not say {wrong[0].sentence!r} with {wrong[0].value!r} in it"
            )
        entities[record["url"]] = Entity(
            record["url"], record["title"], record.get("kind", "subject"), facts, tuple(record.get("aliases", ()))
        )
    return Corpus([Page(record["url"], record["title"], record["text"]) for record in records], entities)


def read_pages(path: Path) -> list[dict[str, Any]]:
    """The pages of a JSONL file without their nulls. Raises UserError if there is none, or a line is no page."""
    if not path.is_file():
        raise UserError(f"{path} is no file; name one of pages, JSONL with url, title and text")
    records = list(read_jsonl(path))
    for number, record in enumerate(records, start=1):
        try:
            _Record.model_validate(record)
        except ValidationError as error:
            raise UserError(
                f"{path}, line {number} is no page: {first_problem(error)}; a page needs url, title and text"
            ) from error
    return [{key: value for key, value in record.items() if value is not None} for record in records]


def _known_facts(record: dict[str, Any], titles: dict[str, str]) -> list[Fact]:
    facts = [
        Fact(record["url"], fact["attribute"], str(fact["value"]), fact["sentence"], fact.get("target"))
        for fact in record.get("facts", [])
    ]
    return [fact if fact.target in titles else replace(fact, target=None) for fact in facts]


def _links(record: dict[str, Any], titles: dict[str, str]) -> list[Fact]:
    """The first sentence that names each linked page of the corpus which no fact names as its target."""
    known = {fact.get("target") for fact in record.get("facts", [])} | {record["url"]}
    sentences = [sentence.strip() for sentence in _SENTENCE_END.split(record["text"])]
    facts = []
    for url in dict.fromkeys(record.get("links", [])):
        title = titles.get(url)
        sentence = next((sentence for sentence in sentences if title and stands_in(title, sentence)), None)
        if sentence and url not in known:
            facts.append(Fact(record["url"], LINK, title, sentence, url))
    return facts
