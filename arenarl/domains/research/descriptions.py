"""Descriptions of hidden entities in a question: stored as data, rendered to text, matched against a corpus.

A `Description` mirrors the sub-tree: an entity is named, or hidden behind its noun, its clues and its linked entities.
`choose_clues` picks the constraint set K(v) of Eq. 3: few entities fit, and a shallow retriever misses the right one.
The paper samples K, lets o3 answer, and drops the facts by which it succeeds. Here K grows greedily by the fact that
leaves the fewest entities, counted exactly; a fact by which BM25 finds the entity is dropped.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pydantic import TypeAdapter

from arenarl.domains.research.corpus import Corpus, group_by_key
from arenarl.domains.research.encyclopedia import QUESTIONS, article
from arenarl.domains.research.facts import OBJECT, SUBJECT, Clue

_ORDINALS = ("", "second ", "third ", "fourth ", "fifth ", "sixth ")


@dataclass(frozen=True)
class Link:
    """A relation with the parent. In `pattern`, <subject> is the entity whose page states it, <object> the other."""

    attribute: str
    pattern: str
    is_parents: bool  # True: the parent's page has it


@dataclass(frozen=True)
class Description:
    noun: str
    name: str | None  # None: hidden
    clues: tuple[Clue, ...] = ()
    children: tuple["Description", ...] = ()
    link: Link | None = None  # with the parent; None for the root

    def walk(self) -> Iterator["Description"]:
        """Yield this node and all nodes below it, breadth first."""
        level = [self]
        while level:
            yield from level
            level = [child for node in level for child in node.children]


read_description = TypeAdapter(Description).validate_python  # the inverse of dataclasses.asdict


class Space:
    """Index of the entities in a corpus that fit a description: q(K) of Eq. 3, InfoAgent, exactly."""

    def __init__(self, corpus: Corpus):
        self.corpus = corpus
        self._nouns = group_by_key((entity.noun, entity.url) for entity in corpus.entities.values())
        self._facts = group_by_key((fact.attribute, fact) for fact in corpus.facts)
        self._matching: dict[Clue, set[str]] = {}

    def matching(self, clue: Clue) -> set[str]:
        """Return the urls of all entities for which a clue is true."""
        if clue not in self._matching:
            self._matching[clue] = {fact.url for fact in self._facts.get(clue.attribute, []) if clue.holds(fact)}
        return self._matching[clue]

    def linked(self, link: Link, children: set[str]) -> set[str]:
        """Return the urls of entities that have this link to one of `children`."""
        if link.is_parents:
            return {fact.url for fact in self._facts.get(link.attribute, []) if fact.target in children}
        facts = (fact for fact in self._facts.get(link.attribute, []) if fact.url in children)
        return {fact.target for fact in facts if fact.target}

    def fitting(self, node: Description) -> set[str]:
        """Return the urls of all entities that fit a description."""
        if node.name:
            return {self.corpus.by_name[node.name]}
        urls = set(self._nouns.get(node.noun, ())).intersection(*map(self.matching, node.clues))
        return urls.intersection(*(self.linked(child.link, self.fitting(child)) for child in node.children))


def choose_clues(
    space: Space, pool: list[Clue], fits: set[str], most: int, is_found: Callable[[list[Clue]], bool]
) -> list[Clue]:
    """Return at most `most` clues of `pool` that leave few entities besides the hidden one. Eq. 3, InfoAgent.
    `fits` are the entities that fit by noun and links. `is_found(clues)` is True if a shallow retriever finds the
    hidden entity by these clues."""
    chosen: list[Clue] = []
    while len(fits) > 1 and pool and len(chosen) < most:
        clue = min(pool, key=lambda candidate: len(fits & space.matching(candidate)))
        pool.remove(clue)
        remaining = fits & space.matching(clue)
        if len(remaining) == len(fits):
            break
        if not is_found([*chosen, clue]):
            chosen.append(clue)
            fits = remaining
    return chosen


def render(root: Description) -> tuple[str, str]:
    """Return the sentences that describe the root, and its label in a question: its name, or "the novel".
    A node's clues come before its links. A second hidden entity with the same noun is "the second novel"."""
    labels, seen, hidden = {}, set(), Counter()
    for node in root.walk():
        labels[id(node)] = f"{_ORDINALS[min(hidden[node.noun], len(_ORDINALS) - 1)]}{node.noun}"
        hidden[node.noun] += node.name is None

    def name_of(node: Description) -> str:
        if node.name:
            return node.name
        label, is_known = labels[id(node)], id(node) in seen
        seen.add(id(node))
        return f"{'the' if is_known else article(label)} {label}"

    sentences = []
    for node in root.walk():
        sentences += [clue.pattern.replace(SUBJECT, name_of(node)) for clue in node.clues]
        for child in node.children:
            subject, other = map(name_of, (node, child) if child.link.is_parents else (child, node))
            sentences.append(child.link.pattern.replace(SUBJECT, subject).replace(OBJECT, other))
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences), name_of(root)


def ask(attribute: str, label: str) -> str:
    """Return the question for an attribute.

    >>> ask("birth year", "the writer"), ask("motto", "Kelmar")
    ('When was the writer born?', 'What is the motto of Kelmar?')
    """
    form, _ = QUESTIONS.get(attribute, (f"What is the {attribute} of {{}}?", ""))
    return form.format(label)


def search_words(attribute: str) -> str:
    """Return the words that find this attribute in a search, beside the entity's name."""
    return QUESTIONS[attribute][1] if attribute in QUESTIONS else attribute
