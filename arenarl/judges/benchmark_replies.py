"""Replies of the local judge server to the judge prompts of public benchmarks: the right format, an invented verdict.

A prompt is recognized by the format that it requests. A response is correct if it contains the correct answer
literally. Scores are random with the prompt as seed, so that equal prompts get equal scores.
"""

import json
import random
import re
from collections.abc import Callable
from typing import Any

from arenarl.judges.local_server import Reply
from arenarl.system.seeds import stable_seed

_SIX = ("Relevance", "Accuracy", "Coherence", "Clarity", "Breadth and Depth", "Reading Experience")
_CORRECT = re.compile(
    r"^\s*(?:\[correct_answer\]|\[正确答案\]|Gold target|CONTEXT):[ \t]*(?:\n\| )?(\S.*)", re.MULTILINE
)
_RESPONSE = re.compile(
    r"^\s*(?:\[response\]|\[回答\]|Predicted answer|STUDENT ANSWER):(.*?)"
    r"(?=^\s*(?:\[(?:correct_answer|task|任务)\]:|Your judgement|您的判断|你的判断|```|EXPLANATION:)|\Z)",
    re.MULTILINE | re.DOTALL
)  # fmt: skip


def benchmark_reply(messages: list[dict[str, Any]]) -> Reply | None:
    """Return the reply to a benchmark's prompt; None for any other prompt."""
    prompt = next((message["content"] for message in messages if message["role"] == "user"), "")  # others are retries
    reply = next((make for form, make in _FORMS.items() if form in prompt), None)
    return reply and reply(prompt, random.Random(stable_seed(prompt)))


def _checklist(prompt: str, rng: random.Random) -> Reply:
    count = len(set(re.findall(r'"checklist_id": (\d+), "checklist_content"', prompt)))
    return [
        {"checklist_id": number, "reason": "so it seems", "evaluation_score": rng.choice((0.5, 0.75, 1))}
        for number in range(count)
    ]


def _criteria(prompt: str, rng: random.Random) -> Reply:
    listed = re.search(r"<criteria_list>\n(.*?)\n</criteria_list>", prompt, re.DOTALL)
    criteria = json.loads(re.sub(r"^\| ", "", listed[1], flags=re.MULTILINE)) if listed else {}

    def scored(item: dict[str, str]) -> dict[str, Any]:
        scores = {"article_1_score": rng.randint(0, 20) / 2, "article_2_score": 7.5}
        return {"criterion": item["criterion"], "analysis": "so it seems"} | scores

    return {dimension: [scored(item) for item in items] for dimension, items in criteria.items()}


def _clean_article(prompt: str, rng: random.Random) -> Reply:
    """Return the article without marks such as [1]."""
    article = re.search(
        r"(?:Article content:|文章内容：)\n\"?(.*?)\"?\n\n?(?:# Task|Please return|请返回)", prompt, re.DOTALL
    )
    return re.sub(r"^\| |\[\d+\]", "", article[1] if article else "", flags=re.MULTILINE)


def _grade(prompt: str, rng: random.Random) -> Reply:
    confidence = re.search(r"Confidence\W*(\d+)", prompt)
    is_right = "yes" if _is_right(prompt) else "no"
    return (
        f"extracted_final_answer: as told\n\nreasoning: compared\n\ncorrect: {is_right}\n\n"
        f"confidence: {confidence[1] if confidence else 100}"
    )


def _is_right(prompt: str) -> bool:
    """Return True if the response contains the correct answer. Earlier matches of a field belong to examples."""
    correct, response = _CORRECT.findall(prompt), _RESPONSE.findall(prompt)
    return bool(correct and response) and correct[-1].strip().casefold() in response[-1].casefold()


# text that identifies a format -> its reply; texts that queries may contain come last
_FORMS: dict[str, Callable[[str, random.Random], Reply]] = {
    '"article_1_score"': _criteria,
    "checklist_content": _checklist,
    '"Breadth and Depth"': lambda prompt, rng: {"Analysis": "so it seems"} | {name: rng.randint(2, 5) for name in _SIX},
    '"score": an integer': lambda prompt, rng: {"score": rng.randint(4, 9), "reason": "so it seems"},
    "extracted_final_answer": _grade,
    "NOT_ATTEMPTED": lambda prompt, rng: "A" if _is_right(prompt) else rng.choice("BC"),
    "Article content:": _clean_article,
    "文章内容：": _clean_article,
    "GRADE:": lambda prompt, rng: f"Compared.\nGRADE: {'CORRECT' if _is_right(prompt) else 'INCORRECT'}",
    "结论": lambda prompt, rng: f"最终答案: 见回答\n\n解释: 已比较\n\n结论: {'正确' if _is_right(prompt) else '错误'}",
}
