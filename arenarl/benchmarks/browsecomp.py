"""BrowseComp (arXiv 2504.12516, 1,266 items) and BrowseComp-ZH (arXiv 2504.19314, 289):
short answers that are hard to find.

The judge compares with the known answer and reads off how sure the response is. Figures: accuracy and calibration
error, in 10 bins of the first (as inspect-evals has it; the bins are open below, and 0 is in the first) and 5 of the
second. Where the judge gives no number, the response counts as sure by 100 in the first and by 0 in the second. The
reference code of BrowseComp compares "correct: yes" with "yes" and so finds everything wrong; here the word behind the
colon counts.
"""

import math
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from arenarl.benchmarks.benchmark import Ask, Benchmark, Figure, Intervals, Item, Scored, Verdict
from arenarl.benchmarks.ciphers import hashed_key_xor
from arenarl.benchmarks.prompts import SIMPLE_EVALS_SYSTEM, Edition, Prompts
from arenarl.benchmarks.records import Record, Written, decrypted, read_records
from arenarl.llm.json_reply import without_thinking


class _Hidden(Record):
    problem: Written
    answer: Written
    canary: Written


class _HiddenChinese(Record):
    Topic: str = ""
    Question: Written
    Answer: Written
    canary: str = ""


class BrowseComp(Benchmark):
    name, title, size = "browsecomp", "BrowseComp", 1266
    judges = ("gpt-4.1",)  # the grader of openai/simple-evals
    judge_temperature = 0.5
    has_search = True
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
    unstated: ClassVar[float] = 100.0  # the confidence, where the judge gives no number

    def bin_of(self, confidence: float) -> int:
        """Of a confidence from 0 to 100."""
        return max(math.ceil(confidence / 10) - 1, 0)

    def read(self, path: Path) -> list[Item]:
        (file,) = self.files_of(path)
        records = read_records(file, _Hidden)
        return [
            _item(file, number, "en", {"problem": one.problem, "answer": one.answer}, one.canary)
            for number, one in enumerate(records)
        ]

    def query(self, item: Item, prompts: Prompts) -> str:
        return prompts.query(Question=item.query, question=item.query)

    async def judge(self, item: Item, response: str, prompts: Prompts, ask: Ask) -> Verdict | None:
        asked = prompts.messages(
            "judge", item.language, question=item.query, response=response, correct_answer=item.fields["answer"]
        )
        return await ask(asked, partial(read_comparison, unstated=self.unstated))

    def figures(self, scored: Sequence[Scored], intervals: Intervals) -> dict[str, Figure]:
        correct, confidence = [one.mean("correct") for one in scored], [one.mean("confidence") for one in scored]
        bins = [self.bin_of(value) for value in confidence]
        error = calibration_error(correct, [value / 100 for value in confidence], bins, intervals)
        return {"score": intervals.mean(100 * value for value in correct), "calibration_error": error}


class BrowseCompZH(BrowseComp):
    name, title, size = "browsecomp_zh", "BrowseComp-ZH", 289
    judges = ("gpt-4o",)
    judge_temperature = 0.6
    files = ("data/browsecomp-zh-encrypted.xlsx", "browsecomp-zh-encrypted.xlsx")
    editions = (Edition({"judge": ("prompt.py", "JUDGE_PROMPT_CN")}),)
    source = "github.com/PALIN2018/BrowseComp-ZH, data/browsecomp-zh-encrypted.xlsx"
    unstated = 0.0

    def bin_of(self, confidence: float) -> int:
        return min(int(confidence // 20), 4)

    def read(self, path: Path) -> list[Item]:
        (file,) = self.files_of(path)
        records = read_records(file, _HiddenChinese)
        if file.suffix == ".json":  # what the official script makes of the sheet: decrypted
            return [Item(str(number), one.Question, "zh", {"answer": one.Answer}) for number, one in enumerate(records)]
        return [
            _item(file, number, "zh", {"Question": one.Question, "Answer": one.Answer}, one.canary)
            for number, one in enumerate(records)
        ]


def read_comparison(text: str, unstated: float) -> Verdict:
    """Whether the answer is correct, 0 or 1, and how sure the response is, 0 to 100: `unstated` without a number.
    Raises ValueError."""
    said = without_thinking(text)
    correct = re.findall(r"^\W*correct\W*[:：]\W*(yes|no)\b", said, re.MULTILINE | re.IGNORECASE)
    if not correct:
        raise ValueError('it has no line "correct: yes" or "correct: no"')
    confidence = re.findall(r"^\W*confidence\W*[:：]\W*(\d+)", said, re.MULTILINE | re.IGNORECASE)
    extracted = re.search(r"^\W*extracted_final_answer\W*[:：]\s*(.*)", said, re.MULTILINE)
    return {
        "correct": float(correct[-1].lower() == "yes"),
        "confidence": min(float(confidence[-1]), 100.0) if confidence else unstated,
        "extracted": extracted[1].strip() if extracted else "",
    }  # fmt: skip


def calibration_error(
    correct: Sequence[float], confidence: Sequence[float], bins: Sequence[int], intervals: Intervals
) -> Figure:
    """Expected calibration error in percent: over bins, the share of items in one times the distance of its accuracy
    and its mean confidence.

    Args:
        correct: (items,) 0 or 1.
        confidence: (items,) 0 to 1.
        bins: (items,) the number of each item's bin.
    """
    gaps, bins = np.asarray(correct, dtype=float) - np.asarray(confidence, dtype=float), np.asarray(bins)

    def statistic(weights: np.ndarray) -> np.ndarray:
        off = sum(np.abs(weights[:, bins == number] @ gaps[bins == number]) for number in set(bins.tolist()))
        return 100 * off / weights.sum(axis=1)

    return intervals.of(statistic, len(gaps))


def _item(file: Path, number: int, language: str, hidden: dict[str, str], canary: str) -> Item:
    """Of question and answer, in this order. Raises UserError."""
    question, answer = (
        decrypted(file, number, name, lambda text=text: hashed_key_xor(text, canary)) for name, text in hidden.items()
    )
    return Item(str(number), question, language, {"answer": answer})
