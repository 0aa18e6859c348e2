"""What is true of a research trajectory: correctness, and the seven dimensions of 6.1, ArenaRL, by the corpus.

The embedded judge scores from this and adds noise; evaluation reports it as it is. An open-ended query says which facts
a good report covers, a closed one has its answer and the entities that lead to it. Text is compared as it stands, in
whole words: a claim is borne out if a tool result holds its sentence, or one with the same entity and value.

A view without tool results shows the answer alone, or thoughts, calls and answer (3.2 and 3.3, ArenaRL). Its judge
knows which names are those of entities, and by which words a text speaks of an attribute ("was founded in"). It does
not know values: a fact counts as stated with any value. For an entity that the query does not name, any other named
entity counts. An answer to a closed query counts as right if it has a digit exactly where the known answer has one.
"Not found" is no answer.
"""

import re
from dataclasses import dataclass, replace
from typing import Any

from arenarl.domains.domain import Truth, mean_of
from arenarl.domains.known_answers import entity_recall, has_answer, is_correct, states_something
from arenarl.domains.research.corpus import Corpus, names_in
from arenarl.domains.research.open_queries import stated
from arenarl.domains.stated_facts import leaves_of, stands_in
from arenarl.trajectory import Query, Turn, calls_of, last_answer, read_turns

_PATH, _ANSWER = ("framework", "tool_usage", "coverage"), ("relevance", "accuracy", "depth", "clarity")
_ROOM = 2  # sentences that a report may have besides those it is asked for
ANSWER_WORDS = 8  # of an answer to a closed query that names it and stops
_COMMON = {"a", "an", "and", "has", "is", "its", "the", "was"}
_WORD = re.compile(r"[a-z]+", re.IGNORECASE)


@dataclass(frozen=True)
class ResearchTruth(Truth):
    """Shares in [0, 1], a dimension each."""

    framework: float
    tool_usage: float
    coverage: float
    relevance: float
    accuracy: float
    depth: float
    clarity: float
    correct: bool | None = None  # None for an open-ended query, or without a verdict
    recall: float | None = None  # None for an open-ended query

    def dimensions(self) -> dict[str, float]:
        path = {f"path_{name}": 10 * getattr(self, name) for name in _PATH}
        return path | {f"answer_{name}": 10 * getattr(self, name) for name in _ANSWER}

    def figures(self) -> dict[str, float]:
        """Closed queries: accuracy, and the share of entities found. Open-ended: claims borne out, facts covered."""
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
    turns, wanted = read_turns(messages), query.constraints
    answer, entities = last_answer(turns), wanted["entities"]
    results = "\n".join(_plain(observation) for turn in turns for observation in turn.observations)
    calls = "\n".join(text for call, _ in calls_of(turns) for text in leaves_of(call.arguments)).lower()
    framework = mean_of(stands_in(name.lower(), calls) for name in entities)
    if has_answer(query):
        recall, correct = entity_recall(query, messages), is_correct(wanted, answer)
        useful = [*entities, wanted["answer"]]
        return ResearchTruth(
            framework=framework,
            tool_usage=_usefulness(turns, useful),
            coverage=mean_of(_is_in(name, results) for name in useful),
            relevance=float(_is_in(answer.strip(" ."), results)),
            accuracy=float(correct),
            depth=recall,
            clarity=_brevity(answer),
            correct=correct,
            recall=recall,
        )
    useful = [fact["sentence"] for fact in wanted["facts"]]
    claims = _claims(corpus, answer)
    return ResearchTruth(
        framework=framework,
        tool_usage=_usefulness(turns, useful),
        coverage=mean_of(_is_in(sentence, results) for sentence in useful),
        accuracy=mean_of(_is_borne_out(corpus, sentence, results) for sentence in claims),
        **_scores_of_report(query, answer, claims, stated(corpus, wanted, answer)),
    )


