"""Open-ended research queries in the three categories of 5.1, ArenaRL, with the facts that a good report covers.

Report: a document on an entity and on others that it has to do with. Ideation: an outline that compares two of a kind.
Overview: a short explanation of one. The text names what to cover, so that coverage can be checked; which of it matters
is left to the writer.
"""

import random
from typing import Any

from arenarl.domains.research.corpus import LINK, Corpus
from arenarl.domains.research.entities import Entity, Fact
from arenarl.trajectory import Query

OPEN_SUBTASKS = ("Report", "Ideation", "Overview")


def make_open_queries(
    corpus: Corpus, seed: str, count: int, taken: set[str] | None = None, subtasks: tuple[str, ...] = OPEN_SUBTASKS
) -> list[Query]:
    """`count` queries, spread evenly over the subtasks, with texts not in `taken`, which grows by them.

    `constraints`: `parts`, what the text asks for: of each entity its `name`, or the relation `via` which the first one
    leads to it, and `attributes`; `entities`, all their names; `facts` (`url`, `attribute`, `value`, `sentence`) that a
    good report covers.
    """
    rng = random.Random(f"open-queries:{seed}")
    taken = set() if taken is None else taken
    queries: list[Query] = []
    while len(queries) < count:
        subtask = subtasks[len(queries) % len(subtasks)]
        entity = corpus.entities[rng.choice(corpus.pages).url]
        drawn = _DRAWS[subtask](corpus, entity, rng)
        if drawn and drawn[0] not in taken:
            text, parts, subjects = drawn
            taken.add(text)
            constraints = {"entities": [one.name for one in subjects], "facts": _facts(parts, subjects), "parts": parts}
            queries.append(Query(f"{seed}-{subtask}-{len(queries):05d}", "research", subtask, "en", text, constraints))
    return queries


Drawn = tuple[str, list[dict[str, Any]], list[Entity]]  # text, parts, the entity of each


def _draw_report(corpus: Corpus, entity: Entity, rng: random.Random) -> Drawn | None:
    relations = [fact for fact in entity.single.values() if fact.target and fact.attribute != LINK]
    own = _aspects(entity, rng, 2, besides=[fact.attribute for fact in relations])
    rng.shuffle(relations)
    linked = [(fact, corpus.entities[fact.target]) for fact in relations]
    linked = [(fact, other, aspects) for fact, other in linked if (aspects := _aspects(other, rng, 2, besides=[]))][
        : rng.choice((1, 2))
    ]
    if not own or not linked:
        return None
    parts = [{"name": entity.name, "attributes": own}] + [
        {"via": fact.attribute, "attributes": aspects} for fact, _, aspects in linked
    ]
    also = " and ".join(f"its {fact.attribute} ({', '.join(aspects)})" for fact, _, aspects in linked)
    return (
        f"Write a report on {entity.name} ({', '.join(own)}) and on {also}.",
        parts,
        [entity, *(other for _, other, _ in linked)],
    )


def _draw_ideation(corpus: Corpus, entity: Entity, rng: random.Random) -> Drawn | None:
    other = corpus.entities[rng.choice(corpus.pages).url]
    shared = [attribute for attribute in entity.single if attribute in other.single and attribute not in ("type", LINK)]
    if other.noun != entity.noun or other is entity or len(shared) < 2:
        return None
    aspects = rng.sample(shared, min(len(shared), rng.choice((2, 3))))
    parts = [{"name": one.name, "attributes": aspects} for one in (entity, other)]
    return (
        f"Outline an article that compares {entity.name} and {other.name}: {', '.join(aspects)}.",
        parts,
        [entity, other],
    )


def _draw_overview(corpus: Corpus, entity: Entity, rng: random.Random) -> Drawn | None:
    aspects = _aspects(entity, rng, rng.choice((3, 4)), besides=[])
    if len(aspects) < 3:
        return None
    parts = [{"name": entity.name, "attributes": aspects}]
    return (
        f"Explain briefly {'who' if entity.kind == 'person' else 'what'} {entity.name} is: {', '.join(aspects)}.",
        parts,
        [entity],
    )


_DRAWS = {"Report": _draw_report, "Ideation": _draw_ideation, "Overview": _draw_overview}


def _aspects(entity: Entity, rng: random.Random, most: int, besides: list[str]) -> list[str]:
    attributes = [attribute for attribute in entity.single if attribute not in ("type", LINK, *besides)]
    return rng.sample(attributes, min(most, len(attributes)))


def _facts(parts: list[dict[str, Any]], subjects: list[Entity]) -> list[dict[str, str]]:
    wanted = [
        entity.single[attribute]
        for part, entity in zip(parts, subjects, strict=True)
        for attribute in part["attributes"]
    ]
    links = [subjects[0].single[part["via"]] for part in parts if "via" in part]
    return [_record(fact) for fact in dict.fromkeys([*wanted, *links])]


def _record(fact: Fact) -> dict[str, str]:
    return {"url": fact.url, "attribute": fact.attribute, "value": fact.value, "sentence": fact.sentence}


def stated(corpus: Corpus, constraints: dict[str, Any], answer: str) -> list[bool]:
    """Of each of the query's facts, whether an answer states it:
    the entity's name and the value in one sentence or line."""
    sentences = corpus.sentences(answer)
    claims = [(corpus.entities[fact["url"]].name, fact["value"]) for fact in constraints["facts"]]
    return [any(corpus.says(sentence, name, value) for sentence in sentences) for name, value in claims]


def covered(corpus: Corpus, constraints: dict[str, Any], answer: str) -> float:
    """The share of the query's facts that an answer states."""
    found = stated(corpus, constraints, answer)
    return sum(found) / len(found)
