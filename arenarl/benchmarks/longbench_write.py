"""LongBench-Write (arXiv 2408.07055): 120 writing requests, each with a length that is asked for.

S_l says how near the response comes to that length, S_q how good it is in six dimensions, whatever its length; the
total is their mean. Table 4, ArenaRL, has S_q.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated

from pydantic import Field

from arenarl.benchmarks.benchmark import Ask, Benchmark, Figure, Intervals, Item, Scored, Verdict
from arenarl.benchmarks.prompts import Edition, Prompts
from arenarl.benchmarks.records import Record, Written, read_records
from arenarl.llm.json_reply import JSONReply
from arenarl.trajectory import language_of

_Points = Annotated[int, Field(ge=1, le=5)]


class _Request(Record):
    prompt: Written
    type: Written
    length: Annotated[int, Field(gt=0)]


class _Reply(JSONReply):
    relevance: _Points = Field(alias="Relevance")
    accuracy: _Points = Field(alias="Accuracy")
    coherence: _Points = Field(alias="Coherence")
    clarity: _Points = Field(alias="Clarity")
    breadth_and_depth: _Points = Field(alias="Breadth and Depth")
    reading_experience: _Points = Field(alias="Reading Experience")


class LongBenchWrite(Benchmark):
    name, title, size = "longbench_write", "LongBench-Write", 120
    judges = ("gpt-4o",)
    judge_temperature = 0.5
    files = ("evaluation/longbench_write.jsonl", "longbench_write.jsonl")
    editions = (Edition({"judge": ("evaluation/judge.txt", "")}), Edition({"judge": ("judge.txt", "")}))
    source = "github.com/THUDM/LongWriter, evaluation/longbench_write.jsonl"

    def read(self, path: Path) -> list[Item]:
        records = read_records(*self.files_of(path), _Request)
        return [
            Item(str(number), one.prompt, language_of(one.prompt), {"length": one.length})
            for number, one in enumerate(records)
        ]

    async def judge(self, item: Item, response: str, prompts: Prompts, ask: Ask) -> Verdict | None:
        reply = await ask(prompts.messages("judge", query=item.query, response=response), _Reply)
        return reply and {"words": count_words(response), **reply.model_dump()}

    def figures(self, scored: Sequence[Scored], intervals: Intervals) -> dict[str, Figure]:
        """S_q's dimensions too, each of 100."""
        dimensions = {name: [25 * (one.mean(name) - 1) for one in scored] for name in _Reply.model_fields}
        quality = [fmean(points) for points in zip(*dimensions.values(), strict=True)]
        length = [length_score(one.item.fields["length"], int(one.mean("words"))) for one in scored]
        totals = [fmean(both) for both in zip(length, quality, strict=True)]
        figures = {"score": totals, "S_l": length, "S_q": quality, **dimensions}
        return {name: intervals.mean(values) for name, values in figures.items()}


def length_score(asked: int, written: int) -> float:
    """S_l, 0 to 100: nothing from four times the length on, nor below a third of it.

    >>> [length_score(1000, written) for written in (1000, 2500, 4000, 500, 0)]
    [100.0, 50.0, 0.0, 50.0, 0.0]
    """
    if written > asked:
        return 100 * max(0.0, 1 - (written / asked - 1) / 3)
    return 100 * max(0.0, 1 - (asked / written - 1) / 2) if written else 0.0


def count_words(text: str) -> int:
    """Chinese characters and words of Latin letters.

    >>> count_words("你好, my 2 friends")
    4
    """
    return len(re.findall(r"[\u4e00-\u9fff]", text)) + len(re.findall(r"\b[a-zA-Z]+\b", text))
