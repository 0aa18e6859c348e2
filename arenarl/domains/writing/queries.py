"""Writing tasks whose fulfilment can be checked: constraints are drawn first, then said in English or Chinese.

`constraints` hold exactly what the text says: topic, tone, length, sections in their order, a fact for each, words that
must or must not appear. They are drawn so that one text can meet all of them: there is room for the facts, the words,
and at least one sentence in the tone.
"""

import random
from typing import Any

from arenarl.domains.writing.lexicon import LEXICONS, length_of
from arenarl.trajectory import Query

SUBTASKS = ("Notice", "Letter", "Report", "Speech")
_SHAPES = {  # subtask -> numbers of sections, sentences of each, words asked for, words forbidden
    "Notice": ((2, 3), (2,), 1, 1),
    "Letter": ((2,), (2, 3), 1, 2),
    "Report": ((3,), (2, 3), 2, 1),
    "Speech": ((2, 3), (3, 4), 2, 2),
}


def make_queries(subtask: str, language: str, count: int, seed: str, taken: set[str]) -> list[Query]:
    """`count` queries of a subtask with texts that are not in `taken`, which grows by them."""
    rng = random.Random(f"{seed}:{subtask}:{language}")
    queries: list[Query] = []
    while len(queries) < count:
        wanted = _draw(language, subtask, rng)
        text = _say(language, LEXICONS[language].kinds[subtask], wanted)
        if text not in taken:
            taken.add(text)
            queries.append(Query(f"{seed}-{subtask}-{len(queries):05d}", "writing", subtask, language, text, wanted))
    return queries


def sentences_each(query: Query) -> int:
    """How many sentences each section takes for the length that is asked."""
    sections, language = query.constraints["sections"], query.language
    length = query.constraints["length"] - _headings_length(sections, language)
    return round(length / (LEXICONS[language].unit * len(sections)))


def _headings_length(sections: list[str], language: str) -> int:
    """Of the title too."""
    return LEXICONS[language].title_length + sum(length_of(section, language) for section in sections)


def _draw(language: str, subtask: str, rng: random.Random) -> dict[str, Any]:
    lexicon = LEXICONS[language]
    sections, each, must, avoid = _SHAPES[subtask]
    facts, sentences = rng.sample(lexicon.facts, rng.choice(sections)), rng.choice(each)
    words = rng.sample(lexicon.words, must + avoid)
    length = len(facts) * sentences * lexicon.unit + _headings_length([fact.section for fact in facts], language)
    return {
        "topic": lexicon.title.format(rng.choice(lexicon.subjects), rng.choice(lexicon.occasions)),
        "tone": rng.choice(list(lexicon.tones)),
        "length": round(length / lexicon.round_to) * lexicon.round_to,
        "sections": [fact.section for fact in facts],
        "facts": [fact.form.format(rng.choice(fact.numbers[1:])) for fact in facts],
        "must": words[:must],
        "avoid": words[must:],
    }


def _say(language: str, kind: str, wanted: dict[str, Any]) -> str:
    sections, facts, must, avoid = (
        LEXICONS[language].comma.join(wanted[key]) for key in ("sections", "facts", "must", "avoid")
    )
    if language == "zh":
        return (
            f"请写一篇语气{wanted['tone']}的{kind}，主题是{wanted['topic']}，约{wanted['length']}字。"
            f"分节：{sections}。事实：{facts}。用到：{must}。不用：{avoid}。不要重复。"
        )
    topic = wanted["topic"][0].lower() + wanted["topic"][1:]
    return (
        f"Write a {wanted['tone']} {kind} on {topic}, about {wanted['length']} words. "
        f"Sections: {sections}. Facts: {facts}. Use: {must}. Avoid: {avoid}. Repeat nothing."
    )
