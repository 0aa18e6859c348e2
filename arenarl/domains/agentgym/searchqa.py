"""SearchQA of AgentGym-RL: questions of seven data sets, answered by search, scored by exact match (Search-R1).

The user brings questions and corpus. `data.items` is a folder with one folder per data set, whose JSONL records have
`question` and `golden_answers` (FlashRAG's files). `environment.search.folder` holds the documents that the research
tools search. If `data.items` has AgentGym-RL's `eval/searchqa_test.json`, its 400 questions are the test split.
"""

import asyncio
import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from arenarl.domains.agentgym.world import official_items
from arenarl.domains.domain import Domain, Split, Truth, Watch, mean_of
from arenarl.domains.known_answers import has_answer, is_correct, squad_form, states_something
from arenarl.domains.stated_facts import without_escapes
from arenarl.rollout.environment import Environment, observe
from arenarl.system.errors import UserError
from arenarl.system.user_input import first_problem
from arenarl.trajectory import Query, Trajectory, prompt_messages, read_jsonl, text_key
from arenarl.trajectory.messages import answer_message, call_messages, calls_of, last_answer, read_turns

HERE = Path(__file__).parent
# folder -> (column of the paper's table, test items, number of its first question in AgentGym's count over all sets)
SETS = {
    "nq": ("NQ", 50, 0),
    "triviaqa": ("TriviaQA", 50, 3610),
    "popqa": ("PopQA", 50, 14923),
    "hotpotqa": ("HotpotQA", 50, 29190),
    "2wikimultihopqa": ("2Wiki", 50, 36595),
    "musique": ("MuSiQue", 100, 49171),
    "bamboogle": ("Bamboogle", 50, 51588),
}
TEST_FILES = ("test.jsonl", "dev.jsonl", "train.jsonl")  # the first existing file, as in AgentGym-RL
TRAINED_ON = ("nq", "hotpotqa")
_NAMES, _FIRST = list(SETS), [first for *_, first in SETS.values()]


class Record(BaseModel):
    """One line of a data set's file; other fields are ignored."""

    question: Annotated[str, Field(min_length=1)]
    golden_answers: Annotated[list[str], Field(min_length=1)]


