"""Benchmarks of long texts that a judge scores by criteria.

- WritingBench (arXiv 2503.05244): 1,000 writing queries, each with its own five criteria. The package inspect-evals has
  the items.
- LongBench-Write (arXiv 2408.07055): 120 writing requests, each with a required length.
- HelloBench (arXiv 2409.16191): 647 long texts, each checked against its category's checklist in one call.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, ConfigDict, Field, ValidationError

from arenarl.benchmarks.benchmark import Ask, Benchmark, Figure, Intervals, Item, Message, Scored, Verdict
from arenarl.benchmarks.prompts import Edition, Prompts, package_folder
from arenarl.benchmarks.records import Record, Written, official_file
from arenarl.llm.json_reply import JSONReply, json_objects, without_thinking
from arenarl.system.errors import UserError
from arenarl.system.user_input import first_problem
from arenarl.trajectory import language_of

DOMAINS = {  # WritingBench's domain -> its name in Table 4, ArenaRL
    "Academic & Engineering": "WB-A", "Finance & Business": "WB-B", "Politics & Law": "WB-C",
    "Literature & Arts": "WB-D", "Education": "WB-E", "Advertising & Marketing": "WB-F",
}  # fmt: skip
_IN_PACKAGE = "writingbench/benchmark_all.jsonl"


class _Criterion(Record):
    model_config = ConfigDict(extra="allow")  # the prompt shows the levels "1-2" to "9-10" too

    name: Written
    criteria_description: Written


class _Query(Record):
    index: Written
    domain1: Written
    domain2: Written
    query: Written
    checklist: Annotated[list[_Criterion], Field(min_length=5, max_length=5)]


class _CriterionReply(JSONReply):
    score: Annotated[int, Field(ge=1, le=10)]
    reason: str


class WritingBench(Benchmark):
    """A response's score is the mean of its five criteria, each scored 1 to 10 in its own call. The benchmark's score
    is the mean over queries times 10, as on its leaderboard. Official judges: Claude-Sonnet-4.5, the authors' critic
    model."""

    name, title, size = "writingbench", "WritingBench", 1000
    judges = ("claude-sonnet-4-5", "claude-sonnet-4.5", "WritingBench-Critic-Model-Qwen-7B")
    judge_temperature = 1.0
    calls = 5
    files = ("benchmark_query/benchmark_all.jsonl", "benchmark_all.jsonl")
    editions = (
        Edition({"judge": ("prompt.py", "evaluate_prompt"), "system": ("prompt.py", "evaluate_system")}),
        Edition({"judge": ("writingbench/writingbench.py", "create_scoring_prompt")}, "inspect_evals"),
    )
    source = "github.com/X-PLUG/WritingBench, or the package: pip install --no-deps inspect-evals==0.26.0"
    record, unique = _Query, "index"

    def default_path(self) -> Path | None:
        folder = package_folder("inspect_evals")
        return folder / _IN_PACKAGE if folder and (folder / _IN_PACKAGE).is_file() else None

    def item(self, record: Any, number: int, file: Path) -> Item:
        fields = {"domain": record.domain1, "checklist": [criterion.model_dump() for criterion in record.checklist]}
        return Item(record.index, record.query, language_of(record.query), fields)

    async def judge(self, item: Item, response: str, prompts: Prompts, ask: Ask) -> Verdict | None:
        messages = (_messages(item, response, criterion, prompts) for criterion in item.fields["checklist"])
        replies = await asyncio.gather(*(ask(message, _CriterionReply) for message in messages))
        if None in replies:
            return None
        scores = [reply.score for reply in replies]
        return {"score": fmean(scores), "scores": scores, "reasons": [reply.reason for reply in replies]}

    def figures(self, scored: Sequence[Scored], intervals: Intervals) -> dict[str, Figure]:
        """Return scores out of 100: overall, and for each domain that has items."""
        parts: dict[str, list[Scored]] = {name: [] for name in DOMAINS}
        for entry in scored:
            parts.setdefault(entry.item.fields["domain"], []).append(entry)
        named = {"score": scored} | {DOMAINS.get(name, name): entries for name, entries in parts.items() if entries}
        return {name: intervals.figure("score", entries, 10) for name, entries in named.items()}


def _messages(item: Item, response: str, criterion: dict[str, str], prompts: Prompts) -> list[Message]:
    """Fill the judge's prompt; the official editions have different names for query, response and criterion."""
    text = criterion if prompts.is_official else "\n".join(f"{name}: {text}" for name, text in criterion.items())
    names = {"query": item.query, "question": item.query, "response": response, "answer": response}
    return prompts.messages("judge", **names, criteria=text, checklist=[text])


