"""WebWalkerQA (arXiv 2501.07572): 680 questions about websites, in Chinese and English, graded by langchain's `cot_qa`.

Figures: accuracy overall and in six cells, by how many pages an answer is spread over and how hard it is to find.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from arenarl.benchmarks.benchmark import Ask, Benchmark, Figure, Intervals, Item, Scored, Verdict
from arenarl.benchmarks.prompts import Edition, Prompts
from arenarl.benchmarks.records import Record, Written, read_records
from arenarl.llm.json_reply import without_thinking
from arenarl.trajectory import language_of

_TEMPLATE = {"judge": ("evaluation/qa/eval_prompt.py", "cot_template")}
CELLS = [
    f"{pages}_{difficulty}" for pages in ("single_source", "multi_source") for difficulty in ("easy", "medium", "hard")
]


class _Lower(Record):
    """Names and values in whatever case: the data set's card and its file differ."""

    @model_validator(mode="before")
    @classmethod
    def _lower(cls, row: Any) -> Any:
        return {str(name).lower(): value for name, value in row.items()} if isinstance(row, dict) else row


def _one_word(text: Any) -> Any:
    return text.lower().replace("-", "_") if isinstance(text, str) else text


class _Info(_Lower):
    type: Annotated[Literal["single_source", "multi_source"], BeforeValidator(_one_word)] = Field(
        validation_alias=AliasChoices("type", "hop")
    )
    difficulty_level: Annotated[Literal["easy", "medium", "hard"], BeforeValidator(_one_word)]


class _Question(_Lower):
    question: Written
    answer: Written
    root_url: Written
    info: _Info


class WebWalkerQA(Benchmark):
    name, title, size = "webwalkerqa", "WebWalkerQA", 680
    judges = ("gpt-4",)
    judge_temperature = 0.0  # of the model that langchain takes by itself
    has_search = True
    files = ("data/main-00000-of-00001.jsonl",)
    editions = (Edition(_TEMPLATE, "langchain"), Edition(_TEMPLATE, "langchain_classic"))
    source = "the data set callanwu/WebWalkerQA of the hub"

    def read(self, path: Path) -> list[Item]:
        records = read_records(*self.files_of(path), _Question)
        return [
            Item(str(number), one.question, language_of(one.question), {
                "answer": one.answer, "root_url": one.root_url, "cell": f"{one.info.type}_{one.info.difficulty_level}",
            })
            for number, one in enumerate(records)
        ]  # fmt: skip

    def query(self, item: Item, prompts: Prompts) -> str:
        return prompts.query(question=item.query, root_url=item.fields["root_url"])

    async def judge(self, item: Item, response: str, prompts: Prompts, ask: Ask) -> Verdict | None:
        return await ask(
            prompts.messages("judge", query=item.query, context=item.fields["answer"], result=response), read_grade
        )

    def figures(self, scored: Sequence[Scored], intervals: Intervals) -> dict[str, Figure]:
        parts = {cell: [one for one in scored if one.item.fields["cell"] == cell] for cell in CELLS}
        figures = {cell: intervals.mean(100 * one.mean("correct") for one in part) for cell, part in parts.items()}
        return {"score": intervals.mean(100 * one.mean("correct") for one in scored)} | figures


def read_grade(text: str) -> Verdict:
    """As langchain reads it: the first grade, else the first word of the reply, else the last. Raises ValueError."""
    said = without_thinking(text)
    words = re.findall(r"\w+", said)
    graded = re.search(r"\bGRADE\W*(CORRECT|INCORRECT)\b", said, re.IGNORECASE)
    for grade in [graded[1]] if graded else [*words[:1], *words[-1:]]:
        if grade.upper() in ("CORRECT", "INCORRECT"):
            return {"correct": float(grade.upper() == "CORRECT")}
    raise ValueError('it has no line "GRADE: CORRECT" or "GRADE: INCORRECT"')
