"""The prompt of an LLM judge: the rubric, the query, and the view of each agent (judges/view.py).

Foreign text is quoted (llm/prompts.py). `read_prompt` parses a prompt back, for the tests and the judge server.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache

from arenarl.config.schema import JudgeConfig
from arenarl.domains.domain import ViewKind
from arenarl.domains.rubrics import Rubric
from arenarl.judges.view import View
from arenarl.llm.prompts import Message, fill, prompt_texts, quotable, quoted, sections_of, unquoted
from arenarl.trajectory import Query, ToolCall, Turn

FORMAT = 2  # version of the quoting below; raise it with every change, so that the prompt hash changes too

_HEADING = re.compile(r"# (Rubric|Query|Agent \d+|Task)")
_TURN = re.compile(r"## Turn \d+")
_PART = re.compile(r"\[(thought|call|result|answer)\]")
# the first line of the task for a reduced view; `read_prompt` reads the kind from it
_VIEW_LINES: dict[ViewKind, str] = {"answer": "[shown: answer]", "calls": "[shown: thoughts, calls, answer]"}


@dataclass(frozen=True)
class Reply:
    """The reply that a prompt requests. `form` is its JSON, with a placeholder for each number."""

    task: str  # key of the task's text in the prompt file
    form: str
    words: dict[str, int] = field(default_factory=dict)  # values for the placeholders in the task's text
    names_turns: bool = False  # also request the pivotal turns


@dataclass(frozen=True)
class Prompt:
    """A parsed prompt, without quoting."""

    rubric: str
    query: str
    agents: list[list[Turn]]
    form: str
    kind: ViewKind = "results"


def judge_messages(
    query: Query, views: Sequence[View], rubric: Rubric, reply: Reply, judge: JudgeConfig
) -> list[Message]:
    """Return the messages of one judge call. All views must have the same kind.
    Text that many calls share comes first, because servers cache prefixes."""
    texts, kind = prompt_texts("judge", query.language), views[0].kind
    tasks = prompt_texts("propose", query.language) if reply.task == "propose" else texts
    opening = views[0].opening if views[0].opening.startswith(f"{query.query}\n\n") else query.query
    blocks = ["# Rubric", *(f"- {item.name}: {quotable(item.description)}" for item in rubric.items)]
    blocks += ["# Query", quoted(opening, judge.max_text_chars)]
    for number, view in enumerate(views, start=1):
        blocks += [f"# Agent {number}", *render(view, judge.max_text_chars, judge.max_result_chars)]
    blocks += ["# Task", *([] if kind == "results" else [_VIEW_LINES[kind], texts[f"only_{kind}"].strip()])]
    blocks += [fill(tasks[reply.task], reply.words).strip()]
    blocks += [prompt_texts("turns", query.language)["pivotal"].strip()] if reply.names_turns else []
    blocks += [texts["reply"].strip(), reply.form]
    return [{"role": "system", "content": texts["system"].strip()}, {"role": "user", "content": "\n".join(blocks)}]


@lru_cache(maxsize=1024)
def render(view: View, max_text_chars: int, max_result_chars: int) -> tuple[str, ...]:
    """Render a view turn by turn, with long texts shortened. The last turn of a valid trajectory holds the answer.
    Cached, because each trajectory of a group stands in many prompts."""
    blocks = []
    for number, turn in enumerate(view.turns, start=1):
        blocks.append(f"## Turn {number}")
        if turn.thought:
            blocks.append(f"[thought]\n{quoted(turn.thought, max_text_chars)}")
        results = [f"[result]\n{quoted(observation, max_result_chars)}" for observation in turn.observations]
        for index, call in enumerate(turn.tool_calls):
            blocks.append(f"[call]\n{quoted(json.dumps(asdict(call), ensure_ascii=False), max_text_chars)}")
            blocks += results[index : index + 1]
        blocks += results[len(turn.tool_calls) :]
        if turn.answer is not None:
            blocks.append(f"[answer]\n{quoted(turn.answer, max_text_chars)}")
    return tuple(blocks)


def read_prompt(messages: Sequence[Message]) -> Prompt:
    """Parse a prompt from `judge_messages`. Raises ValueError for any other prompt."""
    sections = sections_of(messages[1]["content"], _HEADING)
    agents = [name for name in sections if name.startswith("Agent ")]
    if list(sections) != ["Rubric", "Query", *(f"Agent {number + 1}" for number in range(len(agents))), "Task"]:
        raise ValueError(f"unexpected sections: {list(sections)}")
    query, task = "\n".join(unquoted(sections["Query"])), sections["Task"]
    kind = next((kind for kind, line in _VIEW_LINES.items() if task[0] == line), "results")
    turns = [read_view(sections[name]) for name in agents]
    return Prompt("\n".join(sections["Rubric"]), query, turns, task[-1], kind)


def read_view(lines: Sequence[str]) -> list[Turn]:
    """Parse the lines of `render` into turns. Raises ValueError for a line outside a part."""
    turns: list[Turn] = []
    parts: list[tuple[Turn, str, list[str]]] = []
    for line in lines:
        if _TURN.fullmatch(line):
            turns.append(Turn("", [], [], None))
        elif turns and (part := _PART.fullmatch(line)):
            parts.append((turns[-1], part[1], []))
        elif parts and parts[-1][0] is turns[-1]:
            parts[-1][2].append(line)
        else:
            raise ValueError(f"line outside a part: {line[:80]!r}")
    for turn, kind, lines in parts:
        text = "\n".join(unquoted(lines))
        if kind == "call":
            try:
                turn.tool_calls.append(ToolCall(**json.loads(text)))
            except (ValueError, TypeError):  # shortened, so not JSON any more
                turn.tool_calls.append(ToolCall("", text))
        elif kind == "result":
            turn.observations.append(text)
        else:
            setattr(turn, kind, text)
    return turns


def prompt_hash(rubric: Rubric, language: str, more: Sequence[str] = ()) -> str:
    """Hash the constant parts of a judge's prompts, for provenance: texts, files `more`, rubric and format."""
    weights = rubric.weights
    items = [(item.name, weights[item.name], item.description, item.without_results) for item in rubric.items]
    texts = [FORMAT, prompt_texts("judge", language), items, *(prompt_texts(name, language) for name in more)]
    return hashlib.sha256(json.dumps(texts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:12]
