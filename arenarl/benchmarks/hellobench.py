"""HelloBench (arXiv 2409.16191): 647 long texts, each checked against its category's checklist in one call.

Every item of a checklist gets 0, .25, .5, .75 or 1; a response's score is their sum, weighted so that 100 is the most.
The benchmark's is the mean of its five parts, each of which counts the same whatever its size. Its authors also rescale
it, (score - 75) x 4. Table 4, ArenaRL, has three of the parts, not rescaled.
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, AliasChoices, Field, ValidationError

from arenarl.benchmarks.benchmark import Ask, Benchmark, Figure, Intervals, Item, Scored, Verdict
from arenarl.benchmarks.hellobench_weights import WEIGHTS
from arenarl.benchmarks.prompts import Edition, Prompts
from arenarl.benchmarks.records import Record, Written, official_file, read_records
from arenarl.llm.json_reply import JSONReply, json_objects, without_thinking
from arenarl.system.errors import UserError
from arenarl.system.user_input import first_problem

LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
PART_OF = {category: part for part, categories in WEIGHTS.items() for category in categories}
_FILES = ("open_ended_qa", "summarization", "chat", "text_completion", "heuristic_text_generation")


def _known(category: str) -> str:
    if category not in PART_OF:
        raise ValueError(f"{category} is none of HelloBench's categories")
    return category


def _level(score: float) -> float:
    if score not in LEVELS:
        raise ValueError(f"{score} is none of {LEVELS}")
    return score


class _Instruction(Record):
    id: Written
    category: Annotated[str, AfterValidator(_known)]
    instruction: Written = Field(validation_alias=AliasChoices("instruction", "chat_prompt"))
    checklists: Annotated[list[Written], Field(min_length=1)]


class _Checked(JSONReply):
    checklist_id: int
    evaluation_score: Annotated[float, AfterValidator(_level)]
    reason: str = ""


class HelloBench(Benchmark):
    name, title, size = "hellobench", "HelloBench", 647
    judges = ("gpt-4o",)
    judge_temperature = 0.8
    editions = (Edition({"judge": ("llm_judge.py", "USER_PROMPT"), "system": ("llm_judge.py", "SYS_PROMPT")}),)
    source = "github.com/Quehry/HelloBench: its folder, or one JSONL file"

    def files_of(self, path: Path) -> list[Path]:
        """One file, or all parts that a folder has."""
        found = [official_file(path, ())] if path.is_file() or not path.exists() else []
        for folder in (path, path / "HelloBench", path / "data" / "main_data"):
            found = found or [file for name in _FILES if (file := folder / f"{name}.jsonl").is_file()]
        return found or [official_file(path, tuple(f"{name}.jsonl" for name in _FILES))]

    def read(self, path: Path) -> list[Item]:
        return [
            _item(file, record) for file in self.files_of(path) for record in read_records(file, _Instruction, "id")
        ]

    async def judge(self, item: Item, response: str, prompts: Prompts, ask: Ask) -> Verdict | None:
        checklist = item.fields["checklists"]
        shown = json.dumps(
            [{"checklist_id": number, "checklist_content": text} for number, text in enumerate(checklist)],
            ensure_ascii=False,
        )
        asked = prompts.messages(
            "judge", instruction=item.query, response=response, checklists=shown, num_checklist=len(checklist)
        )
        points = await ask(asked, partial(read_checklist, count=len(checklist)))
        return points and {"score": weighted(item.fields["category"], points), "points": points}

    def figures(self, scored: Sequence[Scored], intervals: Intervals) -> dict[str, Figure]:
        scores, parts = [one.mean("score") for one in scored], [PART_OF[one.item.fields["category"]] for one in scored]
        of_parts = {part: [score for score, its in zip(scores, parts, strict=True) if its == part] for part in WEIGHTS}
        return {
            "score": intervals.mean(scores, parts),
            "rescaled": intervals.mean([4 * (score - 75) for score in scores], parts),
            **{part: intervals.mean(ones) for part, ones in of_parts.items() if ones},
        }


def weighted(category: str, points: Sequence[float]) -> float:
    """A response's score, 0 to 100.

    >>> round(weighted("continuation", [1, 1, 1, 1, 0.5]), 2)
    88.62
    """
    weights = WEIGHTS[PART_OF[category]][category]
    return 100 * sum(weight * point for weight, point in zip(weights, points, strict=True)) / sum(weights)


def read_checklist(text: str, count: int) -> list[float]:
    """The points of items 0 to count - 1, each of which must stand once. Raises ValueError."""
    try:
        checked = [_Checked.model_validate(one) for one in json_objects(without_thinking(text))]
    except ValidationError as error:
        raise ValueError(first_problem(error)) from error
    points = {one.checklist_id: one.evaluation_score for one in checked}
    if sorted(one.checklist_id for one in checked) != list(range(count)):
        raise ValueError(f"it has the items {sorted(points)} where each of 0 to {count - 1} was asked for once")
    return [points[number] for number in range(count)]


def _item(file: Path, one: _Instruction) -> Item:
    asked, weights = len(one.checklists), len(WEIGHTS[PART_OF[one.category]][one.category])
    if asked != weights:
        raise UserError(
            f"{file}, id {one.id}: checklists has {asked} items, "
            f"and {one.category} has {weights} weights; download it again"
        )
    return Item(one.id, one.instruction, "en", {"category": one.category, "checklists": one.checklists})
