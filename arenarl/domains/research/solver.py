"""Solves closed questions through search and browse alone: the solvability check of synthesis (3.1, InfoAgent)
and the teacher's way.

It is given a question's description, so it need not parse English, and reads what tools return as `Corpus.read` does:
it knows only facts whose sentences it was shown. Everything else it finds out: it starts at an entity that is named, or
at clues, follows links, and tries further candidates until one fits all. Its bad habits make the teacher's trajectories
of mixed quality.
"""

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from arenarl.domains.research.corpus import Corpus
from arenarl.domains.research.descriptions import Description, Link, search_words
from arenarl.domains.research.facts import OBJECT, SUBJECT, Clue, Fact
from arenarl.rollout.environment import Environment

Call = Callable[[str, str, str], Awaitable[str]]  # thought, tool, its only argument → observation
HABITS = ("match", "follow", "read", "ground")
# match: takes the result with the right title, not the first · follow: goes on to the entity that is asked about, not
# only to the first one found · read: opens the page where a snippet does not say · ground: states what it read, not
# something typical


class ResearchTools(Environment, Protocol):
    """An environment with `search` and `browse`, such as `ResearchEnvironment`."""

    is_compact: bool  # a line a page, which opens by its title; else JSON


class OutOfCalls(Exception):
    """The budget of tool calls is used up."""


class Solver:
    """One attempt through a `call` that makes tool calls, at most `max_calls` of them.
    In the compact form pages open by their title."""

    def __init__(
        self, corpus: Corpus, call: Call, max_calls: int, is_compact: bool, habits: dict[str, bool] | None = None
    ):
        self.corpus, self.max_calls, self.is_compact = corpus, max_calls, is_compact
        self.habits = habits or dict.fromkeys(HABITS, True)
        self.calls = 0
        self.known: dict[str, dict[Fact, None]] = defaultdict(dict)  # what it read, by url, in the order of reading
        self.shown: dict[str, None] = {}  # urls among the results so far
        self._call = call
        self._opened: set[str] = set()

    async def answer(self, root: Description, attribute: str) -> str | None:
        """What it holds to be the answer; None if it found nothing."""
        while root.children and not self.habits["follow"]:  # on to the entity that is looked for first
            root = _easiest(root.children)
        try:
            url = await anext(self._find(root, search_words(attribute)), None)
            facts = await self.facts(url, attribute) if url else []
        except OutOfCalls:
            return None
        if not url:
            return None
        if facts and self.habits["ground"]:
            return facts[0].value
        shown = (self.corpus.entities[one].name for one in self.shown)
        return "1900" if attribute.endswith("year") else next(shown, None)

    async def learn_about(self, name: str, words: str = "") -> str | None:
        """Look an entity up by its name; its url, or None if search does not show it."""
        results = await self._search(f"find {name}", f"{name} {words}".strip())
        if not self.habits["match"]:
            return results[0] if results else None
        url = self.corpus.by_name.get(name)
        return url if url in results else None

    async def facts(self, url: str, attribute: str) -> list[Fact]:
        """What the page says of an attribute; opens it where what was read so far does not say."""
        if self.habits["read"] and all(fact.attribute != attribute for fact in self.known[url]):
            await self._open(url)
        return [fact for fact in self.known[url] if fact.attribute == attribute]

    async def _open(self, url: str) -> None:
        """Read a page, once."""
        if url in self._opened:
            return
        self._opened.add(url)
        name = self.corpus.entities[url].name
        if not self.is_compact and url not in self.shown:
            await self._search(f"find {name}", name)  # its address
        self._learn(read_page(await self._use(f"read {name}", "browse", name if self.is_compact else url)))

    async def _find(self, node: Description, words: str) -> AsyncIterator[str]:
        """Entities that fit a description, one by one; `words` say what is wanted of one that is named."""
        if node.name:
            url = await self.learn_about(node.name, words)
            if url:
                yield url
        elif node.children:
            first = _easiest(node.children)
            async for child in self._find(first, _words_of(first.link, "", "")):
                async for url in self._parents(child, first.link, node):
                    if await self._fits(node, url, first):
                        yield url
        else:
            for query in _queries(node.clues, node.noun):
                for url in await self._search(f"find the {node.noun}", query):
                    if await self._fits(node, url):
                        yield url

    async def _parents(self, child: str, link: Link, node: Description) -> AsyncIterator[str]:
        """Candidates for a hidden entity: what is known of the link, whom the child's page names,
        then whom a search for the link shows."""
        if not link.is_parents:
            for fact in await self.facts(child, link.attribute):
                if fact.target:
                    yield fact.target
            return
        tried = set()
        for candidates in (self._known_parents(child, link), self._named_by(child), self._searched(child, link, node)):
            async for url in candidates:
                if url not in tried and self._may_be(url, node.noun):
                    tried.add(url)
                    yield url

    async def _known_parents(self, child: str, link: Link) -> AsyncIterator[str]:
        for url, facts in list(self.known.items()):
            if any(fact.target == child and fact.attribute == link.attribute for fact in facts):
                yield url

    async def _named_by(self, child: str) -> AsyncIterator[str]:
        if self.habits["read"]:
            await self._open(child)
        for fact in list(self.known[child]):
            if fact.target:
                yield fact.target

    async def _searched(self, child: str, link: Link, node: Description) -> AsyncIterator[str]:
        words = _words_of(link, "", self.corpus.entities[child].name)
        for query in (f"{node.noun} {words}", *(f"{words} {text}" for text in _queries(node.clues, node.noun))):
            for url in await self._search(f"find the {node.noun}", query):
                yield url

    def _may_be(self, url: str, noun: str) -> bool:
        """A town is no novel: names alone tell as much."""
        return self.corpus.entities[url].kind in self.corpus.kinds[noun]

    async def _fits(self, node: Description, url: str, known: Description | None = None) -> bool:
        """Whether an entity meets all that is said of it.
        If the page of the child `known` has their link, it led here."""
        if not self._may_be(url, node.noun):
            return False
        demands = [(clue.attribute, clue.holds) for clue in node.clues]
        if node.noun != self.corpus.entities[url].kind:
            demands.insert(0, ("type", lambda fact: fact.value == node.noun))
        for attribute, holds in demands:
            facts = await self.facts(url, attribute)
            is_believed = not facts and not self.habits["read"]  # an attempt that reads no pages believes
            if not is_believed and not any(map(holds, facts)):
                return False
        for child in node.children:
            if (child is not known or child.link.is_parents) and not await self._has_child(url, child):
                return False
        return True

    async def _has_child(self, url: str, child: Description) -> bool:
        link = child.link
        if link.is_parents:
            candidates = [fact.target for fact in await self.facts(url, link.attribute) if fact.target]
            if child.name:
                return self.corpus.by_name.get(child.name) in candidates
        elif child.name:
            candidates = [await self.learn_about(child.name)]
        else:
            words = _words_of(link, child.noun, self.corpus.entities[url].name)
            candidates = await self._search(f"find the {child.noun}", words)
        for candidate in filter(None, candidates):
            is_linked = link.is_parents or url in [one.target for one in await self.facts(candidate, link.attribute)]
            if is_linked and (child.name or await self._fits(child, candidate)):
                return True
        return False

    async def _search(self, thought: str, words: str) -> list[str]:
        """Urls of the results in their order."""
        results = read_results(self.corpus, await self._use(thought, "search", words))
        for _, snippet in results:
            self._learn(snippet)
        urls = [url for url, _ in results if url]
        self.shown |= dict.fromkeys(urls)
        return urls

    async def _use(self, thought: str, tool: str, argument: str) -> str:
        if self.calls >= self.max_calls:
            raise OutOfCalls
        self.calls += 1
        return await self._call(thought, tool, argument)

    def _learn(self, text: str) -> None:
        for fact in self.corpus.read(text):
            self.known[fact.url][fact] = None


