"""A scripted teacher for closed and open-ended queries, which really calls the tools and is of deliberately mixed
quality.

As in `travel/teacher.py`, its habits are each off more often than on, so that SFT teaches all it takes to research well
and leaves it to RL to choose that. InfoAgent's trajectories are o3's (A.2), ArenaRL's a closed model's; this stands in
where neither can be had.
"""

import random
from typing import Any

from arenarl.domains.domain import median_of
from arenarl.domains.known_answers import is_correct
from arenarl.domains.research.corpus import Corpus
from arenarl.domains.research.descriptions import Description, search_words
from arenarl.domains.research.entities import Fact
from arenarl.domains.research.open_queries import covered
from arenarl.domains.research.questions import SUBTASK
from arenarl.domains.research.solver import HABITS, OutOfCalls, ResearchTools, Solver
from arenarl.rollout.environment import observe
from arenarl.trajectory import Query, Trajectory, assistant_message, prompt_messages, tool_message

OPEN_HABITS = ("match", "cover", "read", "ground", "focus")
# match, read, ground: as the solver's · cover: looks up all that the query names, not only the first half of it ·
# focus: leaves out what it came across besides


class Teacher:
    """`solve` draws its habits with probability `skill` each; the same random state gives the same trajectory."""

    def __init__(self, corpus: Corpus, environment: ResearchTools, max_calls: int = 40):
        self.corpus, self.environment, self.max_calls = corpus, environment, max_calls

    async def solve(self, query: Query, rng: random.Random, skill: float) -> Trajectory:
        is_closed = query.subtask == SUBTASK
        habits = {habit: rng.random() < skill for habit in (HABITS if is_closed else OPEN_HABITS)}
        attempt = _Attempt(self.environment, query)
        solver = Solver(self.corpus, attempt.call, self.max_calls, self.environment.is_compact, habits)
        if is_closed:
            wanted = query.constraints
            lines = [
                await solver.answer(Description.from_record(wanted["description"]), wanted["attribute"]) or "not found"
            ]
        else:
            lines = await _write(solver, query) or ["I found nothing."]
        attempt.answer("\n".join(lines))
        return Trajectory(query.query_id, attempt.messages, "answer", meta={"habits": habits})

    async def median(self, query: Query, rng: random.Random, skill: float, attempts: int) -> Trajectory:
        """The attempt of median quality."""
        solved = [await self.solve(query, rng, skill) for _ in range(attempts)]
        quality = [self.quality(query, trajectory.answer) for trajectory in solved]
        return median_of(solved, quality)

    def quality(self, query: Query, answer: str) -> float:
        """0 to 1: correct or not, or how many of the facts are there."""
        if query.subtask == SUBTASK:
            return float(is_correct(query.constraints, answer))
        return covered(self.corpus, query.constraints, answer)


class _Attempt:
    """The messages of one attempt as it goes, in the form of the environment's results."""

    def __init__(self, environment: ResearchTools, query: Query):
        self.environment = environment
        self.messages: list[dict[str, Any]] = prompt_messages(query)

    async def call(self, thought: str, tool: str, argument: str) -> str:
        arguments = {"query" if tool == "search" else "url": argument}
        function = {"type": "function", "function": {"name": tool, "arguments": arguments}}
        thought = thought if self.environment.is_compact else f"Next I {thought}."
        self.messages.append(
            {"role": "assistant", "reasoning_content": thought, "content": "", "tool_calls": [function]}
        )
        observation = await observe(self.environment, tool, arguments)
        self.messages.append(tool_message(observation))
        return observation

    def answer(self, text: str) -> None:
        thought = "answer" if self.environment.is_compact else "I have what I need; now the answer."
        self.messages.append(assistant_message(f"<think>\n{thought}\n</think>\n\n<answer>\n{text}\n</answer>"))


async def _write(solver: Solver, query: Query) -> list[str]:
    """The lines of a report: what each part's page says of its attributes, in the form of the query's category."""
    parts = query.constraints["parts"]
    if not solver.habits["cover"]:
        parts = [part | {"attributes": part["attributes"][: (len(part["attributes"]) + 1) // 2]} for part in parts[:1]]
    blocks: list[list[str]] = []
    try:
        root = None
        for part in parts:
            block, name = [], part.get("name")
            if "via" in part:
                links = await solver.facts(root, part["via"]) if root else []
                block = [_stated(solver, fact) for fact in links]
                name = links[0].value if links else None
            url = await solver.learn_about(name, " ".join(map(search_words, part["attributes"]))) if name else None
            root = root or url
            if url:
                block += [
                    _stated(solver, fact)
                    for attribute in part["attributes"]
                    for fact in await solver.facts(url, attribute)
                ]
            blocks.append(block)
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
