"""What is true of a research trajectory: the seven dimensions of 6.1, ArenaRL, checked against the corpus, and
correctness where it is known.

The embedded judge scores from this and adds noise; evaluation reports it as it is. An open-ended query says which facts
a good report covers, a closed one has its answer and the entities that lead to it. Text is compared as it stands, in
whole words: a claim is borne out if a tool result holds its sentence, or one with the same entity and value.
"""

from dataclasses import dataclass, replace
from typing import Any

from arenarl.domains.domain import Truth, mean_of
from arenarl.domains.known_answers import entity_recall, has_answer, is_correct
from arenarl.domains.research.corpus import Corpus, names_in
from arenarl.domains.research.open_queries import stated
from arenarl.domains.stated_facts import leaves_of, stands_in
from arenarl.trajectory import Query, Turn, last_answer, read_turns

_ROOM = 2  # sentences that a report may have besides those it is asked for
ANSWER_WORDS = 8  # of an answer to a closed query that names it and stops


@dataclass(frozen=True)
class ResearchTruth(Truth):
    """Shares in [0, 1], a dimension each. `correct` and `recall` are None of an open-ended query,
    `correct` also without a verdict."""

    framework: float
    tool_usage: float
    coverage: float
    relevance: float
    accuracy: float
    depth: float
    clarity: float
    correct: bool | None = None
    recall: float | None = None

    def dimensions(self) -> dict[str, float]:
        path = {f"path_{name}": 10 * getattr(self, name) for name in ("framework", "tool_usage", "coverage")}
        return path | {
            f"answer_{name}": 10 * getattr(self, name) for name in ("relevance", "accuracy", "depth", "clarity")
        }

    def figures(self) -> dict[str, float]:
        """Of a closed query accuracy and the share of its entities that were found;
        of an open-ended one claims borne out, facts covered."""
        if self.recall is None:
            return {"groundedness": 100 * self.accuracy, "facts_covered": 100 * self.depth}
        accuracy = {} if self.correct is None else {"accuracy": 100.0 * self.correct}
        return accuracy | {"entity_recall": 100 * self.recall}

    def passes(self) -> dict[str, bool]:
        return {} if self.correct is None else {"accuracy": self.correct}

    def verified(self, is_correct: bool | None) -> "ResearchTruth":
        return replace(self, correct=is_correct, accuracy=self.accuracy if is_correct is None else float(is_correct))


def examine(corpus: Corpus, query: Query, messages: list[dict[str, Any]]) -> ResearchTruth:
    """Examine one trajectory, whether it ended with an answer or not."""
    turns = read_turns(messages)
    answer = last_answer(turns)
    return (
        _examine_closed(query, messages, turns, answer)
        if has_answer(query)
        else _examine_open(corpus, query, turns, answer)
    )


def _examine_closed(query: Query, messages: list[dict[str, Any]], turns: list[Turn], answer: str) -> ResearchTruth:
    wanted = query.constraints
    recall, correct = entity_recall(query, messages), is_correct(wanted, answer)
    return ResearchTruth(
        framework=_named_in_calls(turns, wanted["entities"]),
        tool_usage=_usefulness(turns, [*wanted["entities"], wanted["answer"]]),
        coverage=mean_of(_is_in(name, _shown(turns)) for name in [*wanted["entities"], wanted["answer"]]),
        relevance=float(_is_in(answer.strip(" ."), _shown(turns))),
        accuracy=float(correct),
        depth=recall,
        clarity=brevity_of(answer),
        correct=correct,
        recall=recall,
    )


def _examine_open(corpus: Corpus, query: Query, turns: list[Turn], answer: str) -> ResearchTruth:
    wanted, shown = query.constraints, _shown(turns)
    sentences = claims_of(corpus, answer)
    facts, delivered = wanted["facts"], stated(corpus, wanted, answer)
    by_entity: dict[str, list[bool]] = {}
    for fact, is_there in zip(facts, delivered, strict=True):
        by_entity.setdefault(fact["url"], []).append(is_there)
    return ResearchTruth(
        framework=_named_in_calls(turns, wanted["entities"]),
        tool_usage=_usefulness(turns, [fact["sentence"] for fact in facts]),
        coverage=mean_of(_is_in(fact["sentence"], shown) for fact in facts),
        relevance=mean_of(any(found) for found in by_entity.values()),
        accuracy=mean_of(_is_borne_out(corpus, sentence, shown) for sentence in sentences),
        depth=mean_of(delivered),
        clarity=clarity_of(query, answer, sentences, len(facts)),
    )


def claims_of(corpus: Corpus, answer: str) -> list[str]:
    """The sentences and lines of an answer that hold a letter."""
    return [sentence for sentence in corpus.sentences(answer) if any(map(str.isalpha, sentence))]


def _is_borne_out(corpus: Corpus, sentence: str, shown: str) -> bool:
    """Whether a tool result holds the sentence, or that of a fact whose entity and value it names."""
    if _is_in(sentence.removeprefix("- "), shown):
        return True
    named = [(name, corpus.entities[corpus.by_name[name]]) for name in names_in(corpus, sentence)]
    said = [fact for name, entity in named for fact in entity.facts if corpus.says(sentence, name, fact.value)]
    return any(_is_in(fact.sentence, shown) for fact in said)


def brevity_of(answer: str) -> float:
    """The clarity of an answer to a closed query: 1 up to `ANSWER_WORDS` words, less for more, 0 for none."""
    return float(bool(answer)) * min(1.0, ANSWER_WORDS / max(1, len(answer.split())))


def clarity_of(query: Query, answer: str, sentences: list[str], wanted: int) -> float:
    """Nothing said twice, not much beyond what is asked for, and an outline in numbered lines."""
    if not sentences:
        return 0.0
    unique = len(set(sentences)) / len(sentences)
    length = min(1.0, (wanted + _ROOM) / len(sentences))
    lines = [line for line in answer.splitlines() if line.strip()]
    form = mean_of(line.lstrip()[:1].isdigit() for line in lines) if query.subtask == "Ideation" else 1.0
    return unique * length * (0.5 + 0.5 * form)


def _named_in_calls(turns: list[Turn], names: list[str]) -> float:
    """Share of the names that some call asks about: the task was taken apart."""
    asked = "\n".join(text for turn in turns for call in turn.tool_calls for text in leaves_of(call.arguments)).lower()
    return mean_of(stands_in(name.lower(), asked) for name in names)


def _usefulness(turns: list[Turn], wanted: list[str]) -> float:
    """Mean over the calls: 1 if it showed something wanted that was not shown before,
    .3 if it showed anything new, else 0."""
    values, seen, missing = [], set(), set(wanted)
    for turn in turns:
        for observation in turn.observations:
            text = _plain(observation)
            found = {one for one in missing if _is_in(one, text)}
            is_new = text not in seen and not text.startswith("error") and text not in ("no results", "[]")
            values.append(1.0 if found else 0.3 * is_new)
            missing -= found
            seen.add(text)
    return mean_of(values)


def _shown(turns: list[Turn]) -> str:
    return "\n".join(_plain(observation) for turn in turns for observation in turn.observations)


def _is_in(text: str, shown: str) -> bool:
    return bool(plain := _plain(text)) and stands_in(plain, shown)


def _plain(text: str) -> str:
    """Small letters, single blanks; what JSON escapes as it was."""
    return " ".join(text.replace("\\n", " ").replace('\\"', '"').lower().split())
