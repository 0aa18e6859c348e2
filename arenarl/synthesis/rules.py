"""The rules of inspection, before any LLM is asked (Section 5, stage III):
what can be told of a trajectory by its form, for any domain.

Form, tool errors, facts that no tool result bears out, and what the domain reads as a contradiction to the query's
constraints. They see what a real inspector sees: query, trajectory and tools, no truth. Each problem says the turn to
write anew from. The paper does not list its rules: all of these are our choice.
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
_LONGEST_QUOTED = 300  # characters of one
_MOST_FAILED = 1 / 3  # share of the calls
_ENDS = {  # of trajectories that are not valid
    "no_answer": "a turn has neither a tool call nor one closed answer",
    "max_turns": "the turns ran out before an answer",
    "max_tokens": "the tokens ran out before an answer",
    "tool_crash": "a tool crashed",
}
# whole, or broken as `harmless` does
_TAG = re.compile(r"<\s?(?:\|[^\s|<>]{1,40}\|?|/?(?:think|tool_call|tool_response|answer))>")
_HAN, _WORD = re.compile(r"[一-鿿]"), re.compile(r"[A-Za-zÀ-ɏ]{2,}")
_ASKS_FOR_A_LANGUAGE = re.compile(r"in (?:english|chinese|mandarin)|translat|英文|英语|中文|汉语|翻译", re.IGNORECASE)
_FEWEST_WORDS = 5  # by which a language is told

_Call = tuple[int, ToolCall, str]  # turn, call, observation


@dataclass(frozen=True)
class Problem:
    """`turn` is the first at fault, counted from 1: the last where the answer is.
    `text` is a sentence that quotes what is wrong."""

    rule: str  # form, tool_errors, facts, constraints
    turn: int
    text: str


def problems_of(
    query: Query, trajectory: Trajectory, tools: Sequence[dict[str, Any]], contradictions: Sequence[str] = ()
) -> list[Problem]:
    """What the rules find, rule by rule; `contradictions` are the domain's (`Domain.contradictions`).

    form: an end that is not valid, no answer, one in another language than the query, tags of the chat left in it; a
    call that is malformed, of no tool, or does not fit its schema; one that is made again and brings the same.
    tool_errors: the last call fails, or more than one and more than a third of them do; a single error that was mended
    teaches mending. facts: see `grounding`; without tools nothing can bear a fact out, and the rule is silent. A turn
    without a thought is no fault, and whether a refusal is one, is for the LLM to say.
    """
    turns = read_turns(trajectory.messages)
    last, calls = max(1, len(turns)), list(_calls(turns))
    faults = [
        *(("form", last, text) for text in _faults_of_form(query, trajectory)),
        *(("form", turn, text) for turn, text in _faults_of_calls(trajectory, calls, tools)),
        *(("tool_errors", turn, text) for turn, text in _tool_errors(calls)),
    ]
    if tools and trajectory.answer and (facts := ungrounded(query, trajectory)):
        facts = _quoted([fact.text for fact in facts])
        faults.append(("facts", last, f"No tool result bears out what the answer states: {facts}."))
    faults += [("constraints", last, text) for text in contradictions]
    return [Problem(*fault) for fault in faults]


def _calls(turns: Sequence[Turn]) -> Iterator[_Call]:
    for number, turn in enumerate(turns, start=1):
        for index, call in enumerate(turn.tool_calls):
            yield number, call, turn.observations[index] if index < len(turn.observations) else ""


def _faults_of_form(query: Query, trajectory: Trajectory) -> Iterator[str]:
    answer = trajectory.answer
    if not trajectory.valid:
        yield f"The trajectory is not valid: {_ENDS.get(trajectory.stop_reason, trajectory.stop_reason)}."
    elif trajectory.stop_reason == "answer" and not answer.strip():
        yield "The trajectory ends without an answer."
    if tags := list(dict.fromkeys(_TAG.findall(answer))):
        yield f"The answer holds tags of the chat format: {_quoted(tags)}."
    if not _ASKS_FOR_A_LANGUAGE.search(query.query) and (languages := _languages_apart(query, answer)):
        yield "The query is in {}, but the answer is in {}.".format(*languages)


def _languages_apart(query: Query, answer: str) -> tuple[str, str] | None:
    """The languages of both where one is Chinese and the other is not;
    names in another script leave a text what it is."""
    asked, said = _chinese_share(query.query), _chinese_share(answer)
    if said is None:
        return None
    asked = float(query.language == "zh") if asked is None else asked
    if asked >= 0.5 and said < 0.2:
        return "Chinese", "another language"
    return ("another language", "Chinese") if asked < 0.2 and said >= 0.5 else None


def _chinese_share(text: str) -> float | None:
    """Of the Chinese characters and the words in Latin script; None: too few of both."""
    chinese, latin = len(_HAN.findall(text)), len(_WORD.findall(text))
    return chinese / (chinese + latin) if chinese + latin >= _FEWEST_WORDS else None


def _faults_of_calls(
    trajectory: Trajectory, calls: Sequence[_Call], tools: Sequence[dict[str, Any]]
) -> Iterator[tuple[int, str]]:
    """Calls that are malformed or fit no tool, then those that brought nothing new.
    In a world with a state, which ends a trajectory itself, one may do the same twice."""
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


def _quoted(texts: Sequence[str]) -> str:
    shortened = [text if len(text) <= _LONGEST_QUOTED else f"{text[:_LONGEST_QUOTED]}…" for text in texts]
    more = f" and {len(texts) - _MOST_QUOTED} more" if len(texts) > _MOST_QUOTED else ""
    return ", ".join(shortened[:_MOST_QUOTED]) + more