_Points = Annotated[int, Field(ge=1, le=5)]


class _Request(Record):
    prompt: Written
    type: Written
    length: Annotated[int, Field(gt=0)]


class _QualityReply(JSONReply):
    relevance: _Points = Field(alias="Relevance")
    accuracy: _Points = Field(alias="Accuracy")
    coherence: _Points = Field(alias="Coherence")
    clarity: _Points = Field(alias="Clarity")
    breadth_and_depth: _Points = Field(alias="Breadth and Depth")
    reading_experience: _Points = Field(alias="Reading Experience")


class LongBenchWrite(Benchmark):
    """S_l measures how near a response comes to the required length, S_q its quality in six dimensions. The score is
    their mean. Table 4, ArenaRL, reports S_q."""

    name, title, size = "longbench_write", "LongBench-Write", 120
    judges = ("gpt-4o",)
    judge_temperature = 0.5
    files = ("evaluation/longbench_write.jsonl", "longbench_write.jsonl")
    editions = (Edition({"judge": ("evaluation/judge.txt", "")}), Edition({"judge": ("judge.txt", "")}))
    source = "github.com/THUDM/LongWriter, evaluation/longbench_write.jsonl"
    record = _Request

    def item(self, record: Any, number: int, file: Path) -> Item:
        return Item(str(number), record.prompt, language_of(record.prompt), {"length": record.length})

    async def judge(self, item: Item, response: str, prompts: Prompts, ask: Ask) -> Verdict | None:
        reply = await ask(prompts.messages("judge", query=item.query, response=response), _QualityReply)
        return reply and {"words": count_words(response), **reply.model_dump()}

    def figures(self, scored: Sequence[Scored], intervals: Intervals) -> dict[str, Figure]:
        """Return the score, S_l, S_q and the six dimensions, each out of 100."""
        dimensions = {name: [25 * (entry.mean(name) - 1) for entry in scored] for name in _QualityReply.model_fields}
        quality = [fmean(points) for points in zip(*dimensions.values(), strict=True)]
        length = [length_score(entry.item.fields["length"], int(entry.mean("words"))) for entry in scored]
        totals = [fmean(both) for both in zip(length, quality, strict=True)]
        figures = {"score": totals, "S_l": length, "S_q": quality, **dimensions}
        return {name: intervals.mean(values) for name, values in figures.items()}


def length_score(required: int, written: int) -> float:
    """Return S_l: 100 at the required length, falling to 0 at a third and at four times this length.

    >>> [length_score(1000, written) for written in (1000, 2500, 4000, 500, 0)]
    [100.0, 50.0, 0.0, 50.0, 0.0]
    """
    if written > required:
        return 100 * max(0.0, 1 - (written / required - 1) / 3)
    return 100 * max(0.0, 1 - (required / written - 1) / 2) if written else 0.0


def count_words(text: str) -> int:
    """Count Chinese characters and words of Latin letters.

    >>> count_words("你好, my 2 friends")
    4
    """
    return len(re.findall(r"[\u4e00-\u9fff]", text)) + len(re.findall(r"\b[a-zA-Z]+\b", text))


# HelloBench: part -> category -> weights of the checklist's items, which sum to 100. Its authors fitted them to human
# ratings. From OpenCompass (REGRESSION_DICT, opencompass/datasets/subjective/hellobench.py), to four decimals.
_WEIGHTS_FILE = Path(__file__).with_name("hellobench_weights.json")
WEIGHTS: dict[str, dict[str, list[float]]] = json.loads(_WEIGHTS_FILE.read_text(encoding="utf-8"))
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
PART_OF = {category: part for part, categories in WEIGHTS.items() for category in categories}
_FILES = [
    f"{name}.jsonl" for name in "open_ended_qa summarization chat text_completion heuristic_text_generation".split()
]


def _one_of(known: Sequence[float] | dict[str, str], what: str) -> AfterValidator:
    def check(value: float | str) -> float | str:
        if value not in known:
            raise ValueError(f"{value} is none of {what}")
        return value

    return AfterValidator(check)


