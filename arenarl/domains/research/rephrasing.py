"""f_llm of Eq. 2, InfoAgent: an LLM words a closed query anew, and with it the question generator of Eq. 4.

A wording counts only if it names nobody that the query hides, loses no name that it gives, and does not hold the
answer; the query keeps its own words otherwise. That the meaning is the same is left to the LLM.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from arenarl.config.schema import LLMConfig
from arenarl.domains.research.descriptions import Description
from arenarl.llm.client import LLMClient
from arenarl.llm.json_reply import JSONReply
from arenarl.llm.prompts import prompt_texts, quoted
from arenarl.trajectory import Query


class Rephrased(JSONReply):
    question: Annotated[str, Field(min_length=10, max_length=2000)]


async def rephrase(client: LLMClient, llm: LLMConfig, queries: Sequence[Query], taken: set[str]) -> list[Query]:
    """The closed queries in new words where the LLM had sound ones; texts in `taken` are not used again."""

    async def reworded(query: Query) -> str | None:
        reply = await client.ask(
            llm, synthesis_messages("rephrase", query.query), Rephrased, prompt_texts("synthesis", "en")["again"]
        )
        text = " ".join(reply.question.split()) if reply else ""
        return text if is_sound(text, query) else None

    texts = await asyncio.gather(*map(reworded, queries))
    done = []
    for query, text in zip(queries, texts, strict=True):
        is_new = text is not None and text not in taken
        done.append(replace(query, query=text) if is_new else query)
        taken.add(done[-1].query)
    return done


def is_sound(text: str, query: Query) -> bool:
    """Whether a wording of a closed query gives the same names, and nothing away."""
    wanted = query.constraints
    named = {node.name for node in Description.from_record(wanted["description"]).walk() if node.name}
    hidden = {*wanted["entities"], wanted["answer"], *wanted["answer_aliases"]} - named
    return bool(text) and all(_has(text, name) for name in named) and not any(_has(text, name) for name in hidden)


def _has(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE) is not None


def synthesis_messages(task: str, material: str) -> list[dict[str, str]]:
    texts = prompt_texts("synthesis", "en")
    asked = f"{texts[task].strip()}\n{quoted(material, 20_000)}\n{texts['reply_' + task].strip()}"
    return [{"role": "system", "content": texts["system"].strip()}, {"role": "user", "content": asked}]
