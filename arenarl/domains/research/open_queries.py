"""Open-ended research queries in the three categories of 5.1, ArenaRL, with the facts that a good report covers.

Report: a document on an entity and on related entities. Ideation: an outline that compares two entities of one kind.
Overview: a short explanation of one entity. The query names the attributes to cover, so coverage can be checked.
"""

import random
from typing import Any

from arenarl.domains.domain import draw_new, mean_of
from arenarl.domains.research.corpus import LARGER, LINK, Corpus
from arenarl.domains.research.facts import Entity
from arenarl.trajectory import Query

_FIELDS = ("url", "attribute", "value", "sentence")  # fields of a fact in a query's constraints
Draft = tuple[str, list[dict[str, Any]], list[Entity]]  # text, parts, the entity of each part


def make_open_queries(corpus: Corpus, seed: str, count: int, taken: set[str] | None = None) -> list[Query]:
    """Return `count` queries with new texts, spread evenly over the subtasks; add the texts to `taken`.
    `constraints`: `parts`, the parts that the text asks for: an entity (its `name`, or the relation `via` that leads to
    it from the first entity) and its `attributes`; `entities`, all their names; `facts` (`url`, `attribute`, `value`,
    `sentence`) that a good report covers."""
    rng = random.Random(f"open-queries:{seed}")

    def draw_query(number: int) -> Query | None:
        subtask = OPEN_SUBTASKS[number % len(OPEN_SUBTASKS)]
        entity = corpus.entities[rng.choice(corpus.pages).url]
        if (draft := _DRAFTERS[subtask](corpus, entity, rng)) is None:
            return None
        text, parts, subjects = draft
        pairs = zip(parts, subjects, strict=True)
        subject_facts = [subject.single[attribute] for part, subject in pairs for attribute in part["attributes"]]
        subject_facts += [subjects[0].single[part["via"]] for part in parts if "via" in part]
        facts = [{name: getattr(fact, name) for name in _FIELDS} for fact in dict.fromkeys(subject_facts)]
        constraints = {"entities": [subject.name for subject in subjects], "facts": facts, "parts": parts}
        return Query(f"{seed}-{subtask}-{number:05d}", "research", subtask, "en", text, constraints)

    remedy = f"the corpus is too small; {LARGER}, or lower data.research.open_share"
    return draw_new(draw_query, count, set() if taken is None else taken, remedy)


def _draft_report(corpus: Corpus, entity: Entity, rng: random.Random) -> Draft | None:
    relations = [fact for fact in entity.single.values() if fact.target and fact.attribute != LINK]
    own = _draw_attributes(entity, rng, 2, exclude=[fact.attribute for fact in relations])
    rng.shuffle(relations)
    others = [corpus.entities[fact.target] for fact in relations]
    triples = [(fact, other, _draw_attributes(other, rng, 2)) for fact, other in zip(relations, others, strict=True)]
    linked = [triple for triple in triples if triple[2]][: rng.choice((1, 2))]
    if not own or not linked:
        return None
    parts = [{"via": fact.attribute, "attributes": attributes} for fact, _, attributes in linked]
    also = " and ".join(f"its {part['via']} ({', '.join(part['attributes'])})" for part in parts)
    text = f"Write a report on {entity.name} ({', '.join(own)}) and on {also}."
    return text, [{"name": entity.name, "attributes": own}, *parts], [entity, *(other for _, other, _ in linked)]


def _draft_ideation(corpus: Corpus, entity: Entity, rng: random.Random) -> Draft | None:
    other = corpus.entities[rng.choice(corpus.pages).url]
    shared = [attribute for attribute in entity.single if attribute in other.single and attribute not in ("type", LINK)]
    if other.noun != entity.noun or other is entity or len(shared) < 2:
        return None
    attributes = rng.sample(shared, min(len(shared), rng.choice((2, 3))))
    parts = [{"name": subject.name, "attributes": attributes} for subject in (entity, other)]
    text = f"Outline an article that compares {entity.name} and {other.name}: {', '.join(attributes)}."
    return text, parts, [entity, other]


def _draft_overview(corpus: Corpus, entity: Entity, rng: random.Random) -> Draft | None:
    attributes = _draw_attributes(entity, rng, rng.choice((3, 4)))
    if len(attributes) < 3:
        return None
    who = "who" if entity.kind == "person" else "what"
    text = f"Explain briefly {who} {entity.name} is: {', '.join(attributes)}."
    return text, [{"name": entity.name, "attributes": attributes}], [entity]


_DRAFTERS = {"Report": _draft_report, "Ideation": _draft_ideation, "Overview": _draft_overview}
OPEN_SUBTASKS = tuple(_DRAFTERS)


def _draw_attributes(entity: Entity, rng: random.Random, most: int, exclude: list[str] = ()) -> list[str]:
    attributes = [attribute for attribute in entity.single if attribute not in ("type", LINK, *exclude)]
    return rng.sample(attributes, min(most, len(attributes)))


def find_stated_facts(corpus: Corpus, constraints: dict[str, Any], answer: str) -> list[bool]:
    """Return a flag per fact of the query: True if a sentence or line of the answer has its entity's name and value."""
    sentences = corpus.sentences(answer)
    claims = [(corpus.entities[fact["url"]].name, fact["value"]) for fact in constraints["facts"]]
    return [any(corpus.says(sentence, name, value) for sentence in sentences) for name, value in claims]


def fact_coverage(corpus: Corpus, constraints: dict[str, Any], answer: str) -> float:
    """Return the share of the query's facts that an answer states."""
    return mean_of(find_stated_facts(corpus, constraints, answer))
