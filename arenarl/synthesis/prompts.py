"""What the LLMs that make training data are told and asked for, one function a role, and the forms of their replies.

A prompt is sections under headings, as a judge's is: what is not ours is quoted line by line, `read_sections` reads it
back, which the local server and the tests build on. The teacher's and the rewriter's prompts are those of rollouts.
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
from arenarl.llm.prompts import Message, prompt_texts, quoted, sections_of, unquoted
from arenarl.trajectory import Query, Trajectory

QueryText = Annotated[str, StringConstraints(strip_whitespace=True, min_length=5, max_length=4000)]
_MOST_CHARACTERS = 20_000  # of a query, of a tool's description
DIMENSIONS = ("tool_use", "content", "consistency")  # of an inspection (Section 5, stage III)


@dataclass(frozen=True)
class Cell:
    """What a quota of queries is for."""

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
    turn: Annotated[int, Field(ge=0, le=10_000)]  # the first at fault, counted from 1; 0: none in particular
    problem: str


class Inspection(JSONReply):
    tool_use: Finding
    content: Finding
    consistency: Finding


def generate_messages(
    cell: Cell, style: str, tools: Sequence[dict[str, Any]], examples: Sequence[str], count: int
) -> list[Message]:
    """Ask for `count` queries like the examples; the reply is `Generated`."""
    lines = [json.dumps(example, ensure_ascii=False) for example in examples]
    sections = {"Tools": _tools(tools), "Subtask": [cell.subtask], "Style": [style], "Examples": lines}
    form = json.dumps({"queries": ["…"] * count}, ensure_ascii=False)
    return _messages("generate", cell.language, sections, form, count=count)


def refine_messages(query: str, language: str, tools: Sequence[dict[str, Any]]) -> list[Message]:
    """Ask for a better wording, and whether the tools can serve it; the reply is `Refined`."""
    form = '{"query": "…", "can_be_served": true, "reason": "…"}'
    return _messages("refine", language, {"Tools": _tools(tools), "Query": [query]}, form)


def extract_messages(query: str, cell: Cell, form: type[BaseModel]) -> list[Message]:
    """Ask for the query's constraints; the reply is `form`."""
    schema = json.dumps(form.model_json_schema(), ensure_ascii=False)
    fields = json.dumps(dict.fromkeys(form.model_fields, "…"), ensure_ascii=False)
    return _messages("extract", cell.language, {"Query": [query], "Subtask": [cell.subtask], "Form": [schema]}, fields)


def inspect_messages(query: Query, trajectory: Trajectory, tools: Sequence[dict[str, Any]]) -> list[Message]:
    """Show a trajectory, turn by turn with its tool results, and ask for an `Inspection`."""
    finding = '{"passes": true, "turn": 0, "problem": ""}'
    form = "{" + ", ".join(f'"{name}": {finding}' for name in DIMENSIONS) + "}"
    texts = prompt_texts("build", query.language)
    shown = render(view_of(trajectory, "results"), JudgeConfig())
    blocks = [*_section("Tools", _tools(tools)), *_section("Query", [query.query]), "# Trajectory", *shown]
    return _asked(texts, [*blocks, "# Task", texts["inspect"].strip()], form)


def again(language: str) -> str:
    """What a reply that cannot be read is answered with."""
    return prompt_texts("build", language)["again"]


def rewrite_system(system: str, language: str, problems: Sequence[str]) -> str:
    """What the rewriter is told besides what every policy is."""
    lines = "".join(f"\n{quoted(problem, 2000)}" for problem in problems)
    request = prompt_texts("build", language)["rewrite"].format(problems=lines)
    return f"{system.strip()}\n\n{request.strip()}"


def read_sections(messages: Sequence[Message]) -> dict[str, list[str]]:
    """Heading → its lines, quoting removed but for the trajectory and the task.
    Raises ValueError for what is no prompt of this module."""
    sections = sections_of(messages[1]["content"], re.compile("# (.*)"))
    return {name: lines if name in ("Trajectory", "Task") else unquoted(lines) for name, lines in sections.items()}


def _messages(task: str, language: str, sections: dict[str, list[str]], form: str, **words: Any) -> list[Message]:
    texts = prompt_texts("build", language)
    blocks = [line for name, lines in sections.items() for line in _section(name, lines)]
    return _asked(texts, [*blocks, "# Task", texts[task].format(**words).strip()], form)


def _asked(texts: dict[str, str], blocks: Sequence[str], form: str) -> list[Message]:
    content = "\n".join([*blocks, texts["reply"].strip(), form])
    return [{"role": "system", "content": texts["system"].strip()}, {"role": "user", "content": content}]


def _section(name: str, lines: Sequence[str]) -> list[str]:
    return [f"# {name}", *(quoted(line, _MOST_CHARACTERS) for line in lines)]


def _tools(tools: Sequence[dict[str, Any]]) -> list[str]:
    """A line a tool: its name and what it does."""
    functions = [tool["function"] for tool in tools]
    lines = [f"{one['name']}: {' '.join(one.get('description', '').split())}" for one in functions]
    return lines or ["none"]