def examine_view(corpus: Corpus, query: Query, messages: list[dict[str, Any]]) -> ResearchTruth:
    """Examine a view without tool results."""
    turns, wanted = read_turns(messages), query.constraints
    answer, entities, given = last_answer(turns), set(wanted["entities"]), corpus.named_in(query.query)
    named = [(set().union(*map(corpus.named_in, leaves_of(call.arguments))), new) for call, new in calls_of(turns)]
    asked = set().union(*(names for names, _ in named))
    covered = len(entities & given & asked) + min(len(entities - given), len(asked - given))
    coverage = covered / len(entities) if entities else 0.0
    tool_usage = mean_of(is_new * (1.0 if names else 0.3) for names, is_new in named)
    path = {"framework": coverage, "tool_usage": tool_usage, "coverage": coverage}
    if has_answer(query):
        is_stated = float(states_something(answer) and _has_digit(answer) == _has_digit(wanted["answer"]))
        return ResearchTruth(**path, relevance=is_stated, accuracy=is_stated, depth=is_stated, clarity=_brevity(answer))
    claims = _claims(corpus, answer)
    statements = [(set(_words(one)), corpus.named_in(one)) for one in claims if states_something(one)]

    def is_stated(fact: dict[str, str]) -> bool:
        name = corpus.entities[fact["url"]].name
        wording = _wording(fact, name)
        subjects = [names for words, names in statements if wording <= words]
        return any(name in names if name in given else names - given for names in subjects)

    delivered = [is_stated(fact) for fact in wanted["facts"]]
    accuracy = mean_of(states_something(sentence) for sentence in claims)
    return ResearchTruth(**path, accuracy=accuracy, **_scores_of_report(query, answer, claims, delivered))


def _scores_of_report(query: Query, answer: str, claims: list[str], delivered: list[bool]) -> dict[str, float]:
    """Relevance, depth and clarity of an answer that states these of the query's facts.

    Clarity: nothing said twice, not much beyond what is asked for, and an outline in numbered lines.
    """
    by_entity: dict[str, list[bool]] = {}
    for fact, is_there in zip(query.constraints["facts"], delivered, strict=True):
        by_entity.setdefault(fact["url"], []).append(is_there)
    clarity = 0.0
    if claims:
        unique, length = len(set(claims)) / len(claims), min(1.0, (len(delivered) + _ROOM) / len(claims))
        lines = [line for line in answer.splitlines() if line.strip()]
        form = mean_of(line.lstrip()[:1].isdigit() for line in lines) if query.subtask == "Ideation" else 1.0
        clarity = unique * length * (0.5 + 0.5 * form)
    return {"relevance": mean_of(map(any, by_entity.values())), "depth": mean_of(delivered), "clarity": clarity}


def _claims(corpus: Corpus, answer: str) -> list[str]:
    """The sentences and lines of an answer that hold a letter."""
    return [sentence for sentence in corpus.sentences(answer) if any(map(str.isalpha, sentence))]


def _is_borne_out(corpus: Corpus, sentence: str, results: str) -> bool:
    """Whether a tool result holds the sentence, or that of a fact whose entity and value it names."""
    return _is_in(sentence.removeprefix("- "), results) or any(
        _is_in(fact.sentence, results)
        for name in names_in(corpus, sentence)
        for fact in corpus.entities[corpus.by_name[name]].facts
        if corpus.says(sentence, name, fact.value)
    )


def _brevity(answer: str) -> float:
    """The clarity of an answer to a closed query: 1 up to `ANSWER_WORDS` words, less for more, 0 for none."""
    return float(bool(answer)) * min(1.0, ANSWER_WORDS / max(1, len(answer.split())))


def _usefulness(turns: list[Turn], wanted: list[str]) -> float:
    """Mean over the calls: 1 for a result that shows something wanted for the first time, 0.3 for any new one."""
    values, seen, missing = [], set(), set(wanted)
    for text in (_plain(observation) for turn in turns for observation in turn.observations):
        new = {one for one in missing if _is_in(one, text)}
        is_new = text not in seen and not text.startswith("error") and text not in ("no results", "[]")
        values.append(1.0 if new else 0.3 * is_new)
        missing -= new
        seen.add(text)
    return mean_of(values)


def _is_in(text: str, results: str) -> bool:
    return bool(plain := _plain(text)) and stands_in(plain, results)


def _plain(text: str) -> str:
    """Small letters, single blanks; what JSON escapes as it was."""
    return " ".join(text.replace("\\n", " ").replace('\\"', '"').lower().split())


def _wording(fact: dict[str, str], name: str) -> set[str]:
    """Return the words that state an attribute: the last two before the value, else the first after it."""
    before, _, after = fact["sentence"].replace(name, " ", 1).partition(fact["value"])
    return set(_words(before)[-2:] or _words(after)[:1])


def _words(text: str) -> list[str]:
    return [word for word in map(str.lower, _WORD.findall(text)) if word not in _COMMON]


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))
