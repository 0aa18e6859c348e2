"""SearchQA of AgentGym-RL: questions of seven data sets, answered by searching a corpus,
right if exactly so (Search-R1's protocol).

Questions and corpus are the user's: `data.items` is a folder with a folder for each data set, whose JSONL records have
`question` and `golden_answers` (FlashRAG's files), and `environment.search.folder` one of documents, which the research
tools search. With AgentGym-RL's `eval/searchqa_test.json` beside them, its 400 questions are the test.
"""

import asyncio
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from arenarl.domains.agentgym.world import official_items
from arenarl.domains.domain import Domain, Truth, mean_of
from arenarl.domains.known_answers import has_answer, is_correct, squad_form, states_something
from arenarl.rollout.environment import Environment, observe
from arenarl.system.errors import UserError
from arenarl.system.user_input import first_problem
from arenarl.trajectory import (
    Query,
    Trajectory,
    assistant_message,
    calls_of,
    last_answer,
    prompt_messages,
    read_jsonl,
    read_turns,
    same_query,
    tool_message,
)

if TYPE_CHECKING:
    from arenarl.llm.client import LLMClient

HERE = Path(__file__).parent
# folder -> column of the paper's table, its test items, AgentGym's number of its first question;
# it counts through the sets
SETS = {
    "nq": ("NQ", 50, 0),
    "triviaqa": ("TriviaQA", 50, 3610),
    "popqa": ("PopQA", 50, 14923),
    "hotpotqa": ("HotpotQA", 50, 29190),
    "2wikimultihopqa": ("2Wiki", 50, 36595),
    "musique": ("MuSiQue", 100, 49171),
    "bamboogle": ("Bamboogle", 50, 51588),
}
TEST_FILES = ("test.jsonl", "dev.jsonl", "train.jsonl")  # the first that a data set has, as there
TRAINED_ON = ("nq", "hotpotqa")
_NAMES, _FIRST = list(SETS), [first for *_, first in SETS.values()]


class Record(BaseModel):
    """What counts of a line of the data sets' files."""

    question: Annotated[str, Field(min_length=1)]
    golden_answers: Annotated[list[str], Field(min_length=1)]


@dataclass(frozen=True)
class SearchTruth(Truth):
    """`found`: a tool result holds a right answer; `economy`: the share of calls that were no repeats and no errors."""

    correct: bool
    found: bool
    economy: float

    def dimensions(self) -> dict[str, float]:
        scores = {"path_found": self.found, "path_economy": self.economy, "answer_correct": self.correct}
        return {name: 10.0 * score for name, score in scores.items()}

    def figures(self) -> dict[str, float]:
        return {"exact_match": 100.0 * self.correct, "answer_found": 100.0 * self.found}

    def passes(self) -> dict[str, bool]:
        return {"exact_match": self.correct}


