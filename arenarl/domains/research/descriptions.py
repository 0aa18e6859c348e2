"""What a question says of the entities of its tree, as data:
rendered to text, counted over a corpus, stored in a query's constraints.

`Description` mirrors the sub-tree: an entity is named, or hidden behind its noun,
its clues and the entities it is linked with.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from arenarl.domains.research.corpus import Corpus
from arenarl.domains.research.encyclopedia import QUESTIONS, article
from arenarl.domains.research.fuzzification import OBJECT, SUBJECT, Clue

_ORDINALS = ("", "second ", "third ", "fourth ", "fifth ", "sixth ")


@dataclass(frozen=True)
class Link:
    """A relation between a described entity and its parent.
    The one whose page has it is <subject> in `pattern`, the other <object>."""

    attribute: str
    pattern: str
    is_parents: bool  # whether the parent's page has it


@dataclass(frozen=True)
class Description:
    noun: str
    name: str | None  # None: hidden
    clues: tuple[Clue, ...] = ()
    children: tuple["Description", ...] = ()
    link: Link | None = None  # with its parent; None is the root's

    def walk(self) -> Iterator["Description"]:
        """Breadth first, from here."""
        level = [self]
        while level:
            yield from level
            level = [child for node in level for child in node.children]

    def to_record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Description":
        return cls(
            record["noun"],
            record["name"],
            tuple(Clue(**clue) for clue in record["clues"]),
            tuple(cls.from_record(child) for child in record["children"]),
            Link(**record["link"]) if record["link"] else None,
        )


class Space:
    """The entities of a corpus that fit a description: q(K) of Eq. 3, InfoAgent, exactly."""

    def __init__(self, corpus: Corpus):
        self.corpus = corpus
        self._nouns: dict[str, set[str]] = defaultdict(set)
        self._values: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._numbers: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for entity in corpus.entities.values():
            self._nouns[entity.noun].add(entity.url)
            for fact in entity.facts:
                self._values[fact.attribute, fact.value].add(entity.url)
                if fact.number is not None:
                    self._numbers[fact.attribute].append((fact.number, entity.url))
        for numbers in self._numbers.values():
            numbers.sort()

    def with_noun(self, noun: str) -> set[str]:
        return set(self._nouns[noun])

    def meeting(self, clue: Clue) -> set[str]:
        if clue.low is None:
            return self._values[clue.attribute, clue.value or ""]
        numbers = self._numbers[clue.attribute]
        start, end = bisect_left(numbers, (clue.low, "")), bisect_right(numbers, (clue.high or 0, "\uffff"))
        return {url for _, url in numbers[start:end]}

    def linked(self, link: Link, children: set[str]) -> set[str]:
        """Who is the parent of one of `children` by such a link."""
        if link.is_parents:
            return {
                fact.url
                for child in children
                for fact in self.corpus.mentions.get(child, [])
                if fact.attribute == link.attribute
            }
        facts = (fact for child in children for fact in self.corpus.entities[child].facts)
        return {fact.target for fact in facts if fact.target and fact.attribute == link.attribute}

    def described(self, node: Description) -> set[str]:
        """The urls of all entities that fit."""
        if node.name:
            return {self.corpus.by_name[node.name]}
        found = self.with_noun(node.noun)
        for clue in node.clues:
            found &= self.meeting(clue)
        for child in node.children:
            found &= self.linked(child.link, self.described(child))
        return found


def render(root: Description) -> tuple[str, str]:
    """The sentences that describe the root, and what to call it in a question: its name, or "the novel".

    Clues of a node come before its links; of two hidden entities with one noun, the later is "the second".
    """
    labels, seen, hidden = {}, set(), Counter()
    for node in root.walk():
        labels[id(node)] = node.name or f"{_ORDINALS[min(hidden[node.noun], len(_ORDINALS) - 1)]}{node.noun}"
        hidden[node.noun] += node.name is None

    def call(node: Description) -> str:
        if node.name:
            return node.name
        is_known = id(node) in seen
        seen.add(id(node))
        return f"the {labels[id(node)]}" if is_known else f"{article(labels[id(node)])} {labels[id(node)]}"

    sentences = []
    for node in root.walk():
        sentences += [clue.pattern.replace(SUBJECT, call(node)) for clue in node.clues]
        for child in node.children:
            ends = (node, child) if child.link.is_parents else (child, node)
            subject, other = call(ends[0]), call(ends[1])
            sentences.append(child.link.pattern.replace(SUBJECT, subject).replace(OBJECT, other))
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences), call(root)


def ask(attribute: str, label: str) -> str:
    """
    >>> ask("birth year", "the writer"), ask("motto", "Kelmar")
    ('When was the writer born?', 'What is the motto of Kelmar?')
    """
    form = QUESTIONS[attribute][0] if attribute in QUESTIONS else f"What is the {attribute} of {{}}?"
    return form.format(label)


def search_words(attribute: str) -> str:
    """What to put beside a name to find this of it."""
    return QUESTIONS[attribute][1] if attribute in QUESTIONS else attribute
