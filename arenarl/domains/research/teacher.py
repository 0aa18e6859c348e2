"""A scripted teacher of deliberately mixed quality, which answers closed and open-ended queries with the tools.

As in `travel/teacher.py`, each of its habits is off more often than on: SFT shows all that good research takes, and RL
has to learn to do it every time. The teacher replaces o3 (A.2, InfoAgent) and ArenaRL's closed model.

Its solver is also the solvability check for closed questions (3.1, InfoAgent). It gets a question's description as data
and reads tool results with `Corpus.read`, so only facts whose sentences it has read count. It starts from a named
entity or from clues, follows links, and tries candidates until one fits.
"""

import json
import random
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Protocol

from arenarl.domains.research.corpus import Corpus
from arenarl.domains.research.descriptions import Description, Link, read_description, search_words
from arenarl.domains.research.facts import OBJECT, SUBJECT, Clue, Fact
from arenarl.rollout.environment import Environment, observe
from arenarl.trajectory import Query, Trajectory, answer_message, call_messages, prompt_messages

OPEN_HABITS = ("match", "cover", "read", "ground", "focus")
HABITS = ("match", "follow", "read", "ground")
# match: take the result with the right title, not the first · follow: go on to the entity that the question is about,
# not only to the first one found · read: open the page if a snippet lacks the fact · ground: state what was read, not a
# typical value · cover: look up all that the query names, not only the first half · focus: leave out other facts


class ResearchTools(Environment, Protocol):
    """An environment with `search` and `browse`, such as `ResearchEnvironment`."""

    is_compact: bool  # True: one line per page, and `browse` takes a title; False: JSON, and `browse` takes a url


class OutOfCalls(Exception):
    """The budget of tool calls is used up."""


