"""Write a rubric for each RL query with an LLM, once before training, for all methods (Tournament-GRPO, Appendix A).

    python -m arenarl.judges.query_rubrics --config configs/quickstart.yaml --judge configs/judges/qwen_plus.yaml

The file is <data.folder>/rl_rubrics.jsonl; set `judge.train.query_rubrics` to it. With --checklist, each item is met or
not met (Rubrics as Rewards), for `reward.name: rubric_checklist`, and the file is rl_checklists.jsonl. Queries with a
rubric in the file are skipped, unless their text has changed. An invalid rubric is requested once more; if the second
reply is invalid too, the query has no rubric.
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, StringConstraints

from arenarl.config.command_line import add_overrides
from arenarl.config.load import configure
from arenarl.config.schema import LLMConfig
from arenarl.domains.rubrics import Item, Rubric
from arenarl.llm.client import LLMClient, open_client
from arenarl.llm.json_reply import JSONReply
from arenarl.llm.prompts import Message, prompt_texts, quoted
from arenarl.system.errors import UserError, run_cli
from arenarl.trajectory import Query, numbered_records, read_jsonl, read_queries, write_jsonl

Dimension = Literal[
    "Coverage / Completeness", "Depth / Insight / Explanation", "Grounding / Citation Quality",
    "Instruction / Context Alignment", "Communication Quality",
]  # fmt: skip
Importance = Literal["critical", "important", "nice_to_have"]
OneLine = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=500),
    AfterValidator(lambda text: " ".join(text.split())),
]


class QueryItem(JSONReply):
    dimension: Dimension
    title: OneLine
    description: OneLine
    importance: Importance

    @property
    def text(self) -> str:
        return f"{self.title} ({self.dimension}, {self.importance}): {self.description}"


class QueryRubric(JSONReply):
    rubrics: Annotated[list[QueryItem], Field(min_length=5, max_length=7)]


class QueryChecklist(JSONReply):
    checklist: Annotated[list[QueryItem], Field(min_length=2, max_length=20)]


FORMS = {"rubrics": QueryRubric, "checklist": QueryChecklist}  # by the key in a reply and in a record
IMPORTANCE_WEIGHTS = {"critical": 3, "important": 2, "nice_to_have": 1}  # w_k of Eq. 13, Tournament-GRPO (Appendix F)


def rubric_messages(query: Query, form: str = "rubrics") -> list[Message]:
    """Return the prompt for a query's rubric or checklist; the reply is `FORMS[form]`."""
    texts = prompt_texts("rubric", query.language)
    task = texts[form].format(dimensions="; ".join(get_args(Dimension)), importances=", ".join(get_args(Importance)))
    reply = texts["reply"].format(form=form)
    content = "\n".join(["# Query", quoted(query.query, 20_000), "# Task", task.strip(), reply.strip()])
    return [{"role": "system", "content": texts["system"].strip()}, {"role": "user", "content": content}]


async def write_rubrics(
    client: LLMClient, llm: LLMConfig, queries: Sequence[Query], form: str = "rubrics"
) -> list[dict[str, Any]]:
    """Return the records of all valid rubrics or checklists, in the order of the queries."""

    async def write(query: Query) -> dict[str, Any] | None:
        again = prompt_texts("rubric", query.language)["again"]
        rubric = await client.ask(llm, rubric_messages(query, form), FORMS[form], again, about=query.query_id)
        about = {"query_id": query.query_id, "query": query.query, "model": llm.model}
        return rubric and about | rubric.model_dump()

    return [record for record in await asyncio.gather(*map(write, queries)) if record]


def read_query_rubrics(path: Path, queries: Sequence[Query]) -> dict[str, Rubric]:
    """Return rubrics or checklists by query id, with items item_1, … weighted by Eq. 13, Tournament-GRPO.

    The rubric of a query whose text has changed is left out; files of earlier versions do not hold the text.
    Raises UserError for a line that is not a rubric.
    """
    rubrics, texts = {}, {query.query_id: query.query for query in queries}
    for number, record in numbered_records(path):
        try:
            text = texts.get(record["query_id"])
            if text is not None and record.get("query", text) != text:
                continue
            form = "checklist" if "checklist" in record else "rubrics"
            items = getattr(FORMS[form].model_validate(record), form)
            items = tuple(
                Item(f"item_{place}", "answer", IMPORTANCE_WEIGHTS[item.importance], item.text)
                for place, item in enumerate(items, start=1)
            )
            rubrics[record["query_id"]] = Rubric(items, {"answer": sum(item.weight for item in items)})
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}, line {number} is not a rubric: {' '.join(str(error).split())[:200]}") from error
    return rubrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--config", required=True, help="YAML of the run whose RL queries get rubrics")
    parser.add_argument("--judge", required=True, help="a file in configs/judges: the LLM that writes the rubrics")
    parser.add_argument("--checklist", action="store_true", help="write checklists, whose items are met or not")
    add_overrides(parser)
    arguments = parser.parse_args()
    config = configure(arguments.config, [f"judge.train.base={arguments.judge}", *arguments.overrides])
    if config.judge.train.name != "llm":
        raise UserError(f"--judge: {arguments.judge} is not an LLM; only an LLM can write rubrics")
    form, file = ("checklist", "rl_checklists.jsonl") if arguments.checklist else ("rubrics", "rl_rubrics.jsonl")
    path = Path(config.data.folder) / file
    queries = read_queries(Path(config.data.folder) / "rl_queries.jsonl")
    stored = {}
    if path.is_file():
        known = read_query_rubrics(path, queries)  # rejects wrong lines before any call is paid for
        stored = {record["query_id"]: record for record in read_jsonl(path) if record["query_id"] in known}
    client = open_client(config.llms_of("rubrics"), config.judge, f"{config.run_name}/rubrics")
    missing = [query for query in queries if query.query_id not in stored]
    written = asyncio.run(write_rubrics(client, config.judge.train, missing, form))
    records = stored | {record["query_id"]: record for record in written}
    write_jsonl(path, [records[query.query_id] for query in queries if query.query_id in records])
    print(f"{len(written)} rubrics written to {path}, {len(queries) - len(missing)} already there")
    print(client.report())
    client.check()
    if count := len(missing) - len(written):
        remedy = "rerun the command; invalid replies are stored, so change the model or the temperature for them"
        raise UserError(f"{count} queries have no rubric: {remedy}")


if __name__ == "__main__":
    run_cli(main)
