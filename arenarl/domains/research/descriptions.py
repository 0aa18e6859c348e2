"""What a question says of the entities of its tree: stored as data, rendered to text, counted over a corpus.

`Description` mirrors the sub-tree: an entity is named, or hidden behind its noun, its clues and the entities it is
linked with. `choose_clues` picks the constraint set K(v) of Eq. 3: few entities fit, and a shallow retriever misses
this one. The paper samples K, lets o3 try, and drops the facts by which it succeeds. Here K grows greedily by the fact
that leaves the fewest entities, counted exactly, and a fact by which BM25 finds the entity is dropped.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pydantic import TypeAdapter

from arenarl.domains.research.corpus import Corpus, grouped
from arenarl.domains.research.encyclopedia import QUESTIONS, article
from arenarl.domains.research.facts import OBJECT, SUBJECT, Clue

_ORDINALS = ("", "second ", "third ", "fourth ", "fifth ", "sixth ")


@dataclass(frozen=True)
class Link:
    """A relation with the parent. In `pattern` the entity whose page has it is <subject>, the other <object>."""

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
        self._nouns = grouped((entity.noun, entity.url) for entity in corpus.entities.values())
        self._facts = grouped((fact.attribute, fact) for fact in corpus.facts)
        self._meeting: dict[Clue, set[str]] = {}

    def meeting(self, clue: Clue) -> set[str]:
        if clue not in self._meeting:
            self._meeting[clue] = {fact.url for fact in self._facts.get(clue.attribute, []) if clue.holds(fact)}
        return self._meeting[clue]

    def linked(self, link: Link, children: set[str]) -> set[str]:
        """Who is the parent of one of `children` by such a link."""
        if link.is_parents:
            return {fact.url for fact in self._facts.get(link.attribute, []) if fact.target in children}
        facts = (fact for fact in self._facts.get(link.attribute, []) if fact.url in children)
        return {fact.target for fact in facts if fact.target}

    def described(self, node: Description) -> set[str]:
        """The urls of all entities that fit."""
        if node.name:
            return {self.corpus.by_name[node.name]}
        fitting = set(self._nouns.get(node.noun, ())).intersection(*map(self.meeting, node.clues))
        return fitting.intersection(*(self.linked(child.link, self.described(child)) for child in node.children))


def choose_clues(
    space: Space, pool: list[Clue], fits: set[str], most: int, is_found: Callable[[list[Clue]], bool]
) -> list[Clue]:
    """At most `most` of the vague facts in `pool`, so that few entities fit besides the hidden one. Eq. 3, InfoAgent.

    `fits`: the entities that fit by noun and links. `is_found`: whether a shallow retriever finds the one by clues.
    """
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
    form, _ = QUESTIONS.get(attribute, (f"What is the {attribute} of {{}}?", ""))
    return form.format(label)


def search_words(attribute: str) -> str:
    """What to put beside a name to find this of it."""
    return QUESTIONS[attribute][1] if attribute in QUESTIONS else attribute