class Solver:
    """An attempt at a query, with at most `max_calls` tool calls."""

    def __init__(
        self, corpus: Corpus, environment: ResearchTools, max_calls: int, habits: dict[str, bool] | None = None
    ):
        self.corpus, self.environment, self.max_calls = corpus, environment, max_calls
        self.habits = habits or dict.fromkeys(HABITS, True)
        self.calls, self.messages = 0, []
        self.known: dict[str, dict[Fact, None]] = defaultdict(dict)  # facts read, by url, in the order of reading
        self.result_urls: dict[str, None] = {}  # results of all searches so far
        self._opened: set[str] = set()

    async def answer(self, root: Description, attribute: str) -> str | None:
        """Return the answer, or None if nothing was found within the budget."""
        while root.children and not self.habits["follow"]:  # answer for the entity that the search starts from
            root = _easiest_child(root.children)
        try:
            url = await anext(self._find(root, search_words(attribute)), None)
            facts = await self.facts(url, attribute) if url else []
        except OutOfCalls:
            return None
        if not url:
            return None
        if facts and self.habits["ground"]:
            return facts[0].value
        names = (self.corpus.entities[url].name for url in self.result_urls)
        return "1900" if attribute.endswith("year") else next(names, None)

    async def look_up(self, name: str, words: str = "") -> str | None:
        """Search for an entity by its name; return its url, or None if it is not among the results."""
        results = await self._search(f"find {name}", f"{name} {words}".strip())
        if not self.habits["match"]:
            return results[0] if results else None
        url = self.corpus.by_name.get(name)
        return url if url in results else None

    async def facts(self, url: str, attribute: str) -> list[Fact]:
        """Return the page's known facts with this attribute. Without one, the habit `read` opens the page first."""
        if self.habits["read"] and all(fact.attribute != attribute for fact in self.known[url]):
            await self._open_once(url)
        return [fact for fact in self.known[url] if fact.attribute == attribute]

    async def _open_once(self, url: str) -> None:
        if url in self._opened:
            return
        self._opened.add(url)
        name = self.corpus.entities[url].name
        if not self.environment.is_compact and url not in self.result_urls:
            await self._search(f"find {name}", name)  # search to get its url
        page = await self._use(f"read {name}", "browse", name if self.environment.is_compact else url)
        self._learn(json.loads(page)["text"] if page.startswith("{") else page)

    async def _find(self, node: Description, words: str) -> AsyncIterator[str]:
        """Yield the urls of entities that fit a description. `words` complete the search for a named entity."""
        if node.name:
            url = await self.look_up(node.name, words)
            if url:
                yield url
        elif node.children:
            first = _easiest_child(node.children)
            async for child in self._find(first, _words_of(first.link, "", "")):
                tried = set()
                async for url in self._parents(child, first.link, node):
                    if url not in tried and await self._fits(node, url, first):
                        yield url
                    tried.add(url)
        else:
            for query in _queries(node.clues, node.noun):
                for url in await self._search(f"find the {node.noun}", query):
                    if await self._fits(node, url):
                        yield url

    async def _parents(self, child: str, link: Link, node: Description) -> AsyncIterator[str]:
        """Yield possible parents: known parents, entities that the child's page names, then search results."""
        if not link.is_parents:
            for fact in await self.facts(child, link.attribute):
                if fact.target:
                    yield fact.target
            return
        for url, facts in list(self.known.items()):
            if any(fact.target == child and fact.attribute == link.attribute for fact in facts):
                yield url
        if self.habits["read"]:
            await self._open_once(child)
        for fact in list(self.known[child]):
            if fact.target:
                yield fact.target
        words = _words_of(link, "", self.corpus.entities[child].name)
        for query in (f"{node.noun} {words}", *(f"{words} {text}" for text in _queries(node.clues, node.noun))):
            for url in await self._search(f"find the {node.noun}", query):
                yield url

    async def _fits(self, node: Description, url: str, known: Description | None = None) -> bool:
        """Return True if an entity fits the description. Skip the child `known` if its own page has the link."""
        kind = self.corpus.entities[url].kind
        if (node.noun, kind) not in self.corpus.kinds:  # the name alone reveals the kind: a town is not a novel
            return False
        conditions = [(clue.attribute, clue.holds) for clue in node.clues]
        if node.noun != kind:
            conditions.insert(0, ("type", lambda fact: fact.value == node.noun))
        for attribute, holds in conditions:
            facts = await self.facts(url, attribute)
            if (facts or self.habits["read"]) and not any(map(holds, facts)):  # a habit may accept a missing fact
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
            candidates = [await self.look_up(child.name)]
        else:
            words = _words_of(link, child.noun, self.corpus.entities[url].name)
            candidates = await self._search(f"find the {child.noun}", words)
        for candidate in filter(None, candidates):
            is_linked = link.is_parents or url in [fact.target for fact in await self.facts(candidate, link.attribute)]
            if is_linked and (child.name or await self._fits(child, candidate)):
                return True
        return False

    async def _search(self, thought: str, words: str) -> list[str]:
        """Search, read the snippets, and return the results' urls in order, without pages outside the corpus."""
        observation, urls = await self._use(thought, "search", words), []
        if observation.startswith("["):
            results = [(result["url"], result["snippet"]) for result in json.loads(observation)]
        else:
            results = [self._read_result(line) for line in observation.splitlines()]
        for url, snippet in results:
            self._learn(snippet)
            urls += [url] if url in self.corpus.entities else []
        self.result_urls |= dict.fromkeys(urls)
        return urls

    def _read_result(self, line: str) -> tuple[str | None, str]:
        """Return the (url, snippet) of a compact result. Titles may contain ": "; the longest known title counts."""
        places = [match.start() for match in re.finditer(": ", line)]
        known = (place for place in reversed(places) if line[:place] in self.corpus.by_name)
        place = next(known, places[0] if places else len(line))
        return self.corpus.by_name.get(line[:place]), line[place + 2 :]

    async def _use(self, thought: str, tool: str, argument: str) -> str:
        if self.calls >= self.max_calls:
            raise OutOfCalls
        self.calls += 1
        arguments = {"query" if tool == "search" else "url": argument}
        thought = thought if self.environment.is_compact else f"Next I {thought}."
        observation = await observe(self.environment, tool, arguments)
        self.messages += call_messages(thought, tool, arguments, observation)
        return observation

    def _learn(self, text: str) -> None:
        for fact in self.corpus.read(text):
            self.known[fact.url][fact] = None