@dataclass(frozen=True)
class SearchTruth(Truth):
    """Findings on one trajectory."""

    correct: bool
    found: bool  # a tool result holds a right answer
    economy: float  # share of calls that are neither repeats nor errors

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
        useful = {(call.name, str(call.arguments)) for call, result in calls if not result.startswith("Error")}
        results = [f" {squad_form(without_escapes(result))} " for _, result in calls]
        answers = (query.constraints["answer"], *query.constraints.get("answer_aliases", ()))
        return SearchTruth(
            correct=bool(turns) and is_correct(query.constraints, last_answer(turns)),
            found=any(f" {answer} " in text for answer in filter(None, map(squad_form, answers)) for text in results),
            economy=len(useful) / len(calls) if calls else 0.0,
        )

    def examine_view(self, query: Query, messages: list[dict[str, Any]]) -> SearchTruth:
        """Examine a view without tool results: any stated answer counts as right, and any call as having found it."""
        turns = read_turns(messages)
        is_new = [is_new for _, is_new in calls_of(turns)]
        return SearchTruth(states_something(last_answer(turns)), bool(is_new), mean_of(is_new))

    def solve(self, query: Query, environment: Environment, rng: random.Random, skill: float) -> Trajectory:
        """Search for the question once, then give the right answer with probability `skill`."""
        search = {"name": "search", "arguments": {"query": query.query}}
        observation = asyncio.run(observe(environment, **search))
        answer = query.constraints["answer"] if rng.random() < skill else "not known"
        turns = [
            *call_messages("I look it up.", **search, observation=observation),
            answer_message("This is the answer.", answer),
        ]
        return Trajectory(query.query_id, prompt_messages(query) + turns, "answer")

    def splits(self, environment: Environment, watch: Watch = iter, client: Any = None) -> Iterator[Split]:
        """Yield the test questions, RL's questions from the sets in `TRAINED_ON`, and SFT trajectories on further
        questions of these sets. SearchQA stores no baselines."""
        if self.environment.search.engine == "corpus":
            remedy = "set environment.search.engine=folder and environment.search.folder=<folder>"
            raise UserError(f"SearchQA needs your own corpus; {remedy}")
        rng, data = random.Random(f"searchqa{self.data.seed}"), self.data
        test = self._test(rng)
        others = unique([query for name in TRAINED_ON for query in self._questions(name, ["train.jsonl"])], test)
        rng.shuffle(others)
        rl, sft = others[: data.rl_size], others[data.rl_size : data.rl_size + data.sft_size]
        if len(rl) + len(sft) < data.rl_size + data.sft_size:
            available = f"{data.items} has only {len(others)} training questions"
            raise UserError(f"{available}; lower data.rl_size + data.sft_size, now {data.rl_size + data.sft_size}")
        yield "test_queries", test
        yield "rl_queries", rl
        yield "sft", [self.solve(query, environment, rng, 1.0).to_record() for query in watch(sft)]

    def _test(self, rng: random.Random) -> list[Query]:
        """Return the official test questions if their list exists, else `data.test_per_subtask` of each data set."""
        folder = self.data.items
        if not folder:
            remedy = "name a folder with your copies of its data sets, nq/test.jsonl and so on (docs/domains.md)"
            raise UserError(f"SearchQA needs data.items; {remedy}")
        questions = {name: self._questions(name, TEST_FILES) for name in SETS}
        if not (Path(folder) / "eval" / "searchqa_test.json").is_file():
            drawn = (unique(rng.sample(queries, len(queries))) for queries in questions.values())
            return [query for queries in drawn for query in queries[: self.data.test_per_subtask]]
        counts, test = {column: count for column, count, _ in SETS.values()}, []
        prefixes = "|".join(SETS)
        for item in official_items(folder, "searchqa", "test", counts, lambda item: SETS[set_of(item)][0], prefixes):
            name = set_of(item)
            index = item - SETS[name][2]
            if index >= len(questions[name]):
                problem = f"has {len(questions[name])} questions and lacks number {index + 1}"
                raise UserError(f"{folder}/{name} {problem}; copy the whole file")
            test.append(questions[name][index])
        return test

    def _questions(self, name: str, files: Iterable[str]) -> list[Query]:
        """Return the questions of a data set's first existing file, in its order."""
        path = next((path for file in files if (path := Path(self.data.items) / name / file).is_file()), None)
        if path is None:
            remedy = "add one, JSONL with question and golden_answers"
            raise UserError(f"data.items: {self.data.items}/{name} has none of {', '.join(files)}; {remedy}")
        return [as_query(name, path, number, record) for number, record in enumerate(read_jsonl(path))]


def set_of(item: int) -> str:
    """Return the data set of an item.

    >>> set_of(0), set_of(3610), set_of(51712)
    ('nq', 'triviaqa', 'bamboogle')
    """
    return _NAMES[bisect_right(_FIRST, item) - 1]


def as_query(name: str, path: Path, number: int, record: dict[str, Any]) -> Query:
    """Return a record as a query, whose id names file and record. Raises UserError for another kind of record."""
    try:
        fields = Record.model_validate(record)
    except ValidationError as error:
        problem = f"is not a question with golden_answers: {first_problem(error)}"
        raise UserError(f"{path}, record {number + 1} {problem}; correct it") from error
    question, answers = fields.question.strip(), fields.golden_answers
    text = question if question.endswith("?") else f"{question}?"
    constraints = {"answer": answers[0], "answer_aliases": answers[1:], "comparison": "exact_match"}
    return Query(f"{name}_{path.stem}_{number}", "searchqa", SETS[name][0], "en", text, constraints)


def unique(queries: list[Query], others: Iterable[Query] = ()) -> list[Query]:
    """Return the queries without repeats and without those in `others`, ignoring case and spacing."""
    excluded = {text_key(query.query) for query in others}
    kept = {text_key(query.query): query for query in reversed(queries)}
    return [query for text, query in reversed(kept.items()) if text not in excluded]
