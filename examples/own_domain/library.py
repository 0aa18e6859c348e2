"""A domain of your own: two tools over a library's catalogue, and a judge that knows it (docs/tutorial.md)."""

from arenarl.domains.rubrics import domain_rubric
from arenarl.judges.judge import Judge, Verdict
from arenarl.rollout.environment import ToolError, check_call, tool_schema
from arenarl.trajectory import read_turns

BOOKS = {  # topic: title, shelf, copies on the shelf
    "tea": ("The Long Leaf", "C4", 2), "bees": ("Ten Thousand Wings", "A1", 0), "chess": ("Quiet Moves", "B7", 1),
    "comets": ("Ice and Fire", "D2", 3), "bread": ("Flour and Time", "C1", 0), "maps": ("The Shape of Home", "B3", 2),
    "opera": ("A Night at La Scala", "E5", 1), "snails": ("Slow Lives", "A6", 1), "glass": ("Sand Made Clear", "D8", 0),
    "kites": ("Paper Birds", "E2", 2), "salt": ("White Gold", "C9", 1), "tides": ("Moon and Water", "D4", 3),
}  # fmt: skip


class Catalogue:
    """The tools. Each trajectory has its own instance."""

    tools = [
        tool_schema("search", "The library's book about a topic.", {"topic": {"type": "string"}}),
        tool_schema("count", "How many copies of a book are on the shelf.", {"title": {"type": "string"}}),
    ]

    def __init__(self, config, language):
        """The keys under environment, and data.language."""

    def reset(self, query):
        """Called before the first turn of a trajectory."""

    def call(self, name, arguments):
        values = check_call(self.tools, name, arguments)
        for topic, (title, shelf, copies) in BOOKS.items():
            if values.get("topic") == topic:
                return f"{title}, shelf {shelf}"
            if values.get("title") == title:
                return f"copies: {copies}"
        raise ToolError("nothing found")  # the policy sees this text and can try again


class Librarian(Judge):
    """Score each dimension of the rubric from 0 to 10, by the catalogue's facts and without a language model."""

    def __init__(self, config=None):
        self.rubric = domain_rubric("library", "en")

    async def compare(self, query, first, second, repeat=0):
        return Verdict((self._scores(query, first), self._scores(query, second)), self.rubric.total)

    async def score(self, query, trajectory, answer_only=False, repeat=0):
        return Verdict((self._scores(query, trajectory),), self.rubric.total)

    def _scores(self, query, trajectory):
        title, shelf, copies = next((book for topic, book in BOOKS.items() if topic in query.query), ("?", "?", "?"))
        answer = trajectory.answer
        calls = [call.name for turn in read_turns(trajectory.messages) for call in turn.tool_calls]
        facts = [title in answer, f"shelf {shelf}" in answer, f"copies: {copies}" in answer]
        return {
            "path_lookup": 5.0 * ("search" in calls) + 5.0 * ("count" in calls),
            "answer_correct": 10.0 * sum(facts) / len(facts),
            "answer_brief": max(0.0, min(10.0, 20.0 - len(answer) / 5)),
        }
