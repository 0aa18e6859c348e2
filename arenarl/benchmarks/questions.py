"""Benchmarks of questions with one short answer that a judge compares with the response.

- BrowseComp (arXiv 2504.12516, 1,266 items) and BrowseComp-ZH (arXiv 2504.19314, 289): answers that are hard to find.
- xbench-DeepSearch (arXiv 2506.13651): 100 Chinese questions, each answered five times.
- SimpleQA (arXiv 2411.04368): 4,326 short questions of fact, each answer correct, incorrect or not attempted.
- WebWalkerQA (arXiv 2501.07572): 680 questions about websites, in Chinese and English, graded by langchain's `cot_qa`.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from arenarl.benchmarks.benchmark import Ask, Benchmark, Figure, Intervals, Item, Scored, Verdict
from arenarl.benchmarks.prompts import SIMPLE_EVALS_SYSTEM, Edition, Prompts
from arenarl.benchmarks.records import Record, Written, decrypted
from arenarl.llm.json_reply import without_thinking
from arenarl.trajectory import language_of


class HiddenQuestions(Benchmark):
    """A benchmark whose file encrypts questions and answers against crawlers. Decrypted items are never published."""

    hidden: ClassVar[tuple[str, str]] = ("problem", "answer")  # fields of question and answer
    plain: ClassVar[str | None] = None  # suffix of files that are already decrypted
    language: ClassVar[str] = "en"
    has_search = True

    def key_of(self, canary: str) -> bytes:
        """Return the key for a record's canary."""
        return hashlib.sha256(canary.encode()).digest()

    def item(self, record: Any, number: int, file: Path) -> Item:
        texts = {name: getattr(record, name) for name in self.hidden}
        if file.suffix.lower() != self.plain:
            key, where = self.key_of(record.canary), f"{file}, record {number + 1}"
            texts = {name: decrypted(text, key, f"{where}: {name}") for name, text in texts.items()}
        question, answer = texts.values()
        return Item(getattr(record, "id", str(number)), question, self.language, {"answer": answer})


class _Problem(Record):
    problem: Written
    answer: Written


class _HiddenProblem(_Problem):
    canary: Written


class BrowseComp(HiddenQuestions):
    """Accuracy, and calibration error in 10 bins as in inspect-evals: only the lowest bin includes its lower end.

    The judge also extracts the stated confidence; without a number it is 100. The reference code compares "correct:
    yes" with "yes", so it marks all answers as wrong; here the word after the colon counts.
    """

    name, title, size = "browsecomp", "BrowseComp", 1266
    judges = ("gpt-4.1",)  # of openai/simple-evals
    judge_temperature = 0.5
    files = ("browse_comp_test_set.csv",)
    editions = (
        Edition({
            "judge": ("browsecomp_eval.py", "GRADER_TEMPLATE"), "query": ("browsecomp_eval.py", "QUERY_TEMPLATE"),
            "system": SIMPLE_EVALS_SYSTEM,
        }),
        Edition({"judge": ("browse_comp/prompts.py", "GRADER_TEMPLATE"),
                 "query": ("browse_comp/prompts.py", "QUERY_TEMPLATE")}, "inspect_evals"),
    )  # fmt: skip
    source = "browse_comp_test_set.csv of openai/simple-evals"
    record = _HiddenProblem
    unstated: ClassVar[float] = 100.0  # confidence if the judge states none

    def bin_of(self, confidence: float) -> int:
        """Return the calibration bin of a confidence from 0 to 100."""
        return max(math.ceil(confidence / 10) - 1, 0)

    def query(self, item: Item, prompts: Prompts) -> str:
        return prompts.query(Question=item.query, question=item.query)

    async def judge(self, item: Item, response: str, prompts: Prompts, ask: Ask) -> Verdict | None:
        fields = {"question": item.query, "response": response, "correct_answer": item.fields["answer"]}
        messages = prompts.messages("judge", item.language, **fields)
        return await ask(messages, partial(read_comparison, unstated=self.unstated))

    def figures(self, scored: Sequence[Scored], intervals: Intervals) -> dict[str, Figure]:
        correct, confidence = ([entry.mean(name) for entry in scored] for name in ("correct", "confidence"))
        bins = [self.bin_of(value) for value in confidence]
        error = calibration_error(correct, [value / 100 for value in confidence], bins, intervals)
        return {"score": intervals.figure("correct", scored), "calibration_error": error}


