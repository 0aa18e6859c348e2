"""LLM steps in the synthesis of questions: extract facts from your own pages, and reword closed queries.

    python -m arenarl.domains.research.extraction --config configs/quickstart.yaml --judge configs/judges/vllm.yaml \\
        --pages pages.jsonl --out own.jsonl

extracts facts, F_i of Eq. 1, InfoAgent, in the format of `corpus.read_corpus`. A fact counts only if the page has its
sentence and the sentence has its value. A value that is another page's title makes the fact a relation to that page.

`rephrase` is f_llm of Eq. 2 together with the question generator of Eq. 4. A rewording is used only if it keeps all
given names, and contains neither hidden names nor the answer. Whether the meaning stays the same is not checked.
"""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from arenarl.config.load import configure
from arenarl.config.schema import LLMConfig
from arenarl.domains.research.corpus import read_pages
from arenarl.domains.research.descriptions import read_description
from arenarl.domains.stated_facts import stands_in
from arenarl.llm.client import LLMClient, open_client
from arenarl.llm.json_reply import JSONReply
from arenarl.llm.prompts import prompt_texts, quoted
from arenarl.system.errors import UserError, run_cli
from arenarl.trajectory import Query, read_jsonl, write_jsonl

Reply = TypeVar("Reply", bound=JSONReply)
Short = Annotated[str, Field(min_length=1, max_length=80)]


class ReadFact(JSONReply):
    attribute: Short
    value: Short
    sentence: Annotated[str, Field(min_length=1, max_length=1000)]


class ReadPage(JSONReply):
    kind: Short
    facts: list[ReadFact]


class Rephrased(JSONReply):
    question: Annotated[str, Field(min_length=10, max_length=2000)]


async def ask(
    client: LLMClient, llm: LLMConfig, task: str, material: str, reply_type: type[Reply], about: str = ""
) -> Reply | None:
    """Return an LLM's reply to a task of configs/prompts/synthesis_en.yaml, or None if it gave no valid reply."""
    texts = prompt_texts("synthesis", "en")
    content = f"{texts[task].strip()}\n{quoted(material, 20_000)}\n{texts['reply_' + task].strip()}"
    messages = [{"role": "system", "content": texts["system"].strip()}, {"role": "user", "content": content}]
    return await client.ask(llm, messages, reply_type, texts["again"], about=about)


async def add_facts(client: LLMClient, llm: LLMConfig, pages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all pages; a page without facts gets `kind` and `facts` from the LLM, if its reply is valid."""
    urls = {page["title"]: page["url"] for page in pages}

    async def read(page: dict[str, Any]) -> dict[str, Any]:
        if page.get("facts"):
            return page
        reply = await ask(client, llm, "facts", f"{page['title']}\n\n{page['text']}", ReadPage, about=page["url"])
        if reply is None:
            return page
        facts = []
        for fact in reply.facts:
            if fact.sentence in page["text"] and stands_in(fact.value, fact.sentence):
                target = urls.get(fact.value, page["url"])
                facts.append(fact.model_dump() | ({} if target == page["url"] else {"target": target}))
        return page | {"kind": reply.kind, "facts": facts}

    return list(await asyncio.gather(*map(read, pages)))


async def rephrase(client: LLMClient, llm: LLMConfig, queries: Sequence[Query], taken: set[str]) -> list[Query]:
    """Return the closed queries, reworded if the LLM's text is sound and not in `taken`; all texts are added to it."""
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
    """Return True if a rewording has all names of the closed query, and neither hidden names nor the answer."""
    constraints = query.constraints
    named = {node.name for node in read_description(constraints["description"]).walk() if node.name}
    hidden = {*constraints["entities"], constraints["answer"], *constraints["answer_aliases"]} - named

    def has(name: str) -> bool:
        return stands_in(name.lower(), text.lower())

    return bool(text) and all(map(has, named)) and not any(map(has, hidden))


def main() -> None:
    parser = argparse.ArgumentParser(description="Extract facts from your own pages with an LLM.")
    parser.add_argument("--config", required=True, help="a run's YAML, for its store of replies and its budget")
    parser.add_argument("--judge", required=True, help="a file of configs/judges, for the LLM that extracts facts")
    parser.add_argument("--pages", required=True, help="JSONL with url, title, text and, optionally, links")
    parser.add_argument("--out", required=True, help="JSONL to write; the value for data.research.corpus")
    arguments = parser.parse_args()
    config = configure(arguments.config, [f"data.research.rephraser.base={arguments.judge}"])
    llm = config.data.research.rephraser
    client = open_client([llm], config.judge, f"{config.run_name}/data")
    if client is None:
        raise UserError(f"{arguments.judge}: this judge is not an LLM; name a file of configs/judges with `name: llm`")
    path = Path(arguments.pages)
    read_pages(path)  # check the format; further fields of a page are kept
    pages = asyncio.run(add_facts(client, llm, list(read_jsonl(path))))
    write_jsonl(Path(arguments.out), pages)
    count = sum(len(page.get("facts", [])) for page in pages)
    print(f"{count} facts of {len(pages)} pages written to {arguments.out}")
    print(client.report())
    client.check()


if __name__ == "__main__":
    run_cli(main)
