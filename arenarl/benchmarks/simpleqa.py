"""SimpleQA (arXiv 2411.04368): 4,326 short questions of fact, each answer correct, incorrect or not attempted.

Its figures: the share that is correct, that share of what was attempted, and F1, their harmonic mean.
InfoAgent reports the first, with search.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from arenarl.benchmarks.benchmark import Ask, Benchmark, Figure, Intervals, Item, Scored, Verdict
from arenarl.benchmarks.prompts import SIMPLE_EVALS_SYSTEM, Edition, Prompts
from arenarl.benchmarks.records import Record, Written, read_records
from arenarl.llm.json_reply import without_thinking

_IN_PACKAGE = "simpleqa/grader_templates.py"
GRADES = {"A": "correct", "B": "incorrect", "C": "not_attempted"}


class _Question(Record):
    problem: Written
    answer: Written


class SimpleQA(Benchmark):
    name, title, size = "simpleqa", "SimpleQA", 4326
    judges = ("gpt-4.1", "gpt-4o")  # of openai/simple-evals, and of the paper
    judge_temperature = 0.5
    has_search = True
    files = ("simple_qa_test_set.csv",)
    editions = (
        Edition({"judge": ("simpleqa_eval.py", "GRADER_TEMPLATE"), "system": SIMPLE_EVALS_SYSTEM}),
        Edition(
            {
                "judge": (_IN_PACKAGE, "SIMPLEQA_GRADER_TEMPLATE"),
                "instructions": (_IN_PACKAGE, "SIMPLEQA_GRADING_INSTRUCTIONS"),
            },
            "inspect_evals",
        ),
    )
    source = "simple_qa_test_set.csv of openai/simple-evals"

    def read(self, path: Path) -> list[Item]:
        records = read_records(*self.files_of(path), _Question)
        return [Item(str(number), one.problem, "en", {"answer": one.answer}) for number, one in enumerate(records)]

    async def judge(self, item: Item, response: str, prompts: Prompts, ask: Ask) -> Verdict | None:
        """The official texts name the known answer and the response each in their way."""
        known, last = item.fields["answer"], prompts.texts.get("instructions", "")
        fields = {
            "target": known,
            "criterion": known,
            "predicted_answer": response,
            "answer": response,
            "instructions": last,
        }
        grade = await ask(prompts.messages("judge", question=item.query, **fields), read_grade)
        return grade and {"grade": grade}

    def figures(self, scored: Sequence[Scored], intervals: Intervals) -> dict[str, Figure]:
        grades = [one.verdicts[0]["grade"] for one in scored]
        is_a, is_b, is_c = (np.array([grade == known for grade in grades], dtype=float) for known in GRADES.values())

        def share(of: np.ndarray, among: np.ndarray) -> Figure:
            return intervals.of(lambda weights: _ratio(weights @ of, weights @ among), len(grades))

        return {
            "score": share(is_a, np.ones_like(is_a)),
            "given_attempted": share(is_a, is_a + is_b),
            "F1": share(2 * is_a, 2 * is_a + 2 * is_b + is_c),  # = harmonic mean of A/(A+B+C) and A/(A+B)
            "not_attempted": share(is_c, np.ones_like(is_c)),
        }


def read_grade(text: str) -> str:
    """The one letter of A, B and C that stands by itself. Raises ValueError for none or several."""
    letters = set(re.findall(r"\b[ABC]\b", without_thinking(text)))
    if len(letters) != 1:
        raise ValueError("it holds no letter, or more than one, where A, B or C was asked for")
    return GRADES[letters.pop()]


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """In percent; 0 of nothing, as the official code has it."""
    return 100 * np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
