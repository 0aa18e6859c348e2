"""How the local judge server answers the judge prompts of public benchmarks, official ones and ours: in their form, with an invented verdict.

It knows a prompt by the form that it asks for. Answers count as correct if they hold the correct answer as it is written; scores are drawn
from the prompt, so that the same one always gets the same.
"""

import json
import random
import re
from collections.abc import Callable
from typing import Any

from arenarl.system.seeds import stable_seed

Reply = dict[str, Any] | list[dict[str, Any]] | str
_SIX = ("Relevance", "Accuracy", "Coherence", "Clarity", "Breadth and Depth", "Reading Experience")
_MOST = 100_000  # characters of a field that are looked at


def benchmark_reply(messages: list[dict[str, Any]]) -> Reply | None:
    """The reply to a benchmark's prompt; None for any other. Where a reply was refused, the prompt is the first user message."""
    prompt = next((message["content"] for message in messages if message["role"] == "user"), "")
    reply = next((make for form, make in _FORMS.items() if form in prompt), None)
    return reply and reply(prompt, random.Random(stable_seed(prompt)))


def _checklist(prompt: str, rng: random.Random) -> Reply:
    count = len(set(re.findall(r'"checklist_id": (\d+), "checklist_content"', prompt)))
    return [{"checklist_id": number, "reason": "so it seems", "evaluation_score": rng.choice((0.5, 0.75, 1))} for number in range(count)]


def _criteria(prompt: str, rng: random.Random) -> Reply:
    listed = re.search(r"<criteria_list>\n(.*?)\n</criteria_list>", prompt, re.DOTALL)
    criteria = json.loads(re.sub(r"^\| ", "", listed[1], flags=re.MULTILINE)) if listed else {}

    def scored(one: dict[str, str]) -> dict[str, Any]:
        return {"criterion": one["criterion"], "analysis": "so it seems", "article_1_score": rng.randint(0, 20) / 2, "article_2_score": 7.5}

    return {dimension: [scored(one) for one in ones] for dimension, ones in criteria.items()}


def _cleaned(prompt: str, rng: random.Random) -> Reply:
    """The article without marks such as [1]."""
    article = re.search(r"(?:Article content:|文章内容：)\n\"?(.*?)\"?\n\n?(?:# Task|Please return|请返回)", prompt, re.DOTALL)
    return re.sub(r"^\| |\[\d+\]", "", article[1] if article else "", flags=re.MULTILINE)


def _graded(prompt: str, rng: random.Random) -> Reply:
    confidence = re.search(r"Confidence\W*(\d+)", prompt)
    is_right = "yes" if _is_right(prompt) else "no"
    return f"extracted_final_answer: as told\n\nreasoning: compared\n\ncorrect: {is_right}\n\nconfidence: {confidence[1] if confidence else 100}"


def _is_right(prompt: str) -> bool:
    """Whether the response holds the correct answer."""
    correct = _field(prompt, r"\[correct_answer\]|\[正确答案\]|Gold target|CONTEXT")
    response = _field(prompt, r"\[response\]|\[回答\]|Predicted answer|STUDENT ANSWER")
    return bool(correct) and correct.casefold() in response.casefold()


def _field(prompt: str, label: str) -> str:
    """What stands behind the last label at a line's start, up to the next line that begins another field."""
    *_, start = [0, *(match.end() for match in re.finditer(rf"^\s*(?:{label}):", prompt, re.MULTILINE))]
    ends = re.search(r"^\s*(?:\[[\w ]+\]|[A-Z][A-Za-z ]+|您的判断|你的判断|```)", prompt[start + 1 : start + _MOST], re.MULTILINE) if start else None
    text = prompt[start : start + 1 + ends.start()] if ends else prompt[start : start + _MOST]
    return re.sub(r"^\| ", "", text.strip(), flags=re.MULTILINE).strip()


_FORMS: dict[str, Callable[[str, random.Random], Reply]] = {  # a part of the prompt that only this form has, the longest way to say it first
    '"article_1_score"': _criteria,
    "Article content:": _cleaned,
    "文章内容：": _cleaned,
    "checklist_content": _checklist,
    '"Breadth and Depth"': lambda prompt, rng: {"Analysis": "so it seems"} | {name: rng.randint(2, 5) for name in _SIX},
    "extracted_final_answer": _graded,
    "NOT_ATTEMPTED": lambda prompt, rng: "A" if _is_right(prompt) else rng.choice("BC"),
    "结论": lambda prompt, rng: f"最终答案: 见回答\n\n解释: 已比较\n\n结论: {'正确' if _is_right(prompt) else '错误'}",
    "GRADE:": lambda prompt, rng: f"Compared.\nGRADE: {'CORRECT' if _is_right(prompt) else 'INCORRECT'}",
    '"score": an integer': lambda prompt, rng: {"score": rng.randint(4, 9), "reason": "so it seems"},
}
