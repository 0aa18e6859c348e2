"""Whether a query with a known answer was answered: exactly, or by an LLM that compares (C.1 and C.2, InfoAgent).

Rewards, evaluation and the difficulty filter ask here.
Where the known answer stands, and what exact means, is said in domains/known_answers.py.
"""

from typing import TYPE_CHECKING, Literal

from arenarl.config.schema import LLMConfig
from arenarl.domains.known_answers import is_correct
from arenarl.llm.json_reply import JSONReply
from arenarl.llm.prompts import Message, prompt_texts, quoted
from arenarl.trajectory import Query, Trajectory

if TYPE_CHECKING:
    from arenarl.llm.client import LLMClient

_MOST_CHARACTERS = 20_000  # of what a prompt quotes


class Verification(JSONReply):
    extracted_answer: str
    reasoning: str
    correctness: Literal["correct", "incorrect"]


class Verifier:
    """What `judge.verifier` names. An LLM is asked through the client, which keeps its replies."""

    def __init__(self, config: LLMConfig, client: "LLMClient | None"):
        self.config, self.client = config, client

    @property
    def is_llm(self) -> bool:
        return self.config.name == "llm"

    async def is_correct(self, query: Query, trajectory: Trajectory, repeat: int = 0) -> bool | None:
        """None if no verdict could be had. An invalid trajectory has no answer; of a void one nothing is known."""
        if trajectory.is_void:
            return None
        if not trajectory.valid:
            return False
        if not self.is_llm:
            return is_correct(query.constraints, trajectory.answer)
        again = prompt_texts("judge", query.language)["again"]
        said = await self.client.ask(
            self.config, verifier_messages(query, trajectory.answer), Verification, again, repeat, about=query.query_id
        )
        return None if said is None else said.correctness == "correct"


def verifier_messages(query: Query, answer: str) -> list[Message]:
    """What the LLM is shown, foreign text quoted line by line, so that an answer cannot speak as the one who asks."""
    texts = prompt_texts("verifier", query.language)
    known = " OR ".join([query.constraints["answer"], *query.constraints.get("answer_aliases", ())])
    shown = {"Question": query.query, "Response": answer, "Correct answer": known}
    blocks = [f"# {head}\n{quoted(text, _MOST_CHARACTERS)}" for head, text in shown.items()]
    user = "\n".join([*blocks, "# Task", texts["task"].strip(), texts["reply"].strip()])
    return [{"role": "system", "content": texts["system"].strip()}, {"role": "user", "content": user}]
