"""f_llm of Eq. 2, InfoAgent: an LLM words a closed query anew, and with it the question generator of Eq. 4.

A wording counts only if it names nobody that the query hides, loses no name that it gives, and does not hold the
answer; the query keeps its own words otherwise. That the meaning is the same is left to the LLM.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, TypeVar

from pydantic import Field

from arenarl.config.schema import LLMConfig
from arenarl.domains.research.descriptions import read_description
from arenarl.llm.client import LLMClient
from arenarl.llm.json_reply import JSONReply
from arenarl.llm.prompts import prompt_texts, quoted
from arenarl.trajectory import Query

Reply = TypeVar("Reply", bound=JSONReply)


class Rephrased(JSONReply):
    question: Annotated[str, Field(min_length=10, max_length=2000)]


async def rephrase(client: LLMClient, llm: LLMConfig, queries: Sequence[Query], taken: set[str]) -> list[Query]:
    """The closed queries in new words where the LLM had sound ones; texts in `taken` are not used again."""
    replies = await asyncio.gather(*(ask(client, llm, "rephrase", query.query, Rephrased) for query in queries))
    reworded = []
    for query, reply in zip(queries, replies, strict=True):
        text = " ".join(reply.question.split()) if reply else ""
        if text not in taken and is_sound(text, query):
            query = replace(query, query=text)
        taken.add(query.query)
        reworded.append(query)
    return reworded


def is_sound(text: str, query: Query) -> bool:
    """Whether a wording of a closed query gives the same names, and nothing away."""
    wanted = query.constraints
    named = {node.name for node in read_description(wanted["description"]).walk() if node.name}
    hidden = {*wanted["entities"], wanted["answer"], *wanted["answer_aliases"]} - named

    def has(name: str) -> bool:
        return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE) is not None

    return bool(text) and all(map(has, named)) and not any(map(has, hidden))


async def ask(
    client: LLMClient, llm: LLMConfig, task: str, material: str, reply_type: type[Reply], about: str = ""
) -> Reply | None:
    """Return an LLM's reply to one task of configs/prompts/synthesis_en.yaml, or None if none could be had."""
    texts = prompt_texts("synthesis", "en")
    asked = f"{texts[task].strip()}\n{quoted(material, 20_000)}\n{texts['reply_' + task].strip()}"
    messages = [{"role": "system", "content": texts["system"].strip()}, {"role": "user", "content": asked}]
    return await client.ask(llm, messages, reply_type, texts["again"], about=about)