class SearchQADomain(Domain):
    name = "searchqa"
    subtasks = tuple(column for column, *_ in SETS.values())
    sources = (HERE / "searchqa.py", HERE / "world.py", HERE.parent / "known_answers.py")

    def has_truth(self, query: Query) -> bool:
        return has_answer(query)

    def examine(self, query: Query, messages: list[dict[str, Any]]) -> SearchTruth:
        turns = read_turns(messages)
        calls = [pair for turn in turns for pair in zip(turn.tool_calls, turn.observations, strict=False)]
        useful = {(call.name, str(call.arguments)) for call, seen in calls if not seen.startswith("Error")}
        shown = [f" {squad_form(seen)} " for _, seen in calls]
        known = (query.constraints["answer"], *query.constraints.get("answer_aliases", ()))
        return SearchTruth(
            correct=bool(turns) and is_correct(query.constraints, last_answer(turns)),
            found=any(f" {answer} " in text for answer in filter(None, map(squad_form, known)) for text in shown),
            economy=len(useful) / len(calls) if calls else 0.0,
        )

    def examine_view(self, query: Query, messages: list[dict[str, Any]]) -> SearchTruth:
        """Count any answer as right, and the answer as found if there was a call."""
        turns = read_turns(messages)
        is_new = [is_new for _, is_new in calls_of(turns)]
        return SearchTruth(states_something(last_answer(turns)), bool(is_new), mean_of(is_new))

    def solve(self, query: Query, environment: Environment, rng: random.Random, skill: float) -> Trajectory:
        """Somebody who searches for the question once, and then knows the answer with the chance `skill`."""
        search = {"name": "search", "arguments": {"query": query.query}}
        messages, calls = prompt_messages(query), [{"type": "function", "function": search}]
        messages.append({"role": "assistant", "reasoning_content": "I look it up.", "content": "", "tool_calls": calls})
        messages.append(tool_message(asyncio.run(observe(environment, **search))))
        answer = query.constraints["answer"] if rng.random() < skill else "not known"
        messages.append(assistant_message(f"<think>\nThis is the answer.\n</think>\n\n<answer>\n{answer}\n</answer>"))
        return Trajectory(query.query_id, messages, "answer")

    def splits(
        self, environment: Environment, watch: Callable[[list], Iterable] = iter, client: "LLMClient | None" = None
    ) -> Iterator[tuple[str, list[Any]]]:
        """The test, RL's questions of the sets for training, and SFT's trajectories over others of these.
        There are no stored baselines."""
        if self.environment.search.engine == "corpus":
            keys = "environment.search.engine=folder and environment.search.folder=<folder>"
            raise UserError(f"SearchQA needs a corpus of yours: {keys}")
        rng, data = random.Random(f"searchqa{self.data.seed}"), self.data
        test = self._test(rng)
        others = unique([query for name in TRAINED_ON for query in self._questions(name, ["train.jsonl"])], test)
        rng.shuffle(others)
        rl, taught = others[: data.rl_size], others[data.rl_size : data.rl_size + data.sft_size]
        if len(rl) + len(taught) < data.rl_size + data.sft_size:
            wanted = f"data.rl_size and data.sft_size want {data.rl_size + data.sft_size} questions"
            raise UserError(f"{wanted}; {data.items} has {len(others)} to train on")
        yield "test_queries", test
        yield "rl_queries", rl
        yield "sft", [self.solve(query, environment, rng, 1.0).to_record() for query in watch(taught)]

    def _test(self, rng: random.Random) -> list[Query]:
        """The official questions where their list is there, else so many of each data set."""
        folder = self.data.items
        if not folder:
            what = "a folder of your copies of its data sets, nq/test.jsonl and so on (docs/domains.md)"
            raise UserError(f"SearchQA needs data.items: {what}")
        questions = {name: self._questions(name, TEST_FILES) for name in SETS}
        if not (Path(folder) / "eval" / "searchqa_test.json").is_file():
            drawn = [unique(rng.sample(ones, len(ones)))[: self.data.test_per_subtask] for ones in questions.values()]
            return [query for ones in drawn for query in ones]
        counts = {column: count for column, count, _ in SETS.values()}
        test = []
        for item in official_items(
            folder, "searchqa", "test", counts, lambda one: SETS[set_of(one)][0], "|".join(SETS)
        ):
            name = set_of(item)
            place, ones = item - SETS[name][2], questions[name]
            if place >= len(ones):
                lacks = f"has {len(ones)} questions and lacks number {place + 1}"
                raise UserError(f"{folder}/{name} {lacks}; take the whole file")
            test.append(ones[place])
        return test

    def _questions(self, name: str, files: Iterable[str]) -> list[Query]:
        """Of a data set's first file, in its order."""
        paths = [path for path in (Path(self.data.items) / name / file for file in files) if path.is_file()]
        if not paths:
            form = "JSONL with question and golden_answers"
            raise UserError(f"data.items: {self.data.items}/{name} has none of {', '.join(files)}, {form}")
        return [as_query(name, paths[0], number, record) for number, record in enumerate(read_jsonl(paths[0]))]


def set_of(item: int) -> str:
    """
    >>> set_of(0), set_of(3610), set_of(51712)
    ('nq', 'triviaqa', 'bamboogle')
    """
    return _NAMES[bisect_right(_FIRST, item) - 1]


def as_query(name: str, path: Path, number: int, record: dict[str, Any]) -> Query:
    """A record's question, its id by file and place. Raises UserError for another record."""
    try:
        read = Record.model_validate(record)
    except ValidationError as error:
        where = f"{path}, record {number + 1}"
        raise UserError(f"{where} is no question with golden_answers: {first_problem(error)}") from error
    question, answers = read.question.strip(), read.golden_answers
    text = question if question.endswith("?") else f"{question}?"
    constraints = {"answer": answers[0], "answer_aliases": answers[1:], "comparison": "exact_match"}
    return Query(f"{name}_{path.stem}_{number}", "searchqa", SETS[name][0], "en", text, constraints)


def unique(queries: list[Query], taken: Iterable[Query] = ()) -> list[Query]:
    """Without questions that were there before, whatever their case and spacing."""
    known = {same_query(query.query) for query in taken}
    kept = {same_query(query.query): query for query in reversed(queries)}
    return [query for text, query in reversed(kept.items()) if text not in known]