def _easiest(children: tuple[Description, ...]) -> Description:
    """A named one, or the one that says most."""
    return min(children, key=lambda child: (child.name is None, -len(list(child.walk())), -len(child.clues)))


def _words_of(link: Link, subject: str, other: str) -> str:
    """A link in words, for a search."""
    return link.pattern.replace(SUBJECT, subject).replace(OBJECT, other).strip(" .")


def _queries(clues: tuple[Clue, ...], noun: str) -> list[str]:
    """Searches for a hidden entity: all clues as they are said, then with each year that a vague one may stand for."""
    said = [clue.pattern.replace(SUBJECT, "").strip(" .") for clue in clues]
    queries = [f"{noun} {' '.join(said)}"]
    for clue in clues:
        if clue.low is not None and 1000 <= clue.low and clue.high <= 2099:
            others = " ".join(text for one, text in zip(clues, said, strict=True) if one.low is None)
            words = search_words(clue.attribute)
            queries += [f"{noun} {words} {year} {others}".strip() for year in range(clue.low, clue.high + 1)]
    return queries


def read_results(corpus: Corpus, observation: str) -> list[tuple[str | None, str]]:
    """(url, snippet) of each result of a search, in both forms of the environment;
    no url for a page that is not of the corpus."""
    if observation.startswith("["):
        results = [(result["url"], result["snippet"]) for result in json.loads(observation)]
        return [(url if url in corpus.entities else None, snippet) for url, snippet in results]
    lines = (line.partition(": ") for line in observation.splitlines())
    return [(corpus.by_name.get(title), snippet) for title, _, snippet in lines]


def read_page(observation: str) -> str:
    """The text of a page, in both forms of the environment."""
    return json.loads(observation)["text"] if observation.startswith("{") else observation
