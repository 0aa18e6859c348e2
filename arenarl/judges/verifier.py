"""Verify answers to queries with a known answer: exactly, or with an LLM (C.1 and C.2, InfoAgent).

Rewards, evaluation and the difficulty filter use this module. domains/known_answers.py reads the known answer and
defines the exact comparison.
"""

from typing import Literal

from arenarl.config.schema import LLMConfig
from arenarl.domains.known_answers import is_correct
from arenarl.llm.client import LLMClient
from arenarl.llm.json_reply import JSONReply
from arenarl.llm.prompts import Message, prompt_texts, quoted
from arenarl.trajectory import Query, Trajectory

_MAX_CHARS = 20_000  # per quoted text


class Verification(JSONReply):
    extracted_answer: str
    reasoning: str
    correctness: Literal["correct", "incorrect"]


class Verifier:
    """The verifier that `judge.verifier` configures. The LLM client stores its replies."""

    def __init__(self, config: LLMConfig, client: LLMClient | None):
        self.config, self.client = config, client

    @property
    def is_llm(self) -> bool:
        return self.config.name == "llm"

    async def is_correct(self, query: Query, trajectory: Trajectory, repeat: int = 0) -> bool | None:
        """Return whether the answer is correct: no if it is invalid, None if it is void or a verdict is missing."""
        if trajectory.is_void:
            return None
        if not trajectory.valid:
            return False
        if not self.is_llm:
            return is_correct(query.constraints, trajectory.answer)
        again = prompt_texts("judge", query.language)["again"]
        messages = verifier_messages(query, trajectory.answer)
        reply = await self.client.ask(self.config, messages, Verification, again, repeat, about=query.query_id)
        return None if reply is None else reply.correctness == "correct"


def verifier_messages(query: Query, answer: str) -> list[Message]:
    """Return the LLM's prompt. Foreign text is quoted line by line, so that an answer cannot imitate instructions."""
    texts = prompt_texts("verifier", query.language)
    known = " OR ".join([query.constraints["answer"], *query.constraints.get("answer_aliases", ())])
    sections = {"Question": query.query, "Response": answer, "Correct answer": known}
    blocks = [f"# {head}\n{quoted(text, _MAX_CHARS)}" for head, text in sections.items()]
    user = "\n".join([*blocks, "# Task", texts["task"].strip(), texts["reply"].strip()])
    return [{"role": "system", "content": texts["system"].strip()}, {"role": "user", "content": user}]
