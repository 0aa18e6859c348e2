"""The truth of a research view without tool results: the answer alone, or thoughts,
calls and answer (3.2 and 3.3, ArenaRL).

The judge knows which names are those of entities, and by which words a text speaks of an attribute ("was founded in").
It does not know values: a fact counts as stated with any value. For an entity that the query does not name, any other
named entity counts. An answer to a closed query counts as right if it has a digit exactly where the known answer has
one. "Not found" is no answer.
"""

import re
from collections.abc import Iterable
from typing import Any

from arenarl.domains.domain import mean_of
from arenarl.domains.known_answers import has_answer, states_something
from arenarl.domains.research.corpus import Corpus
from arenarl.domains.research.truth import ResearchTruth, brevity_of, claims_of, clarity_of
from arenarl.domains.stated_facts import leaves_of
from arenarl.trajectory import Query, Turn, calls_of, last_answer, read_turns

_COMMON = {"a", "an", "and", "has", "is", "its", "the", "was"}
_WORD = re.compile(r"[a-z]+", re.IGNORECASE)


def examine_view(corpus: Corpus, query: Query, messages: list[dict[str, Any]]) -> ResearchTruth:
    """Examine a view without tool results."""
    turns = read_turns(messages)
    answer = last_answer(turns)
    asked = _asked_about(corpus, query, turns)
    path = {"framework": asked, "tool_usage": _usefulness(corpus, turns), "coverage": asked}
    if has_answer(query):
        is_stated = float(states_something(answer) and _has_digit(answer) == _has_digit(query.constraints["answer"]))
        return ResearchTruth(
            **path, relevance=is_stated, accuracy=is_stated, depth=is_stated, clarity=brevity_of(answer)
        )
    sentences, facts = claims_of(corpus, answer), query.constraints["facts"]
    given = corpus.named_in(query.query)
    said = [(set(_words(sentence)), corpus.named_in(sentence)) for sentence in sentences if states_something(sentence)]
    by_entity: dict[str, list[bool]] = {}
    for fact in facts:
        name, wording = corpus.entities[fact["url"]].name, _wording(fact, corpus.entities[fact["url"]].name)
        is_stated = any(
            wording <= words and (name in names if name in given else names - given) for words, names in said
        )
        by_entity.setdefault(fact["url"], []).append(is_stated)
    return ResearchTruth(
        **path,
        relevance=mean_of(any(stated) for stated in by_entity.values()),
        accuracy=mean_of(states_something(sentence) for sentence in sentences),
        depth=mean_of(is_stated for stated in by_entity.values() for is_stated in stated),
        clarity=clarity_of(query, answer, sentences, len(facts)),
    )


def _wording(fact: dict[str, str], name: str) -> set[str]:
    """Return the words that state an attribute: the last two before the value, else the first after it."""
    before, _, after = fact["sentence"].replace(name, " ", 1).partition(fact["value"])
    return set(_words(before)[-2:] or _words(after)[:1])


def _words(text: str) -> list[str]:
    return [word for word in map(str.lower, _WORD.findall(text)) if word not in _COMMON]


def _names_in(corpus: Corpus, sentences: Iterable[str]) -> set[str]:
    return set().union(*(corpus.named_in(sentence) for sentence in sentences))


def _asked_about(corpus: Corpus, query: Query, turns: list[Turn]) -> float:
    """Return the share of the query's entities that calls name.
    For an entity that the query does not name, any other entity counts."""
    entities, given = set(query.constraints["entities"]), corpus.named_in(query.query)
    asked = _names_in(corpus, (text for call, _ in calls_of(turns) for text in leaves_of(call.arguments)))
    hidden = len(entities - given)
    return (len(entities & given & asked) + min(hidden, len(asked - given))) / len(entities) if entities else 0.0


def _usefulness(corpus: Corpus, turns: list[Turn]) -> float:
    """Return the mean over calls: 1 if a call names an entity, 0.3 if not, 0 if it repeats a call."""
    return mean_of(
        is_new * (1.0 if _names_in(corpus, leaves_of(call.arguments)) else 0.3) for call, is_new in calls_of(turns)
    )


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))