class _Instruction(Record):
    id: Written
    category: Annotated[str, _one_of(PART_OF, "HelloBench's categories")]
    instruction: Written = Field(validation_alias=AliasChoices("instruction", "chat_prompt"))
    checklists: Annotated[list[Written], Field(min_length=1)]


class _Checked(JSONReply):
    checklist_id: int
    evaluation_score: Annotated[float, _one_of(LEVELS, str(LEVELS))]
    reason: str = ""


class HelloBench(Benchmark):
    """Each item of a checklist gets 0, .25, .5, .75 or 1; a response's score is their weighted sum, at most 100.

    The benchmark's score is the mean of its five parts, whatever their sizes. Its authors also rescale it to
    4 x (score - 75). Table 4, ArenaRL, reports three of the parts, not rescaled.
    """

    name, title, size = "hellobench", "HelloBench", 647
    judges = ("gpt-4o",)
    judge_temperature = 0.8
    editions = (Edition({"judge": ("llm_judge.py", "USER_PROMPT"), "system": ("llm_judge.py", "SYS_PROMPT")}),)
    source = "github.com/Quehry/HelloBench: its folder, or one JSONL file"
    record, unique = _Instruction, "id"

    def files_of(self, path: Path) -> list[Path]:
        """Return one file, or all parts in a folder."""
        if not path.is_file():
            for folder in (path, path / "HelloBench", path / "data" / "main_data"):
                if files := [folder / name for name in _FILES if (folder / name).is_file()]:
                    return files
        return [official_file(path, tuple(_FILES))]

    def item(self, record: Any, number: int, file: Path) -> Item:
        size, weights = len(record.checklists), len(WEIGHTS[PART_OF[record.category]][record.category])
        if size != weights:
            problem = f"checklists has {size} items, but {record.category} has {weights} weights"
            raise UserError(f"{file}, id {record.id}: {problem}; download it again")
        fields = {"category": record.category, "checklists": record.checklists}
        return Item(record.id, record.instruction, "en", fields)

    async def judge(self, item: Item, response: str, prompts: Prompts, ask: Ask) -> Verdict | None:
        checklist = item.fields["checklists"]
        listed = [{"checklist_id": number, "checklist_content": text} for number, text in enumerate(checklist)]
        fields = {"checklists": json.dumps(listed, ensure_ascii=False), "num_checklist": len(checklist)}
        messages = prompts.messages("judge", instruction=item.query, response=response, **fields)
        points = await ask(messages, partial(read_checklist, count=len(checklist)))
        return points and {"score": weighted(item.fields["category"], points), "points": points}

    def figures(self, scored: Sequence[Scored], intervals: Intervals) -> dict[str, Figure]:
        parts = [PART_OF[entry.item.fields["category"]] for entry in scored]
        scores = [entry.mean("score") for entry in scored]
        by_part = {part: [score for score, own in zip(scores, parts, strict=True) if own == part] for part in WEIGHTS}
        return {
            "score": intervals.mean(scores, parts),
            "rescaled": intervals.mean([4 * (score - 75) for score in scores], parts),
            **{part: intervals.mean(values) for part, values in by_part.items() if values},
        }


def weighted(category: str, points: Sequence[float]) -> float:
    """Return a response's score, 0 to 100, from its points per checklist item.

    >>> round(weighted("continuation", [1, 1, 1, 1, 0.5]), 2)
    88.62
    """
    weights = WEIGHTS[PART_OF[category]][category]
    return 100 * sum(weight * point for weight, point in zip(weights, points, strict=True)) / sum(weights)


def read_checklist(text: str, count: int) -> list[float]:
    """Read the points of items 0 to count - 1. Raises ValueError if one is missing, repeated or invalid."""
    try:
        checked = [_Checked.model_validate(record) for record in json_objects(without_thinking(text))]
    except ValidationError as error:
        raise ValueError(first_problem(error)) from error
    points = {item.checklist_id: item.evaluation_score for item in checked}
    if sorted(item.checklist_id for item in checked) != list(range(count)):
        raise ValueError(f"it has the items {sorted(points)} where each of 0 to {count - 1} was asked for once")
    return [points[number] for number in range(count)]
