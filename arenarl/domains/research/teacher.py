"""A scripted teacher for closed and open-ended queries, which calls the tools and is of deliberately mixed quality.

As in `travel/teacher.py`, its habits are each off more often than on, so that SFT teaches all it takes to research well
and leaves it to RL to choose that. InfoAgent's trajectories are o3's (A.2), ArenaRL's a closed model's; this stands in
where neither can be had.

Its solver of closed questions is also the solvability check of 3.1, InfoAgent. It is given a question's description, so
it need not parse English, and reads what tools return as `Corpus.read` does: it knows only facts whose sentences it was
shown. It starts at an entity that is named, or at clues, follows links, and tries further candidates until one fits
all.
"""

import json
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Protocol

from arenarl.domains.domain import median_of
from arenarl.domains.known_answers import is_correct
from arenarl.domains.research.corpus import Corpus
from arenarl.domains.research.descriptions import Description, Link, read_description, search_words
from arenarl.domains.research.facts import OBJECT, SUBJECT, Clue, Fact
from arenarl.domains.research.open_queries import covered
from arenarl.rollout.environment import Environment, observe
from arenarl.trajectory import Query, Trajectory, assistant_message, prompt_messages, tool_message

OPEN_HABITS = ("match", "cover", "read", "ground", "focus")
HABITS = ("match", "follow", "read", "ground")
# match: takes the result with the right title, not the first · follow: goes on to the entity that is asked about, not
# only to the first one found · read: opens the page where a snippet does not say · ground: states what it read, not
# something typical · cover: looks up all that the query names, not only the first half · focus: leaves out what it came
# across besides


class ResearchTools(Environment, Protocol):
    """An environment with `search` and `browse`, such as `ResearchEnvironment`."""

    is_compact: bool  # a line a page, which opens by its title; else JSON


class OutOfCalls(Exception):
    """The budget of tool calls is used up."""


class Solver:
    """One attempt of at most `max_calls` tool calls. In the compact form pages open by their title."""

    def __init__(
        self, corpus: Corpus, environment: ResearchTools, max_calls: int, habits: dict[str, bool] | None = None
    ):
        self.corpus, self.environment, self.max_calls = corpus, environment, max_calls
        self.habits = habits or dict.fromkeys(HABITS, True)
        self.calls, self.messages = 0, []
        self.known: dict[str, dict[Fact, None]] = defaultdict(dict)  # what it read, by url, in the order of reading
        self.shown: dict[str, None] = {}  # urls among the results so far
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
        if not self.environment.is_compact and url not in self.shown:
            await self._search(f"find {name}", name)  # its address
        page = await self._use(f"read {name}", "browse", name if self.environment.is_compact else url)
        self._learn(json.loads(page)["text"] if page.startswith("{") else page)

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
        """Candidates for a hidden entity: known parents, those that the child's page names, then those of a search."""
        if not link.is_parents:
            for fact in await self.facts(child, link.attribute):
                if fact.target:
                    yield fact.target
            return
        tried = set()
        async for url in self._possible_parents(child, link, node):
            if url not in tried and self._may_be(url, node.noun):
                tried.add(url)
                yield url

    async def _possible_parents(self, child: str, link: Link, node: Description) -> AsyncIterator[str]:
        for url, facts in list(self.known.items()):
            if any(fact.target == child and fact.attribute == link.attribute for fact in facts):
                yield url
        if self.habits["read"]:
            await self._open(child)
        for fact in list(self.known[child]):
            if fact.target:
                yield fact.target
        words = _words_of(link, "", self.corpus.entities[child].name)
        for query in (f"{node.noun} {words}", *(f"{words} {text}" for text in _queries(node.clues, node.noun))):
            for url in await self._search(f"find the {node.noun}", query):
                yield url

    def _may_be(self, url: str, noun: str) -> bool:
        """A town is no novel: names alone tell as much."""
        return (noun, self.corpus.entities[url].kind) in self.corpus.kinds

    async def _fits(self, node: Description, url: str, known: Description | None = None) -> bool:
        """Whether an entity meets the description. If the page of the child `known` has their link, it led here."""
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
        observation, urls = await self._use(thought, "search", words), []
        if observation.startswith("["):
            results = [(result["url"], result["snippet"]) for result in json.loads(observation)]
        else:
            lines = (line.partition(": ") for line in observation.splitlines())
            results = [(self.corpus.by_name.get(title), snippet) for title, _, snippet in lines]
        for url, snippet in results:
            self._learn(snippet)
            urls += [url] if url in self.corpus.entities else []  # a search may show pages outside the corpus
        self.shown |= dict.fromkeys(urls)
        return urls

    async def _use(self, thought: str, tool: str, argument: str) -> str:
        if self.calls >= self.max_calls:
            raise OutOfCalls
        self.calls += 1
        arguments = {"query" if tool == "search" else "url": argument}
        calls = [{"type": "function", "function": {"name": tool, "arguments": arguments}}]
        thought = thought if self.environment.is_compact else f"Next I {thought}."
        self.messages.append({"role": "assistant", "reasoning_content": thought, "content": "", "tool_calls": calls})
        observation = await observe(self.environment, tool, arguments)
        self.messages.append(tool_message(observation))
        return observation

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


