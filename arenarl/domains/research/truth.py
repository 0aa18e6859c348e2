"""The truth of a research trajectory: correctness, and the seven dimensions of 6.1, ArenaRL, according to the corpus.

The simulated judge adds noise to these scores; evaluation reports them as they are. Texts are compared word by word: a
claim is grounded if a tool result has its sentence, or a sentence with the same entity and value.

`examine_view` scores what a judge without tool results can see (3.2 and 3.3, ArenaRL). It uses names of entities and
the words that state an attribute ("was founded in"), but no values: a fact counts as stated with any value. For an
entity that the query does not name, any other entity counts. A closed answer counts as right if it has a digit exactly
when the known answer has one; "not found" never counts.
"""

import re
from dataclasses import dataclass, replace
from typing import Any

from arenarl.domains.domain import Truth, mean_of
from arenarl.domains.known_answers import entity_recall, has_answer, is_correct, states_something
from arenarl.domains.research.corpus import Corpus, names_in
from arenarl.domains.research.open_queries import find_stated_facts
from arenarl.domains.stated_facts import leaves_of, stands_in, without_escapes
from arenarl.trajectory import Query, calls_of, last_answer, read_turns, text_key

_PATH, _ANSWER = ("framework", "tool_usage", "coverage"), ("relevance", "accuracy", "depth", "clarity")
_ROOM = 2  # further sentences that a report may have without a loss of clarity
ANSWER_WORDS = 8  # longest answer to a closed query that keeps full clarity
_COMMON = {"a", "an", "and", "has", "is", "its", "the", "was"}
_WORD = re.compile(r"[a-z]+", re.IGNORECASE)


@dataclass(frozen=True)
class ResearchTruth(Truth):
    """Shares in [0, 1], one per dimension."""

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
        """Return percentages. Closed: accuracy and entities found. Open-ended: grounded claims and facts covered."""
        if self.recall is None:
            return {"groundedness": 100 * self.accuracy, "facts_covered": 100 * self.depth}
        accuracy = {} if self.correct is None else {"accuracy": 100.0 * self.correct}
        return accuracy | {"entity_recall": 100 * self.recall}

    def passes(self) -> dict[str, bool]:
        return {} if self.correct is None else {"accuracy": self.correct}

    def information(self) -> float:
        return self.coverage

    def verified(self, is_correct: bool | None) -> "ResearchTruth":
        return replace(self, correct=is_correct, accuracy=self.accuracy if is_correct is None else float(is_correct))


def examine(corpus: Corpus, query: Query, messages: list[dict[str, Any]]) -> ResearchTruth:
    """Examine a trajectory with its tool results; without an answer, the answer's dimensions are 0."""
    turns, constraints = read_turns(messages), query.constraints
    answer, entities = last_answer(turns), constraints["entities"]
    observations = [_plain(observation) for turn in turns for observation in turn.observations]
    results = "\n".join(observations)
    calls = "\n".join(text for call, _ in calls_of(turns) for text in leaves_of(call.arguments)).lower()
    is_closed = has_answer(query)
    useful = [*entities, constraints["answer"]] if is_closed else [fact["sentence"] for fact in constraints["facts"]]
    path = {
        "framework": mean_of(stands_in(name.lower(), calls) for name in entities),
        "tool_usage": _usefulness(observations, useful),
        "coverage": mean_of(_is_in(text, results) for text in useful),
    }
    if is_closed:
        recall, correct = entity_recall(query, messages), is_correct(constraints, answer)
        scores = {"relevance": float(_is_in(answer.strip(" ."), results)), "accuracy": float(correct), "depth": recall}
        return ResearchTruth(**path, **scores, clarity=_brevity(answer), correct=correct, recall=recall)
    claims = _claims(corpus, answer)
    accuracy = mean_of(_is_grounded(corpus, sentence, results) for sentence in claims)
    scores = _scores_of_report(query, answer, claims, find_stated_facts(corpus, constraints, answer))
    return ResearchTruth(**path, accuracy=accuracy, **scores)


