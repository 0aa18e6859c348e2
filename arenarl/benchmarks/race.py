"""DeepResearch Bench, RACE (arXiv 2506.11763): 100 research tasks,
each article compared with a reference article by criteria of its own.

A first call takes citations out of the article, a second scores both articles by every criterion, 0 to 10. Scores are
averaged by the criteria's weights within four dimensions, those by the dimensions' weights; the result is T / (T + R),
what the article has of both together. The official code drops items that fail; here they are counted. The official
judge, Gemini-2.5-Pro, is retired; Tournament-GRPO took Qwen2.5-72B-Instruct.
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from arenarl.benchmarks.benchmark import Ask, Benchmark, Figure, Intervals, Item, Scored, Verdict
from arenarl.benchmarks.prompts import Edition, Prompts
from arenarl.benchmarks.records import Record, Written, official_file, read_records
from arenarl.llm.json_reply import JSONReply, parse_reply, without_thinking
from arenarl.system.errors import UserError

_SHORTEST = 100  # characters of a cleaned article that the official code accepts
_Dimension = Literal["comprehensiveness", "insight", "instruction_following", "readability"]
DIMENSIONS: tuple[_Dimension, ...] = get_args(_Dimension)
_Weight = Annotated[float, Field(ge=0, le=1)]
_Points = Annotated[float, Field(ge=0, le=10)]
_PLACES = {
    "query": ("data/prompt_data/query.jsonl", "query.jsonl"),
    "criteria": ("data/criteria_data/criteria.jsonl", "criteria.jsonl"),
    "reference": ("data/test_data/cleaned_data/reference.jsonl", "reference.jsonl"),
}


class _Task(Record):
    id: Written
    language: Literal["zh", "en"]
    prompt: Written


class _Criterion(Record):
    criterion: Written
    explanation: Written
    weight: _Weight


class _Criteria(Record):
    prompt: Written
    dimension_weight: Annotated[dict[_Dimension, _Weight], Field(min_length=len(DIMENSIONS))]
    criterions: Annotated[
        dict[_Dimension, Annotated[list[_Criterion], Field(min_length=1)]], Field(min_length=len(DIMENSIONS))
    ]


class _Reference(Record):
    prompt: Written
    article: Written


class _Compared(JSONReply):
    criterion: str
    article_1_score: _Points
    article_2_score: _Points


class _Reply(JSONReply):
    comprehensiveness: list[_Compared]
    insight: list[_Compared]
    instruction_following: list[_Compared]
    readability: list[_Compared]


class RACE(Benchmark):
    name, title, size = "race", "DeepResearch Bench, RACE", 100
    judges = ("gemini-2.5-pro", "gemini-2.5-pro-preview-06-05")
    calls = 2
    has_search = True
    editions = (
        Edition({
            "clean_zh": ("prompt/clean_prompt.py", "clean_article_prompt_zh"),
            "clean_en": ("prompt/clean_prompt.py", "clean_article_prompt_en"),
            "score_zh": ("prompt/score_prompt_zh.py", "generate_merged_score_prompt"),
            "score_en": ("prompt/score_prompt_en.py", "generate_merged_score_prompt"),
        }),
    )  # fmt: skip
    source = (
        "github.com/Ayanami0730/deep_research_bench: its folder, "
        "or query.jsonl with criteria.jsonl and reference.jsonl beside it"
    )

    def files_of(self, path: Path) -> list[Path]:
        """Queries, criteria, references: in a copy of the repository, or side by side."""
        if not path.is_file():
            return [official_file(path, places) for places in _PLACES.values()]
        folders = [path.parent, *path.resolve().parents[1:3]]  # beside it, or at the top of the repository
        files = [path]
        for places in (_PLACES["criteria"], _PLACES["reference"]):
            found = [folder / place for folder in folders for place in places if (folder / place).is_file()]
            files.append(found[0] if found else official_file(path.parent, places))
        return files

    def read(self, path: Path) -> list[Item]:
        tasks_file, *others = self.files_of(path)
        tasks, by_prompt = read_records(tasks_file, _Task, "prompt"), []
        for file, kind in zip(others, (_Criteria, _Reference), strict=True):
            known = {one.prompt: one for one in read_records(file, kind, "prompt")}
            by_prompt.append(known)
            if missing := next((task for task in tasks if task.prompt not in known), None):
                raise UserError(
                    f"{file}: no record has the prompt of id {missing.id} in {tasks_file}; "
                    "take both from one version of the benchmark"
                )
        criteria, references = by_prompt
        return [
            Item(one.id, one.prompt, one.language,
                 criteria[one.prompt].model_dump() | {"reference": references[one.prompt].article})
            for one in tasks
        ]  # fmt: skip

    async def judge(self, item: Item, response: str, prompts: Prompts, ask: Ask) -> Verdict | None:
        """An article without a word has nothing of both together; the official code leaves it out."""
        if not response.strip():
            return dict.fromkeys(("score", *DIMENSIONS), 0.0)
        cleaning = prompts.messages("clean", item.language, article=response)
        article = await ask(cleaning, partial(_read_article, length=len(response)))
        if article is None:
            return None
        criterions = item.fields["criterions"]
        listed = {  # as the official prompt has them: without weights
            name: [{key: one[key] for key in ("criterion", "explanation")} for one in ones]
            for name, ones in criterions.items()
        }
        fields = {"task_prompt": item.query, "article_1": article, "article_2": item.fields["reference"]}
        fields["criteria_list"] = json.dumps(listed, ensure_ascii=False, indent=2)
        scoring = prompts.messages("score", item.language, **fields)
        points = await ask(scoring, partial(read_points, criterions=criterions))
        return points and race_score(points, criterions, item.fields["dimension_weight"])

    def figures(self, scored: Sequence[Scored], intervals: Intervals) -> dict[str, Figure]:
        return {name: intervals.figure(name, scored) for name in ("score", *DIMENSIONS)}


Points = dict[str, list[tuple[float, float]]]  # by dimension, in the order of its criteria: article, reference


def race_score(points: Points, criterions: dict[str, list[dict[str, Any]]], weights: dict[str, float]) -> Verdict:
    """T / (T + R), 0 to 1, of the whole (`score`) and of each dimension; 0 where neither has a point."""
    targets, references = {}, {}
    for name, ones in criterions.items():
        total = sum(one["weight"] for one in ones) or 1.0
        targets[name], references[name] = (
            sum(one["weight"] * point[side] for one, point in zip(ones, points[name], strict=True)) / total
            for side in (0, 1)
        )
    target, reference = (sum(weights[name] * side[name] for name in weights) for side in (targets, references))
    shares = {name: _share(targets[name], references[name]) for name in DIMENSIONS}
    return {"score": _share(target, reference), **shares}


def read_points(text: str, criterions: dict[str, list[dict[str, Any]]]) -> Points:
    """Every criterion must be scored once, under its words or some that hold them. Raises ValueError."""
    reply = parse_reply(text, _Reply)
    points = {}
    for name, ones in criterions.items():
        compared = getattr(reply, name)
        found = [_scored_as(one["criterion"], compared) for one in ones]
        if None in found or len({id(each) for each in found}) < len(compared):
            raise ValueError(f"{name} has {len(compared)} criteria, which are not the {len(ones)} asked for, each once")
        points[name] = [(each.article_1_score, each.article_2_score) for each in found]
    return points


def _scored_as(criterion: str, compared: Sequence[_Compared]) -> _Compared | None:
    """The one that names the criterion, word for word if there is one."""
    known = _plain(criterion)
    fits = [each for each in compared if (said := _plain(each.criterion)) and (said in known or known in said)]
    return min(fits, key=lambda each: _plain(each.criterion) != known, default=None)


def _read_article(text: str, length: int) -> str:
    """Raises ValueError for next to nothing of a longer article, as the official code does."""
    article = without_thinking(text).strip()
    if len(article) < min(_SHORTEST, length // 2):
        raise ValueError(f"the article of {length} characters came back with {len(article)}")
    return article


def _share(one: float, other: float) -> float:
    return one / (one + other) if one + other else 0.0


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
