"""WritingBench (arXiv 2503.05244): 1,000 writing queries, each with five criteria of its own,
scored 1 to 10 in a call each.

The score of a response is the mean of its five, that of the benchmark the mean over queries times 10, as on its
leaderboard. Official judge now: Claude-Sonnet-4.5, or the authors' critic model. Its items come with the package
inspect-evals.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated

from pydantic import ConfigDict, Field

from arenarl.benchmarks.benchmark import Ask, Benchmark, Figure, Intervals, Item, Message, Scored, Verdict
from arenarl.benchmarks.prompts import Edition, Prompts, package_folder
from arenarl.benchmarks.records import Record, Written, read_records
from arenarl.llm.json_reply import JSONReply
from arenarl.trajectory import language_of

DOMAINS = {  # as Table 4, ArenaRL, names them
    "Academic & Engineering": "WB-A", "Finance & Business": "WB-B", "Politics & Law": "WB-C",
    "Literature & Arts": "WB-D", "Education": "WB-E", "Advertising & Marketing": "WB-F",
}  # fmt: skip
_IN_PACKAGE = "writingbench/benchmark_all.jsonl"


class _Criterion(Record):
    model_config = ConfigDict(extra="allow")  # the levels "1-2" to "9-10" are shown too

    name: Written
    criteria_description: Written


class _Query(Record):
    index: Written
    domain1: Written
    domain2: Written
    query: Written
    checklist: Annotated[list[_Criterion], Field(min_length=5, max_length=5)]


class _Reply(JSONReply):
    score: Annotated[int, Field(ge=1, le=10)]
    reason: str


class WritingBench(Benchmark):
    name, title, size = "writingbench", "WritingBench", 1000
    judges = ("claude-sonnet-4-5", "claude-sonnet-4.5", "WritingBench-Critic-Model-Qwen-7B")
    judge_temperature = 1.0
    calls = 5
    files = ("benchmark_query/benchmark_all.jsonl", "benchmark_all.jsonl")
    editions = (
        Edition({"judge": ("prompt.py", "evaluate_prompt"), "system": ("prompt.py", "evaluate_system")}),
        Edition({"judge": ("writingbench/writingbench.py", "create_scoring_prompt")}, "inspect_evals"),
    )
    source = (
        "the package inspect-evals (pip install --no-deps inspect-evals==0.26.0), or github.com/X-PLUG/WritingBench"
    )

    def default_path(self) -> Path | None:
        folder = package_folder("inspect_evals")
        return folder / _IN_PACKAGE if folder and (folder / _IN_PACKAGE).is_file() else None

    def read(self, path: Path) -> list[Item]:
        records = read_records(*self.files_of(path), _Query, "index")
        return [
            Item(
                one.index,
                one.query,
                language_of(one.query),
                {"domain": one.domain1, "checklist": [each.model_dump() for each in one.checklist]},
            )
            for one in records
        ]

    async def judge(self, item: Item, response: str, prompts: Prompts, ask: Ask) -> Verdict | None:
        replies = await asyncio.gather(
            *(ask(_messages(item, response, one, prompts), _Reply) for one in item.fields["checklist"])
        )
        if None in replies:
            return None
        scores = [reply.score for reply in replies]
        return {"score": fmean(scores), "scores": scores, "reasons": [reply.reason for reply in replies]}

    def figures(self, scored: Sequence[Scored], intervals: Intervals) -> dict[str, Figure]:
        """Of 100: overall, and by domain where there are items of it."""
        domains = dict.fromkeys(one.item.fields["domain"] for one in scored)
        parts = {
            name: [one for one in scored if one.item.fields["domain"] == name]
            for name in [*DOMAINS, *domains]
            if name in domains
        }
        figures = {
            DOMAINS.get(name, name): intervals.mean(10 * one.mean("score") for one in part)
            for name, part in parts.items()
        }
        return {"score": intervals.mean(10 * one.mean("score") for one in scored)} | figures


def _messages(item: Item, response: str, criterion: dict[str, str], prompts: Prompts) -> list[Message]:
    """The official texts name query, response and criterion each in their way."""
    shown = criterion if prompts.is_official else "\n".join(f"{name}: {text}" for name, text in criterion.items())
    fields = {
        "query": item.query,
        "question": item.query,
        "response": response,
        "answer": response,
        "criteria": shown,
        "checklist": [shown],
    }
    return prompts.messages("judge", **fields)