def examine_view(corpus: Corpus, query: Query, messages: list[dict[str, Any]]) -> ResearchTruth:
    """Examine a view without tool results, as the module's docstring describes."""
    turns, constraints = read_turns(messages), query.constraints
    answer, entities, query_names = last_answer(turns), set(constraints["entities"]), corpus.named_in(query.query)
    named = [(set().union(*map(corpus.named_in, leaves_of(call.arguments))), new) for call, new in calls_of(turns)]
    searched = set().union(*(names for names, _ in named))
    count = len(entities & query_names & searched) + min(len(entities - query_names), len(searched - query_names))
    coverage = count / len(entities) if entities else 0.0
    tool_usage = mean_of(is_new * (1.0 if names else 0.3) for names, is_new in named)
    path = {"framework": coverage, "tool_usage": tool_usage, "coverage": coverage}
    if has_answer(query):
        looks_right = float(states_something(answer) and _has_digit(answer) == _has_digit(constraints["answer"]))
        scores = dict.fromkeys(("relevance", "accuracy", "depth"), looks_right)
        return ResearchTruth(**path, **scores, clarity=_brevity(answer))
    claims = _claims(corpus, answer)
    statements = [(set(_words(claim)), corpus.named_in(claim)) for claim in claims if states_something(claim)]

    def is_stated(fact: dict[str, str]) -> bool:
        name = corpus.entities[fact["url"]].name
        wording = _wording(fact, name)
        subjects = [names for words, names in statements if wording <= words]
        return any(name in names if name in query_names else names - query_names for names in subjects)

    accuracy = mean_of(map(states_something, claims))
    scores = _scores_of_report(query, answer, claims, list(map(is_stated, constraints["facts"])))
    return ResearchTruth(**path, accuracy=accuracy, **scores)


def _scores_of_report(query: Query, answer: str, claims: list[str], is_stated: list[bool]) -> dict[str, float]:
    """Return relevance, depth and clarity of an answer, given the query's facts that it states.
    Clarity requires no repetition, little beyond the facts, and numbered lines in an outline."""
    by_entity: dict[str, list[bool]] = {}
    for fact, value in zip(query.constraints["facts"], is_stated, strict=True):
        by_entity.setdefault(fact["url"], []).append(value)
    clarity = 0.0
    if claims:
        unique, length = len(set(claims)) / len(claims), min(1.0, (len(is_stated) + _ROOM) / len(claims))
        lines = [line for line in answer.splitlines() if line.strip()]
        form = mean_of(line.lstrip()[:1].isdigit() for line in lines) if query.subtask == "Ideation" else 1.0
        clarity = unique * length * (0.5 + 0.5 * form)
    return {"relevance": mean_of(map(any, by_entity.values())), "depth": mean_of(is_stated), "clarity": clarity}


def _claims(corpus: Corpus, answer: str) -> list[str]:
    """Return the sentences and lines of an answer that contain a letter."""
    return [sentence for sentence in corpus.sentences(answer) if any(map(str.isalpha, sentence))]


def _is_grounded(corpus: Corpus, sentence: str, results: str) -> bool:
    """Return True if a tool result has the sentence, or the sentence of a fact whose entity and value it names."""
    return _is_in(sentence.removeprefix("- "), results) or any(
        _is_in(fact.sentence, results)
        for name in names_in(corpus, sentence)
        for fact in corpus.entities[corpus.by_name[name]].facts
        if corpus.says(sentence, name, fact.value)
    )


def _brevity(answer: str) -> float:
    """Return the clarity of a closed answer: 1 up to `ANSWER_WORDS` words, then falling; 0 for no answer."""
    return float(bool(answer)) * min(1.0, ANSWER_WORDS / max(1, len(answer.split())))


def _usefulness(observations: list[str], useful: list[str]) -> float:
    """Return the mean over the calls: 1 for a result that first shows a useful text, 0.3 for any other new result."""
    values, seen, missing = [], set(), set(useful)
    for text in observations:
        new = {words for words in missing if _is_in(words, text)}
        is_new = text not in seen and not text.startswith("error") and text not in ("no results", "[]")
        values.append(1.0 if new else 0.3 * is_new)
        missing -= new
        seen.add(text)
    return mean_of(values)


def _is_in(text: str, results: str) -> bool:
    return bool(plain := _plain(text)) and stands_in(plain, results)


def _plain(text: str) -> str:
    """Return the text in lower case, with single blanks, and with JSON's escapes undone."""
    return text_key(without_escapes(text))


def _wording(fact: dict[str, str], name: str) -> set[str]:
    """Return the words that state an attribute: the last two before the value, else the first after it."""
    before, _, after = fact["sentence"].replace(name, " ", 1).partition(fact["value"])
    return set(_words(before)[-2:] or _words(after)[:1])


def _words(text: str) -> list[str]:
    return [word for word in map(str.lower, _WORD.findall(text)) if word not in _COMMON]


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))