def _easiest_child(children: tuple[Description, ...]) -> Description:
    """Return a named child, or the child with the longest description."""
    return min(children, key=lambda child: (child.name is None, -len(list(child.walk())), -len(child.clues)))


def _words_of(link: Link, subject: str, other: str) -> str:
    """Return the words of a link's sentence as search words."""
    return link.pattern.replace(SUBJECT, subject).replace(OBJECT, other).strip(" .")


def _queries(clues: tuple[Clue, ...], noun: str) -> list[str]:
    """Return searches for a hidden entity: with all clues as worded, then with each possible year of a vague clue."""
    wordings = [clue.pattern.replace(SUBJECT, "").strip(" .") for clue in clues]
    queries = [f"{noun} {' '.join(wordings)}"]
    for clue in clues:
        if clue.low is not None and 1000 <= clue.low and clue.high <= 2099:
            others = " ".join(text for other, text in zip(clues, wordings, strict=True) if other.low is None)
            words = search_words(clue.attribute)
            queries += [f"{noun} {words} {year} {others}".strip() for year in range(clue.low, clue.high + 1)]
    return queries


class Teacher:
    """Scripted teacher. Each habit is on with probability `skill`; equal random states give equal trajectories."""

    def __init__(self, corpus: Corpus, environment: ResearchTools, max_calls: int = 40):
        self.corpus, self.environment, self.max_calls = corpus, environment, max_calls

    async def solve(self, query: Query, rng: random.Random, skill: float) -> Trajectory:
        constraints, is_closed = query.constraints, "description" in query.constraints
        habits = {habit: rng.random() < skill for habit in (HABITS if is_closed else OPEN_HABITS)}
        solver = Solver(self.corpus, self.environment, self.max_calls, habits)
        if is_closed:
            description = read_description(constraints["description"])
            text = await solver.answer(description, constraints["attribute"]) or "not found"
        else:
            text = "\n".join(await _write(solver, query)) or "I found nothing."
        thought = "answer" if self.environment.is_compact else "I have what I need; now the answer."
        messages = [*prompt_messages(query), *solver.messages, answer_message(thought, text)]
        return Trajectory(query.query_id, messages, "answer", meta={"habits": habits})


async def _write(solver: Solver, query: Query) -> list[str]:
    """Return the lines of a report: the sentences on each part's attributes, numbered for an outline."""
    parts = query.constraints["parts"]
    if not solver.habits["cover"]:
        parts = [part | {"attributes": part["attributes"][: (len(part["attributes"]) + 1) // 2]} for part in parts[:1]]
    blocks: list[list[str]] = []
    try:
        root = None
        for part in parts:
            facts, name, attributes = [], part.get("name"), part["attributes"]
            if "via" in part:
                facts = await solver.facts(root, part["via"]) if root else []
                name = facts[0].value if facts else None
            if name and (url := await solver.look_up(name, " ".join(map(search_words, attributes)))):
                root = root or url
                facts = facts + [fact for attribute in attributes for fact in await solver.facts(url, attribute)]
            blocks.append([_sentence(solver, fact) for fact in facts])
    except OutOfCalls:
        pass
    if not solver.habits["focus"]:
        blocks.append([fact.sentence for url in list(solver.result_urls)[-2:] for fact in list(solver.known[url])[:1]])
    lines = [" ".join(dict.fromkeys(block)) for block in blocks if block]
    return [f"{number}. {line}" for number, line in enumerate(lines, start=1)] if query.subtask == "Ideation" else lines


def _sentence(solver: Solver, fact: Fact) -> str:
    """Return the fact's sentence; without the habit `ground`, with a typical value in place of the true one."""
    if solver.habits["ground"]:
        return fact.sentence
    typical = "1900" if fact.attribute.endswith("year") else "1,000" if fact.number is not None else "unknown"
    before, _, after = fact.sentence.rpartition(fact.value)
    return f"{before}{typical}{after}"
