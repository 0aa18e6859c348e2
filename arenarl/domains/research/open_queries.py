"""Open-ended research queries in the three categories of 5.1, ArenaRL, with the facts that a good report covers.

Report: a document on an entity and on others that it has to do with. Ideation: an outline that compares two of a kind.
Overview: a short explanation of one. The text names what to cover, so that coverage can be checked.
"""

import random
from typing import Any

from arenarl.domains.domain import mean_of
from arenarl.domains.research.corpus import LINK, Corpus
from arenarl.domains.research.facts import Entity
from arenarl.trajectory import Query

_FIELDS = ("url", "attribute", "value", "sentence")  # of a fact in a query's constraints
Drawn = tuple[str, list[dict[str, Any]], list[Entity]]  # text, parts, the entity of each


def make_open_queries(corpus: Corpus, seed: str, count: int, taken: set[str] | None = None) -> list[Query]:
    """`count` queries, spread evenly over the subtasks, with texts not in `taken`, which grows by them.

    `constraints`: `parts`, what the text asks for: of each entity its `name`, or the relation `via` which the first one
    leads to it, and `attributes`; `entities`, all their names; `facts` (`url`, `attribute`, `value`, `sentence`) that a
    good report covers.
    """
    rng, taken = random.Random(f"open-queries:{seed}"), set() if taken is None else taken
    queries: list[Query] = []
    while len(queries) < count:
        subtask = OPEN_SUBTASKS[len(queries) % len(OPEN_SUBTASKS)]
        entity = corpus.entities[rng.choice(corpus.pages).url]
        text, parts, subjects = _DRAWS[subtask](corpus, entity, rng) or (None, [], [])
        if text and text not in taken:
            taken.add(text)
            pairs = zip(parts, subjects, strict=True)
            wanted = [one.single[attribute] for part, one in pairs for attribute in part["attributes"]]
            wanted += [subjects[0].single[part["via"]] for part in parts if "via" in part]
            facts = [{name: getattr(fact, name) for name in _FIELDS} for fact in dict.fromkeys(wanted)]
            constraints = {"entities": [one.name for one in subjects], "facts": facts, "parts": parts}
            queries.append(Query(f"{seed}-{subtask}-{len(queries):05d}", "research", subtask, "en", text, constraints))
    return queries


def _draw_report(corpus: Corpus, entity: Entity, rng: random.Random) -> Drawn | None:
    relations = [fact for fact in entity.single.values() if fact.target and fact.attribute != LINK]
    own = _aspects(entity, rng, 2, besides=[fact.attribute for fact in relations])
    rng.shuffle(relations)
    others = [corpus.entities[fact.target] for fact in relations]
    drawn = [(fact, other, _aspects(other, rng, 2)) for fact, other in zip(relations, others, strict=True)]
    linked = [one for one in drawn if one[2]][: rng.choice((1, 2))]
    if not own or not linked:
        return None
    parts = [{"via": fact.attribute, "attributes": aspects} for fact, _, aspects in linked]
    also = " and ".join(f"its {part['via']} ({', '.join(part['attributes'])})" for part in parts)
    text = f"Write a report on {entity.name} ({', '.join(own)}) and on {also}."
    return text, [{"name": entity.name, "attributes": own}, *parts], [entity, *(other for _, other, _ in linked)]


def _draw_ideation(corpus: Corpus, entity: Entity, rng: random.Random) -> Drawn | None:
    other = corpus.entities[rng.choice(corpus.pages).url]
    shared = [attribute for attribute in entity.single if attribute in other.single and attribute not in ("type", LINK)]
    if other.noun != entity.noun or other is entity or len(shared) < 2:
        return None
    aspects = rng.sample(shared, min(len(shared), rng.choice((2, 3))))
    parts = [{"name": one.name, "attributes": aspects} for one in (entity, other)]
    text = f"Outline an article that compares {entity.name} and {other.name}: {', '.join(aspects)}."
    return text, parts, [entity, other]


def _draw_overview(corpus: Corpus, entity: Entity, rng: random.Random) -> Drawn | None:
    aspects = _aspects(entity, rng, rng.choice((3, 4)))
    if len(aspects) < 3:
        return None
    who = "who" if entity.kind == "person" else "what"
    text = f"Explain briefly {who} {entity.name} is: {', '.join(aspects)}."
    return text, [{"name": entity.name, "attributes": aspects}], [entity]


_DRAWS = {"Report": _draw_report, "Ideation": _draw_ideation, "Overview": _draw_overview}
OPEN_SUBTASKS = tuple(_DRAWS)


def _aspects(entity: Entity, rng: random.Random, most: int, besides: list[str] = ()) -> list[str]:
    attributes = [attribute for attribute in entity.single if attribute not in ("type", LINK, *besides)]
    return rng.sample(attributes, min(most, len(attributes)))


def stated(corpus: Corpus, constraints: dict[str, Any], answer: str) -> list[bool]:
    """Whether an answer states each fact of the query: the entity's name and the value in one sentence or line."""
    sentences = corpus.sentences(answer)
    claims = [(corpus.entities[fact["url"]].name, fact["value"]) for fact in constraints["facts"]]
    return [any(corpus.says(sentence, name, value) for sentence in sentences) for name, value in claims]


def covered(corpus: Corpus, constraints: dict[str, Any], answer: str) -> float:
    """The share of the query's facts that an answer states."""
    return mean_of(stated(corpus, constraints, answer))