class Teacher:
    """`solve` draws its habits with probability `skill` each; the same random state gives the same trajectory."""

    def __init__(self, corpus: Corpus, environment: ResearchTools, max_calls: int = 40):
        self.corpus, self.environment, self.max_calls = corpus, environment, max_calls

    async def solve(self, query: Query, rng: random.Random, skill: float) -> Trajectory:
        is_closed, wanted = "description" in query.constraints, query.constraints
        habits = {habit: rng.random() < skill for habit in (HABITS if is_closed else OPEN_HABITS)}
        solver = Solver(self.corpus, self.environment, self.max_calls, habits)
        if is_closed:
            text = await solver.answer(read_description(wanted["description"]), wanted["attribute"]) or "not found"
        else:
            text = "\n".join(await _write(solver, query)) or "I found nothing."
        thought = "answer" if self.environment.is_compact else "I have what I need; now the answer."
        answer = assistant_message(f"<think>\n{thought}\n</think>\n\n<answer>\n{text}\n</answer>")
        messages = [*prompt_messages(query), *solver.messages, answer]
        return Trajectory(query.query_id, messages, "answer", meta={"habits": habits})

    async def median(self, query: Query, rng: random.Random, skill: float, attempts: int) -> Trajectory:
        """The attempt of median quality."""
        solved = [await self.solve(query, rng, skill) for _ in range(attempts)]
        return median_of(solved, [self.quality(query, trajectory.answer) for trajectory in solved])

    def quality(self, query: Query, answer: str) -> float:
        """0 to 1: correct or not, or how many of the facts are there."""
        if "description" in query.constraints:
            return float(is_correct(query.constraints, answer))
        return covered(self.corpus, query.constraints, answer)


async def _write(solver: Solver, query: Query) -> list[str]:
    """The lines of a report: what each part's page says of its attributes, in the form of the query's category."""
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
            if name and (url := await solver.learn_about(name, " ".join(map(search_words, attributes)))):
                root = root or url
                facts = facts + [fact for attribute in attributes for fact in await solver.facts(url, attribute)]
            blocks.append([_stated(solver, fact) for fact in facts])
    except OutOfCalls:
        pass
    if not solver.habits["focus"]:
        blocks.append([fact.sentence for url in list(solver.shown)[-2:] for fact in list(solver.known[url])[:1]])
    lines = [" ".join(dict.fromkeys(block)) for block in blocks if block]
    return [f"{number}. {line}" for number, line in enumerate(lines, start=1)] if query.subtask == "Ideation" else lines


def _stated(solver: Solver, fact: Fact) -> str:
    """The fact's sentence; with something typical in its place if the habit of grounding is off."""
    if solver.habits["ground"]:
        return fact.sentence
    typical = "1900" if fact.attribute.endswith("year") else "1,000" if fact.number is not None else "unknown"
    before, _, after = fact.sentence.rpartition(fact.value)
    return f"{before}{typical}{after}"
