"""xbench-DeepSearch (arXiv 2506.13651): 100 Chinese questions, each answered five times.

A response whose last line names the known answer exactly is right without a judge; of any other the judge says.
Figures: the average over the repeats, the best of them, and whether the answer given most often is the known one
(between equals the official code draws lots, here it is the share of them).
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from arenarl.benchmarks.benchmark import Ask, Benchmark, Figure, Intervals, Item, Scored, Verdict
from arenarl.benchmarks.ciphers import raw_key_xor
from arenarl.benchmarks.prompts import Edition, Prompts
from arenarl.benchmarks.records import Record, Written, decrypted, read_records
from arenarl.llm.json_reply import without_thinking

_FINAL = re.compile(r"最终答案\W*?[:：][ \t]*(.*)")


class _Hidden(Record):
    id: Written
    prompt: Written
    answer: Written
    canary: Written


class XBench(Benchmark):
    name, title, size = "xbench", "xbench-DeepSearch", 100
    judges = ("gemini-2.0-flash",)
    repeats = 5
    has_search = True
    files = ("data/DeepSearch-2510.csv", "data/DeepSearch-2505.csv", "data/DeepSearch.csv")
    editions = (Edition({"judge": ("eval_grader.py", "LLM_JUDGE_PROMPT")}),)
    source = "github.com/xbench-ai/xbench-evals, data/DeepSearch-2505.csv or -2510.csv"

    def read(self, path: Path) -> list[Item]:
        (file,) = self.files_of(path)
        items = []
        for number, one in enumerate(read_records(file, _Hidden, "id")):
            question = decrypted(file, number, "prompt", lambda one=one: raw_key_xor(one.prompt, one.canary))
            answer = decrypted(file, number, "answer", lambda one=one: raw_key_xor(one.answer, one.canary))
            items.append(Item(one.id, question, "zh", {"answer": answer}))
        return items

    async def judge(self, item: Item, response: str, prompts: Prompts, ask: Ask) -> Verdict | None:
        known = item.fields["answer"]
        if final_answer(response) == known.strip():
            return {"correct": 1.0, "extracted": known, "is_exact": True}
        return await ask(
            prompts.messages("judge", question=item.query, correct_answer=known, response=response), read_conclusion
        )

    def figures(self, scored: Sequence[Scored], intervals: Intervals) -> dict[str, Figure]:
        return {
            "score": intervals.mean(100 * one.mean("correct") for one in scored),
            "best_of_n": intervals.mean(100 * max(verdict["correct"] for verdict in one.verdicts) for one in scored),
            "majority_vote": intervals.mean(100 * majority_share(one) for one in scored),
        }


def final_answer(text: str) -> str | None:
    """What stands behind the first 最终答案, None without one."""
    found = _FINAL.search(text)
    return found[1].strip() if found else None


def read_conclusion(text: str) -> Verdict:
    """Raises ValueError."""
    said = without_thinking(text)
    concluded = re.findall(r"结论\W*(正确|错误)", said)
    if not concluded:
        raise ValueError('it has no line "结论: 正确" or "结论: 错误"')
    return {"correct": float(concluded[-1] == "正确"), "extracted": final_answer(said) or "", "is_exact": False}


def majority_share(one: Scored) -> float:
    """Of the answers given most often, the share that is the known answer as it is written."""
    votes = Counter(verdict["extracted"] for verdict in one.verdicts)
    first = [answer for answer, count in votes.items() if count == max(votes.values())]
    return sum(answer == one.item.fields["answer"] for answer in first) / len(first)
