"""Facts of your own pages, found by an LLM: F_i of Eq. 1, InfoAgent, in the form that `corpus.read_corpus` takes.

    python -m arenarl.domains.research.extraction --config configs/quickstart.yaml --judge configs/judges/vllm.yaml \\
        --pages pages.jsonl --out own.jsonl

A fact counts only if its sentence stands in the page and its value in the sentence; a value that is the title of
another page is a relation to it. Pages that have facts already are left as they are.
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from arenarl.config.load import load_config
from arenarl.config.schema import LLMConfig
from arenarl.domains.research.corpus import read_pages
from arenarl.domains.research.rephrasing import ask
from arenarl.domains.stated_facts import stands_in
from arenarl.llm.client import LLMClient, open_client
from arenarl.llm.json_reply import JSONReply
from arenarl.system.errors import UserError, guarded
from arenarl.trajectory import write_jsonl

Short = Annotated[str, Field(min_length=1, max_length=80)]


class ReadFact(JSONReply):
    attribute: Short
    value: Short
    sentence: Annotated[str, Field(min_length=1, max_length=1000)]


class ReadPage(JSONReply):
    kind: Short
    facts: list[ReadFact]


async def add_facts(client: LLMClient, llm: LLMConfig, pages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pages, each with `kind` and `facts` where a reply could be had."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--config", required=True, help="a run's YAML: its store of replies and budget are used")
    parser.add_argument("--judge", required=True, help="a file of configs/judges: the LLM that reads")
    parser.add_argument("--pages", required=True, help="JSONL with url, title, text, and links if there are any")
    parser.add_argument("--out", required=True, help="JSONL to write, for data.research.corpus")
    arguments = parser.parse_args()
    config = load_config(arguments.config, [f"data.research.rephraser.base={arguments.judge}"])
    llm = config.data.research.rephraser
    client = open_client([llm], config.judge, f"{config.run_name}/data")
    if client is None:
        raise UserError(f"{arguments.judge} is no LLM: facts have to be read by one")
    records = [record.model_dump(exclude_none=True) for record in read_pages(Path(arguments.pages))]
    pages = asyncio.run(add_facts(client, llm, records))
    write_jsonl(Path(arguments.out), pages)
    known = sum(len(page.get("facts", [])) for page in pages)
    print(f"{known} facts of {len(pages)} pages written to {arguments.out}")
    print(client.report())
    client.check()


if __name__ == "__main__":
    guarded(main)