class _HiddenChinese(Record):
    Topic: str = ""
    Question: Written
    Answer: Written
    canary: str = ""


class BrowseCompZH(BrowseComp):
    """BrowseComp in Chinese: calibration error in 5 bins; without a number the confidence is 0."""

    name, title, size = "browsecomp_zh", "BrowseComp-ZH", 289
    judges = ("gpt-4o",)
    judge_temperature = 0.6
    files = ("data/browsecomp-zh-encrypted.xlsx", "browsecomp-zh-encrypted.xlsx")
    editions = (Edition({"judge": ("prompt.py", "JUDGE_PROMPT_CN")}),)
    source = "github.com/PALIN2018/BrowseComp-ZH, data/browsecomp-zh-encrypted.xlsx"
    record, hidden, language = _HiddenChinese, ("Question", "Answer"), "zh"
    plain = ".json"  # output of the official script
    unstated = 0.0

    def bin_of(self, confidence: float) -> int:
        return min(int(confidence // 20), 4)


def read_comparison(text: str, unstated: float) -> Verdict:
    """Return correctness, 0 or 1, the confidence, 0 to 100 or `unstated`, and the extracted answer.
    Raises ValueError if the reply does not state the correctness."""
    reply = without_thinking(text)
    # no two neighbouring parts of a pattern match the same characters: else a reply could take quadratic time
    correct = re.findall(r"^[^\w\n]*correct[^\w:：]*[:：]\W*(yes|no)\b", reply, re.MULTILINE | re.IGNORECASE)
    if not correct:
        raise ValueError('it has no line "correct: yes" or "correct: no"')
    confidence = re.findall(r"^[^\w\n]*confidence[^\w:：]*[:：]\W*(\d+)", reply, re.MULTILINE | re.IGNORECASE)
    extracted = re.search(r"^[^\w\n]*extracted_final_answer\W*[:：]\s*(.*)", reply, re.MULTILINE)
    return {
        "correct": float(correct[-1].lower() == "yes"),
        "confidence": min(float(confidence[-1]), 100.0) if confidence else unstated,
        "extracted": extracted[1].strip() if extracted else "",
    }


def calibration_error(
    correct: Sequence[float], confidence: Sequence[float], bins: Sequence[int], intervals: Intervals
) -> Figure:
    """Return the expected calibration error in percent: the sum over bins of a bin's share of items times the distance
    between its accuracy and its mean confidence. All arguments are (items,); `confidence` is 0 to 1."""
    gaps, bins = np.asarray(correct, dtype=float) - np.asarray(confidence, dtype=float), np.asarray(bins)

    def statistic(weights: np.ndarray) -> np.ndarray:
        total = sum(np.abs(weights[:, bins == number] @ gaps[bins == number]) for number in set(bins.tolist()))
        return 100 * total / weights.sum(axis=1)

    return intervals.of(statistic, len(gaps))


class _HiddenPrompt(Record):
    id: Written
    prompt: Written
    answer: Written
    canary: Written


class XBench(HiddenQuestions):
    """Accuracy averaged over the repeats, best of the repeats, and majority vote.

    A tie of the vote counts as the share of tied answers that are right; the official code draws one of them. A
    response whose stated final answer equals the known answer is right without a judge.
    """

    name, title, size = "xbench", "xbench-DeepSearch", 100
    judges = ("gemini-2.0-flash",)
    repeats = 5
    files = ("data/DeepSearch-2510.csv", "data/DeepSearch-2505.csv", "data/DeepSearch.csv")
    editions = (Edition({"judge": ("eval_grader.py", "LLM_JUDGE_PROMPT")}),)
    source = "github.com/xbench-ai/xbench-evals, data/DeepSearch-2505.csv or -2510.csv"
    record, hidden, unique, language = _HiddenPrompt, ("prompt", "answer"), "id", "zh"

    def key_of(self, canary: str) -> bytes:
        return canary.encode()

    async def judge(self, item: Item, response: str, prompts: Prompts, ask: Ask) -> Verdict | None:
        known = item.fields["answer"]
        if final_answer(response) == known.strip():
            return {"correct": 1.0, "extracted": known, "is_exact": True}
        messages = prompts.messages("judge", question=item.query, correct_answer=known, response=response)
        return await ask(messages, read_conclusion)

    def figures(self, scored: Sequence[Scored], intervals: Intervals) -> dict[str, Figure]:
        return {
            "score": intervals.figure("correct", scored),
            "best_of_n": intervals.mean(100 * max(verdict["correct"] for verdict in each.verdicts) for each in scored),
            "majority_vote": intervals.mean(100 * majority_share(each) for each in scored),
        }


def final_answer(text: str) -> str | None:
    """Return the rest of the first line with 最终答案 ("final answer"); None without such a line."""
    match = re.search(r"最终答案\W*?[:：][ \t]*(.*)", text)
    return match[1].strip() if match else None


def read_conclusion(text: str) -> Verdict:
    """Read the last 结论 ("conclusion"). Raises ValueError without one."""
    reply = without_thinking(text)
    conclusions = re.findall(r"结论\W*(正确|错误)", reply)
    if not conclusions:
        raise ValueError('it has no line "结论: 正确" or "结论: 错误"')
    return {"correct": float(conclusions[-1] == "正确"), "extracted": final_answer(reply) or "", "is_exact": False}


def majority_share(scored: Scored) -> float:
    """Return the share of the most frequent answers that equal the known answer literally."""
    votes = Counter(verdict["extracted"] for verdict in scored.verdicts)
    most = [answer for answer, count in votes.items() if count == max(votes.values())]
    return sum(answer == scored.item.fields["answer"] for answer in most) / len(most)


GRADES = {"A": "correct", "B": "incorrect", "C": "not_attempted"}
_TEMPLATES = "simpleqa/grader_templates.py"


class SimpleQA(Benchmark):
    """Share of correct answers, overall and among attempted answers, and F1, their harmonic mean.
    InfoAgent reports the overall share, with search."""

    name, title, size = "simpleqa", "SimpleQA", 4326
    judges = ("gpt-4.1", "gpt-4o")  # used in openai/simple-evals, and in the paper
    judge_temperature = 0.5
    has_search = True
    files = ("simple_qa_test_set.csv",)
    editions = (
        Edition({"judge": ("simpleqa_eval.py", "GRADER_TEMPLATE"), "system": SIMPLE_EVALS_SYSTEM}),
        Edition({"judge": (_TEMPLATES, "SIMPLEQA_GRADER_TEMPLATE"),
                 "instructions": (_TEMPLATES, "SIMPLEQA_GRADING_INSTRUCTIONS")}, "inspect_evals"),
    )  # fmt: skip
    source = "simple_qa_test_set.csv of openai/simple-evals"
    record = _Problem

    def item(self, record: Any, number: int, file: Path) -> Item:
        return Item(str(number), record.problem, "en", {"answer": record.answer})

    async def judge(self, item: Item, response: str, prompts: Prompts, ask: Ask) -> Verdict | None:
        """Grade a response; None without a grade. The editions have different names for known answer and response."""
        fields = {"question": item.query, "instructions": prompts.texts.get("instructions", "")}
        fields |= dict.fromkeys(("target", "criterion"), item.fields["answer"])
        fields |= dict.fromkeys(("predicted_answer", "answer"), response)
        grade = await ask(prompts.messages("judge", **fields), read_letter)
        return grade and {"grade": grade}

    def figures(self, scored: Sequence[Scored], intervals: Intervals) -> dict[str, Figure]:
        grades = [entry.verdicts[0]["grade"] for entry in scored]
        is_a, is_b, is_c = (np.array([grade == known for grade in grades], dtype=float) for known in GRADES.values())

        def share(part: np.ndarray, whole: np.ndarray) -> Figure:
            """Return the percentage; 0 if the whole is empty, as in the official code."""

            def percent(weights: np.ndarray) -> np.ndarray:
                parts, wholes = weights @ part, weights @ whole
                return 100 * np.divide(parts, wholes, out=np.zeros_like(parts), where=wholes > 0)

            return intervals.of(percent, len(grades))

        return {
            "score": share(is_a, np.ones_like(is_a)),
            "given_attempted": share(is_a, is_a + is_b),
            "F1": share(2 * is_a, 2 * is_a + 2 * is_b + is_c),  # = harmonic mean of A/(A+B+C) and A/(A+B)
            "not_attempted": share(is_c, np.ones_like(is_c)),
        }


def read_letter(text: str) -> str:
    """Return the grade whose letter, A, B or C, stands alone as a word. Raises ValueError for none or several."""
    letters = set(re.findall(r"\b[ABC]\b", without_thinking(text)))
    if len(letters) != 1:
        raise ValueError("it holds no letter, or more than one, where A, B or C was asked for")
    return GRADES[letters.pop()]


CELLS = [f"{pages}_{level}" for pages in ("single_source", "multi_source") for level in ("easy", "medium", "hard")]
_COT = {"judge": ("evaluation/qa/eval_prompt.py", "cot_template")}


class _LowerCase(Record):
    """A record with field names in any case, because the data set's card and file differ."""

    @model_validator(mode="before")
    @classmethod
    def _lower_names(cls, row: Any) -> Any:
        return {str(name).lower(): value for name, value in row.items()} if isinstance(row, dict) else row


_snake_case = BeforeValidator(lambda text: text.lower().replace("-", "_") if isinstance(text, str) else text)
_Type = Literal["single_source", "multi_source"]


class _Info(_LowerCase):
    type: Annotated[_Type, _snake_case] = Field(validation_alias=AliasChoices("type", "hop"))
    difficulty_level: Annotated[Literal["easy", "medium", "hard"], _snake_case]


class _Question(_LowerCase):
    question: Written
    answer: Written
    root_url: Written
    info: _Info


class WebWalkerQA(Benchmark):
    """Accuracy overall and in six cells, by number of pages with the answer and by difficulty."""

    name, title, size = "webwalkerqa", "WebWalkerQA", 680
    judges = ("gpt-4",)
    judge_temperature = 0.0  # langchain's default
    has_search = True
    files = ("data/main-00000-of-00001.jsonl",)
    editions = (Edition(_COT, "langchain"), Edition(_COT, "langchain_classic"))
    source = "the data set callanwu/WebWalkerQA of the hub"
    record = _Question

    def item(self, record: Any, number: int, file: Path) -> Item:
        cell = f"{record.info.type}_{record.info.difficulty_level}"
        fields = {"answer": record.answer, "root_url": record.root_url, "cell": cell}
        return Item(str(number), record.question, language_of(record.question), fields)

    def query(self, item: Item, prompts: Prompts) -> str:
        return prompts.query(question=item.query, root_url=item.fields["root_url"])

    async def judge(self, item: Item, response: str, prompts: Prompts, ask: Ask) -> Verdict | None:
        messages = prompts.messages("judge", query=item.query, context=item.fields["answer"], result=response)
        return await ask(messages, read_grade)

    def figures(self, scored: Sequence[Scored], intervals: Intervals) -> dict[str, Figure]:
        parts = {cell: [entry for entry in scored if entry.item.fields["cell"] == cell] for cell in CELLS}
        return {name: intervals.figure("correct", part) for name, part in ({"score": scored} | parts).items()}


def read_grade(text: str) -> Verdict:
    """Read the first "GRADE: …", else the first or last word, like langchain. Raises ValueError without a grade."""
    reply = without_thinking(text)
    words = re.findall(r"\w+", reply)
    match = re.search(r"\bGRADE\W*(CORRECT|INCORRECT)\b", reply, re.IGNORECASE)
    for grade in [match[1]] if match else [*words[:1], *words[-1:]]:
        if grade.upper() in ("CORRECT", "INCORRECT"):
            return {"correct": float(grade.upper() == "CORRECT")}
    raise ValueError('it has no line "GRADE: CORRECT" or "GRADE: INCORRECT"')
