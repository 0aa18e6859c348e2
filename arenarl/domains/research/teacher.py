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
from arenarl.domains.research.descriptions import read_description, search_words
from arenarl.domains.research.facts import Fact
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
        is_closed, is_compact = query.subtask == SUBTASK, self.environment.is_compact
        habits = {habit: rng.random() < skill for habit in (HABITS if is_closed else OPEN_HABITS)}
        messages: list[dict[str, Any]] = prompt_messages(query)

        async def call(thought: str, tool: str, argument: str) -> str:
            arguments = {"query" if tool == "search" else "url": argument}
            calls = [{"type": "function", "function": {"name": tool, "arguments": arguments}}]
            thought = thought if is_compact else f"Next I {thought}."
            messages.append({"role": "assistant", "reasoning_content": thought, "content": "", "tool_calls": calls})
            observation = await observe(self.environment, tool, arguments)
            messages.append(tool_message(observation))
            return observation

        solver = Solver(self.corpus, call, self.max_calls, is_compact, habits)
        if is_closed:
            root, attribute = read_description(query.constraints["description"]), query.constraints["attribute"]
            text = await solver.answer(root, attribute) or "not found"
        else:
            text = "\n".join(await _write(solver, query) or ["I found nothing."])
        thought = "answer" if is_compact else "I have what I need; now the answer."
        messages.append(assistant_message(f"<think>\n{thought}\n</think>\n\n<answer>\n{text}\n</answer>"))
        return Trajectory(query.query_id, messages, "answer", meta={"habits": habits})

    async def median(self, query: Query, rng: random.Random, skill: float, attempts: int) -> Trajectory:
        """The attempt of median quality."""
        solved = [await self.solve(query, rng, skill) for _ in range(attempts)]
        return median_of(solved, [self.quality(query, trajectory.answer) for trajectory in solved])

    def quality(self, query: Query, answer: str) -> float:
        """0 to 1: correct or not, or how many of the facts are there."""
        if query.subtask == SUBTASK:
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
