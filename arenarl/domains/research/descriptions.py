"""What a question says of the entities of its tree, as data:
rendered to text, counted over a corpus, stored in a query's constraints.

`Description` mirrors the sub-tree: an entity is named, or hidden behind its noun, its clues and the entities it is
linked with. `choose_clues` picks the constraint set K(v) of Eq. 3: few entities fit, and a shallow retriever misses
this one. The paper samples K, lets o3 try, and drops the facts by which it succeeds. Here the number of entities that
fit is known exactly, so K grows greedily by the fact that leaves fewest, and a fact by which BM25 finds the entity is
dropped.
"""

import random
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pydantic import TypeAdapter

from arenarl.domains.research.corpus import Corpus
from arenarl.domains.research.encyclopedia import QUESTIONS, article
from arenarl.domains.research.facts import OBJECT, SUBJECT, Clue

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


read_description = TypeAdapter(Description).validate_python  # the inverse of dataclasses.asdict


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

    def meeting(self, clue: Clue) -> set[str]:
        if clue.low is None:
            return self._values[clue.attribute, clue.value or ""]
        numbers = self._numbers[clue.attribute]
        start, end = bisect_left(numbers, (clue.low, "")), bisect_right(numbers, (clue.high or 0, "\uffff"))
        return {url for _, url in numbers[start:end]}

    def linked(self, link: Link, children: set[str]) -> set[str]:
        """Who is the parent of one of `children` by such a link."""
        if link.is_parents:
            facts = (fact for child in children for fact in self.corpus.mentions.get(child, []))
            return {fact.url for fact in facts if fact.attribute == link.attribute}
        facts = (fact for child in children for fact in self.corpus.entities[child].facts)
        return {fact.target for fact in facts if fact.target and fact.attribute == link.attribute}

    def described(self, node: Description) -> set[str]:
        """The urls of all entities that fit."""
        if node.name:
            return {self.corpus.by_name[node.name]}
        found = set(self._nouns[node.noun])
        for clue in node.clues:
            found &= self.meeting(clue)
        for child in node.children:
            found &= self.linked(child.link, self.described(child))
        return found


def choose_clues(
    space: Space,
    pool: list[Clue],
    fits: set[str],
    most: int,
    rng: random.Random,
    is_found: Callable[[list[Clue]], bool],
) -> list[Clue]:
    """At most `most` of the vague facts in `pool`, so that few entities fit besides the hidden one. Eq. 3, InfoAgent.

    Args:
        fits: who fits before any clue, by noun and links.
        is_found: whether the shallow retriever finds the hidden one by these clues.
    """
    rng.shuffle(pool)
    chosen: list[Clue] = []
    while len(fits) > 1 and pool and len(chosen) < most:
        clue = min(pool, key=lambda one: len(fits & space.meeting(one)))
        pool.remove(clue)
        left = fits & space.meeting(clue)
        if len(left) == len(fits):
            break
        if not is_found([*chosen, clue]):
            chosen.append(clue)
            fits = left
    return chosen


def render(root: Description) -> tuple[str, str]:
    """The sentences that describe the root, and what to call it in a question: its name, or "the novel".

    Clues of a node come before its links; of two hidden entities with one noun, the later is "the second".
    """
    labels, seen, hidden = {}, set(), Counter()
    for node in root.walk():
        labels[id(node)] = f"{_ORDINALS[min(hidden[node.noun], len(_ORDINALS) - 1)]}{node.noun}"
        hidden[node.noun] += node.name is None

    def call(node: Description) -> str:
        if node.name:
            return node.name
        label, is_known = labels[id(node)], id(node) in seen
        seen.add(id(node))
        return f"{'the' if is_known else article(label)} {label}"

    sentences = []
    for node in root.walk():
        sentences += [clue.pattern.replace(SUBJECT, call(node)) for clue in node.clues]
        for child in node.children:
            subject, other = map(call, (node, child) if child.link.is_parents else (child, node))
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
