"""Prompts for the LLMs that make training data, one function per role, and the forms of their replies.

Like a judge's prompt, a prompt has sections under headings, and foreign text is quoted line by line. `read_sections`
reads the sections back, for the local server and the tests. Teacher and rewriter get the prompts of rollouts.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints

from arenarl.config.schema import JudgeConfig
from arenarl.judges.prompts import render
from arenarl.judges.view import view_of
from arenarl.llm.json_reply import JSONReply
from arenarl.llm.prompts import Message, fill, prompt_texts, quoted, sections_of, unquoted
from arenarl.trajectory import Query, Trajectory

QueryText = Annotated[str, StringConstraints(strip_whitespace=True, min_length=5, max_length=4000)]
_MOST_CHARACTERS = 20_000  # maximum length of a quoted line
DIMENSIONS = ("tool_use", "content", "consistency")  # dimensions of an inspection (Section 5, stage III)


@dataclass(frozen=True)
class Cell:
    """A subtask in one language; each cell has a quota."""

    subtask: str
    language: str


class Generated(JSONReply):
    queries: Annotated[list[QueryText], Field(min_length=1, max_length=1000)]


class Refined(JSONReply):
    query: QueryText
    can_be_served: bool
    reason: str


class Finding(JSONReply):
    passes: bool
    turn: Annotated[int, Field(ge=0, le=10_000)]  # the first faulty turn, from 1; 0: no certain turn
    problem: str


class Inspection(JSONReply):
    tool_use: Finding
    content: Finding
    consistency: Finding


def generate_messages(
    cell: Cell, style: str, tools: Sequence[dict[str, Any]], examples: Sequence[str], count: int
) -> list[Message]:
    """Return the prompt that asks for `count` queries like the examples; the reply is a `Generated`."""
    lines = [json.dumps(example, ensure_ascii=False) for example in examples]
    sections = {"Tools": _tools(tools), "Subtask": [cell.subtask], "Style": [style], "Examples": lines}
    form = json.dumps({"queries": ["…"] * count}, ensure_ascii=False)
    return _messages("generate", cell.language, sections, form, count=count)


def refine_messages(query: str, language: str, tools: Sequence[dict[str, Any]]) -> list[Message]:
    """Return the prompt for a better wording and whether the tools can serve the query; the reply is a `Refined`."""
    form = '{"query": "…", "can_be_served": true, "reason": "…"}'
    return _messages("refine", language, {"Tools": _tools(tools), "Query": [query]}, form)


def extract_messages(query: str, cell: Cell, form: type[BaseModel]) -> list[Message]:
    """Return the prompt that asks for the query's constraints; the reply has the type `form`."""
    schema = json.dumps(form.model_json_schema(), ensure_ascii=False)
    fields = json.dumps(dict.fromkeys(form.model_fields, "…"), ensure_ascii=False)
    return _messages("extract", cell.language, {"Query": [query], "Subtask": [cell.subtask], "Form": [schema]}, fields)


def inspect_messages(query: Query, trajectory: Trajectory, tools: Sequence[dict[str, Any]]) -> list[Message]:
    """Return the prompt that asks for an `Inspection` of a trajectory, shown turn by turn with tool results."""
    finding = '{"passes": true, "turn": 0, "problem": ""}'
    form = "{" + ", ".join(f'"{name}": {finding}' for name in DIMENSIONS) + "}"
    texts = prompt_texts("build", query.language)
    judge = JudgeConfig()
    turns = render(view_of(trajectory, "results"), judge.max_text_chars, judge.max_result_chars)
    blocks = [*_section("Tools", _tools(tools)), *_section("Query", [query.query]), "# Trajectory", *turns]
    return _with_form(texts, [*blocks, "# Task", texts["inspect"].strip()], form)


def again(language: str) -> str:
    """Return the request to repeat an unreadable reply."""
    return prompt_texts("build", language)["again"]


def rewrite_system(system: str, language: str, problems: Sequence[str]) -> str:
    """Return the rewriter's system prompt: the policy's own, then the problems to correct."""
    lines = "".join(f"\n{quoted(problem, 2000)}" for problem in problems)
    request = prompt_texts("build", language)["rewrite"].format(problems=lines)
    return f"{system.strip()}\n\n{request.strip()}"


def read_sections(messages: Sequence[Message]) -> dict[str, list[str]]:
    """Return the lines under each heading of a prompt, unquoted except for trajectory and task.
    Raises ValueError for a prompt of another module."""
    sections = sections_of(messages[1]["content"], re.compile("# (.*)"))
    return {name: lines if name in ("Trajectory", "Task") else unquoted(lines) for name, lines in sections.items()}


def _messages(task: str, language: str, sections: dict[str, list[str]], form: str, **words: Any) -> list[Message]:
    texts = prompt_texts("build", language)
    blocks = [line for name, lines in sections.items() for line in _section(name, lines)]
    return _with_form(texts, [*blocks, "# Task", fill(texts[task], words).strip()], form)


def _with_form(texts: dict[str, str], blocks: Sequence[str], form: str) -> list[Message]:
    content = "\n".join([*blocks, texts["reply"].strip(), form])
    return [{"role": "system", "content": texts["system"].strip()}, {"role": "user", "content": content}]


def _section(name: str, lines: Sequence[str]) -> list[str]:
    return [f"# {name}", *(quoted(line, _MOST_CHARACTERS) for line in lines)]


def _tools(tools: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line per tool with its name and description."""
    functions = [tool["function"] for tool in tools]
    return [f"{tool['name']}: {' '.join(tool.get('description', '').split())}" for tool in functions] or ["none"]
