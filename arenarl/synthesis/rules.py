"""The rules of inspection, which run before the LLM (Section 5, stage III), for any domain.

They find faults of form, tool errors, facts without support in tool results, and the domain's contradictions between
answer and query. Like a human inspector, they see query, trajectory and tools, but no truth. A problem names the turn
from which to rewrite. The paper does not list its rules: all of these are our choice.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from arenarl.rollout.environment import ToolError, as_written, check_call
from arenarl.synthesis.grounding import ungrounded
from arenarl.trajectory import Query, ToolCall, Trajectory, Turn, read_turns

_MOST_QUOTED = 8  # facts in one problem
_LONGEST_QUOTED = 300  # characters of a fact
_MOST_FAILED = 1 / 3  # maximum share of failed calls
_ENDS = {  # stop reason of an invalid trajectory -> description
    "no_answer": "a turn has neither a tool call nor one closed answer",
    "max_turns": "the turns ran out before an answer",
    "max_tokens": "the tokens ran out before an answer",
    "tool_crash": "a tool crashed",
    "no_room": "the prompt is too long for the policy",
}
# intact, or broken by `harmless`
_TAG = re.compile(r"<\s?(?:\|[^\s|<>]{1,40}\|?|/?(?:think|tool_call|tool_response|answer))>")
_HAN, _WORD = re.compile(r"[一-鿿]"), re.compile(r"[A-Za-zÀ-ɏ]{2,}")
_ASKS_FOR_A_LANGUAGE = re.compile(r"in (?:english|chinese|mandarin)|translat|英文|英语|中文|汉语|翻译", re.IGNORECASE)
_FEWEST_WORDS = 5  # number of characters and words needed to detect a language

_Call = tuple[int, ToolCall, str]  # turn, call, observation


@dataclass(frozen=True)
class Problem:
    """A fault of a trajectory."""

    rule: str  # form, tool_errors, facts, constraints; or a dimension of an inspection
    turn: int  # the first faulty turn, from 1; faults of the answer have the last turn
    text: str  # a sentence that quotes the fault


def problems_of(
    query: Query, trajectory: Trajectory, tools: Sequence[dict[str, Any]], contradictions: Sequence[str] = ()
) -> list[Problem]:
    """Return the problems, rule by rule.

    - form: an invalid end; no answer, an answer in another language than the query, or with chat tags; a call that is
      malformed, names an unknown tool or does not fit its schema; a repeated call with the same result.
    - tool_errors: the last call fails, or several calls and more than a third fail. One corrected error is allowed,
      because it teaches correction.
    - facts: facts without support (`grounding`). Does not apply without tools.
    - constraints: `contradictions`, from `Domain.contradictions`.

    A turn without a thought is allowed. The LLM decides whether a refusal is a fault.
    """
    turns = read_turns(trajectory.messages)
    last, calls = max(1, len(turns)), list(_calls(turns))
    faults = [
        *(("form", last, text) for text in _form_faults(query, trajectory)),
        *(("form", turn, text) for turn, text in _call_faults(trajectory, calls, tools)),
        *(("tool_errors", turn, text) for turn, text in _tool_errors(calls)),
    ]
    if tools and trajectory.answer and (facts := ungrounded(query, trajectory)):
        facts = _quote([fact.text for fact in facts])
        faults.append(("facts", last, f"No tool result bears out what the answer states: {facts}."))
    faults += [("constraints", last, text) for text in contradictions]
    return [Problem(*fault) for fault in faults]


def _calls(turns: Sequence[Turn]) -> Iterator[_Call]:
    for number, turn in enumerate(turns, start=1):
        for index, call in enumerate(turn.tool_calls):
            yield number, call, turn.observations[index] if index < len(turn.observations) else ""


def _form_faults(query: Query, trajectory: Trajectory) -> Iterator[str]:
    answer = trajectory.answer
    if not trajectory.valid:
        yield f"The trajectory is not valid: {_ENDS.get(trajectory.stop_reason, trajectory.stop_reason)}."
    elif trajectory.stop_reason == "answer" and not answer.strip():
        yield "The trajectory ends without an answer."
    if tags := list(dict.fromkeys(_TAG.findall(answer))):
        yield f"The answer holds tags of the chat format: {_quote(tags)}."
    if not _ASKS_FOR_A_LANGUAGE.search(query.query) and (languages := _different_languages(query, answer)):
        yield "The query is in {}, but the answer is in {}.".format(*languages)


def _different_languages(query: Query, answer: str) -> tuple[str, str] | None:
    """Return the languages of query and answer if exactly one is Chinese. Names in another script are tolerated."""
    in_query, in_answer = _chinese_share(query.query), _chinese_share(answer)
    if in_answer is None:
        return None
    in_query = float(query.language == "zh") if in_query is None else in_query
    if in_query >= 0.5 and in_answer < 0.2:
        return "Chinese", "another language"
    return ("another language", "Chinese") if in_query < 0.2 and in_answer >= 0.5 else None


def _chinese_share(text: str) -> float | None:
    """Return Chinese characters / (Chinese characters + Latin words); None if the text is too short."""
    chinese, latin = len(_HAN.findall(text)), len(_WORD.findall(text))
    return chinese / (chinese + latin) if chinese + latin >= _FEWEST_WORDS else None


def _call_faults(
    trajectory: Trajectory, calls: Sequence[_Call], tools: Sequence[dict[str, Any]]
) -> Iterator[tuple[int, str]]:
    """Yield malformed calls and calls that fit no tool, then repeated calls with the same result.
    A world with a state, which ends trajectories itself, allows repeats."""
    for turn, call, _ in calls:
        if not isinstance(call.arguments, dict):
            yield turn, f"A tool call is malformed: {as_written(call.arguments)}."
            continue
        try:
            check_call(list(tools), call.name, call.arguments)
        except ToolError as error:
            yield turn, f"A tool call does not fit: {error}"
    seen = set()
    for turn, call, observation in calls if trajectory.stop_reason not in ("done", "horizon") else ():
        if (key := (call.name, json.dumps(call.arguments, sort_keys=True), observation)) in seen:
            made = f"The call of {call.name} with {as_written(call.arguments)} was made before"
            yield turn, f"{made}, and brings the same again."
        seen.add(key)


def _tool_errors(calls: Sequence[_Call]) -> Iterator[tuple[int, str]]:
    failed = [call for call in calls if call[2].startswith("Error")]
    if failed and failed[-1] is calls[-1]:
        turn, call, observation = calls[-1]
        yield turn, f"The last call, of {call.name}, failed, and nothing mends it: {as_written(observation)}."
    if len(failed) > max(1, _MOST_FAILED * len(calls)):
        turn, call, observation = failed[0]
        count = f"{len(failed)} of {len(calls)} calls failed"
        yield turn, f"{count}; the first, of {call.name}: {as_written(observation)}."


def _quote(texts: Sequence[str]) -> str:
    shortened = [text if len(text) <= _LONGEST_QUOTED else f"{text[:_LONGEST_QUOTED]}…" for text in texts]
    more = f" and {len(texts) - _MOST_QUOTED} more" if len(texts) > _MOST_QUOTED else ""
    return ", ".join(shortened[:_MOST_QUOTED]) + more
