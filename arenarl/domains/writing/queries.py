"""Writing tasks with checkable constraints: the constraints are drawn first, then worded in English or Chinese.

`constraints` hold exactly what the text asks for: topic, tone, length, sections in order, one fact per section, words
to use and words to avoid. One text can always meet all of them: the length leaves room for the facts, the words and at
least one sentence in the tone.
"""

import random
from typing import Any

from arenarl.domains.domain import draw_new
from arenarl.domains.writing.lexicon import LEXICONS, length_of
from arenarl.trajectory import Query

SUBTASKS = ("Notice", "Letter", "Report", "Speech")
_SHAPES = {  # subtask → numbers of sections, sentences per section, words to use, words to avoid
    "Notice": ((2, 3), (2,), 1, 1),
    "Letter": ((2,), (2, 3), 1, 2),
    "Report": ((3,), (2, 3), 2, 1),
    "Speech": ((2, 3), (3, 4), 2, 2),
}


def make_queries(subtask: str, language: str, count: int, seed: str, taken: set[str]) -> list[Query]:
    """Return `count` queries of a subtask with new texts, and add the texts to `taken`."""
    rng = random.Random(f"{seed}:{subtask}:{language}")

    def draw_query(number: int) -> Query:
        constraints = _draw(language, subtask, rng)
        text = _text(language, LEXICONS[language].kinds[subtask], constraints)
        return Query(f"{seed}-{subtask}-{number:05d}", "writing", subtask, language, text, constraints)

    return draw_new(draw_query, count, taken)


def sentences_each(query: Query) -> int:
    """Return how many sentences per section give the requested length."""
    sections, language = query.constraints["sections"], query.language
    length = query.constraints["length"] - _headings_length(sections, language)
    return round(length / (LEXICONS[language].unit * len(sections)))


def _headings_length(sections: list[str], language: str) -> int:
    """Return the length of the title and the headings."""
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


def _text(language: str, kind: str, constraints: dict[str, Any]) -> str:
    sections, facts, must, avoid = (
        LEXICONS[language].comma.join(constraints[key]) for key in ("sections", "facts", "must", "avoid")
    )
    if language == "zh":
        return (
            f"请写一篇语气{constraints['tone']}的{kind}，主题是{constraints['topic']}，约{constraints['length']}字。"
            f"分节：{sections}。事实：{facts}。用到：{must}。不用：{avoid}。不要重复。"
        )
    topic = constraints["topic"][0].lower() + constraints["topic"][1:]
    return (
        f"Write a {constraints['tone']} {kind} on {topic}, about {constraints['length']} words. "
        f"Sections: {sections}. Facts: {facts}. Use: {must}. Avoid: {avoid}. Repeat nothing."
    )
