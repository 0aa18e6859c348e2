"""DeepResearch Bench, RACE (arXiv 2506.11763): 100 research tasks, each with a reference article and its own criteria.

One call removes the citations from the policy's article. A second call scores both articles by every criterion, 0 to
10. Scores are averaged by the criteria's weights in four dimensions, then by the dimensions' weights, into T for the
article and R for the reference. The result is T / (T + R). The official code drops failed items; here they are counted.
The official judge, Gemini-2.5-Pro, is retired; Tournament-GRPO uses Qwen2.5-72B-Instruct.
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field

from arenarl.benchmarks.benchmark import Ask, Benchmark, Figure, Intervals, Item, Scored, Verdict
from arenarl.benchmarks.prompts import Edition, Prompts
from arenarl.benchmarks.records import Record, Written, official_file, read_records
from arenarl.llm.json_reply import JSONReply, parse_reply, without_thinking
from arenarl.system.errors import UserError
from arenarl.trajectory import composed

_SHORTEST = 100  # fewest characters of a cleaned article, as in the official code
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


def _any_weight(of: Any) -> Any:
    """Return criteria, or weights by dimension, unchanged. Raises ValueError if all weights are 0."""
    weights = of.values() if isinstance(of, dict) else [criterion.weight for criterion in of]
    if not any(weights):
        raise ValueError("has only weights of 0")
    return of


_Criteria = Annotated[list[_Criterion], Field(min_length=1), AfterValidator(_any_weight)]


class _Weights(Record):
    prompt: Written
    dimension_weight: Annotated[
        dict[_Dimension, _Weight], Field(min_length=len(DIMENSIONS)), AfterValidator(_any_weight)
    ]
    criterions: Annotated[dict[_Dimension, _Criteria], Field(min_length=len(DIMENSIONS))]


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
        """Return the files of queries, criteria and references, from a copy of the repository or one folder."""
        if not path.is_file():
            return [official_file(path, places) for places in _PLACES.values()]
        folders = [path.parent, *path.resolve().parents[1:3]]  # its folder, and the top of the repository
        files = [path]
        for places in (_PLACES["criteria"], _PLACES["reference"]):
            existing = (folder / place for folder in folders for place in places if (folder / place).is_file())
            files.append(next(existing, None) or official_file(path.parent, places))
        return files

    def read(self, path: Path) -> list[Item]:
        tasks_file, *others = self.files_of(path)
        tasks, by_prompt = read_records(tasks_file, _Task, "prompt"), []
        for file, kind in zip(others, (_Weights, _Reference), strict=True):
            records = {composed(record.prompt): record for record in read_records(file, kind, "prompt")}
            by_prompt.append(records)
            if missing := next((task for task in tasks if composed(task.prompt) not in records), None):
                problem = f"no record has the prompt of id {missing.id} in {tasks_file}"
                raise UserError(f"{file}: {problem}; use one version of the benchmark for both")
        criteria, references = by_prompt
        items = []
        for task in tasks:
            key = composed(task.prompt)
            fields = criteria[key].model_dump() | {"reference": references[key].article}
            items.append(Item(task.id, task.prompt, task.language, fields))
        return items

    async def judge(self, item: Item, response: str, prompts: Prompts, ask: Ask) -> Verdict | None:
        """Score a response; None without a score. An empty response scores 0; the official code leaves it out."""
        if not response.strip():
            return dict.fromkeys(("score", *DIMENSIONS), 0.0)
        cleaning = prompts.messages("clean", item.language, article=response)
        article = await ask(cleaning, partial(_read_article, length=len(response)))
        if article is None:
            return None
        criterions = item.fields["criterions"]
        listed = {}  # without weights, as in the official prompt
        for name, wanted in criterions.items():
            listed[name] = [{key: criterion[key] for key in ("criterion", "explanation")} for criterion in wanted]
        fields = {"task_prompt": item.query, "article_1": article, "article_2": item.fields["reference"]}
        fields["criteria_list"] = json.dumps(listed, ensure_ascii=False, indent=2)
        scoring = prompts.messages("score", item.language, **fields)
        points = await ask(scoring, partial(read_points, criterions=criterions))
        return points and race_score(points, criterions, item.fields["dimension_weight"])

    def figures(self, scored: Sequence[Scored], intervals: Intervals) -> dict[str, Figure]:
        return {name: intervals.figure(name, scored) for name in ("score", *DIMENSIONS)}


Points = dict[str, list[tuple[float, float]]]  # dimension -> (article, reference) of each criterion


def race_score(points: Points, criterions: dict[str, list[dict[str, Any]]], weights: dict[str, float]) -> Verdict:
    """Return T / (T + R), 0 to 1, overall (`score`) and for each dimension; 0 if neither article has points."""
    targets, references = {}, {}
    for name, of_dimension in criterions.items():
        criterion_weights = [criterion["weight"] for criterion in of_dimension]
        total = sum(criterion_weights)
        targets[name], references[name] = (
            sum(weight * point[side] for weight, point in zip(criterion_weights, points[name], strict=True)) / total
            for side in (0, 1)
        )
    target, reference = (sum(weights[name] * side[name] for name in weights) for side in (targets, references))
    shares = {name: _share(targets[name], references[name]) for name in DIMENSIONS}
    return {"score": _share(target, reference), **shares}


def read_points(text: str, criterions: dict[str, list[dict[str, Any]]]) -> Points:
    """Read the points of every criterion. Raises ValueError unless the reply scores each criterion exactly once."""
    reply = parse_reply(text, _Reply)
    points = {}
    for name, wanted in criterions.items():
        compared = getattr(reply, name)
        matches = [_match(criterion["criterion"], compared) for criterion in wanted]
        if None in matches or len(set(map(id, matches))) < len(compared):
            problem = f"has {len(compared)} criteria, which are not the {len(wanted)} asked for, each once"
            raise ValueError(f"{name} {problem}")
        points[name] = [(match.article_1_score, match.article_2_score) for match in matches]
    return points


def _match(criterion: str, compared: Sequence[_Compared]) -> _Compared | None:
    """Return the entry with the criterion's text, else the first entry whose text contains it or is part of it."""
    wanted, texts = _plain(criterion), [_plain(entry.criterion) for entry in compared]
    fitting = [index for index, text in enumerate(texts) if text and (text in wanted or wanted in text)]
    best = min(fitting, key=lambda index: texts[index] != wanted, default=None)
    return None if best is None else compared[best]


def _read_article(text: str, length: int) -> str:
    """Return the cleaned article. Like the official code, raise ValueError if almost nothing is left."""
    article = without_thinking(text).strip()
    if len(article) < min(_SHORTEST, length // 2):
        raise ValueError(f"the article of {length} characters came back with {len(article)}")
    return article


def _share(target: float, reference: float) -> float:
    return target / (target + reference) if target + reference else 0.0


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
