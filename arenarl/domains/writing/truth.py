"""Truth of a text: shares of its query's constraints met, on length, sections, words, facts, tone and repetition.

The simulated judge adds noise to these scores; evaluation reports them as they are. Any author's text can be read:
headings are lines, sentences end at full stops or line ends, facts have the fixed forms of the lexicon, and marker
words reveal the tone.
"""

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from arenarl.domains.domain import Truth
from arenarl.domains.writing.lexicon import LEXICONS, count_of, length_of
from arenarl.trajectory import Query, last_answer, read_turns

TOLERANCE = 0.1  # relative deviation from the requested length that still scores 1; twice or half of it scores 0
_DEMANDS = ("topic", "length", "must", "avoid", "facts", "sections", "order", "tone", "unique")
_SENTENCE_ENDS = re.compile(r"[.!?。！？\n]+")
_AROUND_HEADINGS = " \t#*_:：.。-"


class _Constraints(BaseModel):
    topic: str
    tone: str
    length: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    sections: Annotated[list[str], Field(min_length=1)]
    facts: Annotated[list[str], Field(min_length=1)]
    must: list[str]
    avoid: list[str]


@dataclass(frozen=True)
class WritingTruth(Truth):
    """Shares in [0, 1], one per constraint. The lengths `written` and `asked` are words, or characters in Chinese."""

    topic: float
    length: float
    must: float
    avoid: float
    facts: float
    sections: float
    order: float
    tone: float
    unique: float
    written: int = 0
    asked: int = 1

    @property
    def constraints(self) -> dict[str, bool]:
        return {name: getattr(self, name) == 1 for name in _DEMANDS}

    def dimensions(self) -> dict[str, float]:
        shares = {"relevance": self.length * (self.topic + self.must + self.avoid) / 3, "content": self.facts}
        shares |= {"structure": self.sections * (1 + self.order) / 2, "style": self.tone * self.unique}
        return {f"answer_{name}": 10 * share for name, share in shares.items()}

    def figures(self) -> dict[str, float]:
        met = 100 * sum(self.constraints.values()) / len(self.constraints)
        return {"constraints_met": met, "length_of_asked": 100 * self.written / self.asked}

    def findings(self) -> dict[str, Any]:
        return {"constraints": self.constraints, "written": self.written, "asked": self.asked}

    def passes(self) -> dict[str, bool]:
        return {"constraints": all(self.constraints.values())}


def has_truth(query: Query) -> bool:
    """Return True if the constraints have all fields that `examine` reads, and the lexicon has language and tone."""
    try:
        constraints = _Constraints.model_validate(query.constraints, strict=True)
    except ValidationError:
        return False
    return query.language in LEXICONS and constraints.tone in LEXICONS[query.language].tones


def examine(query: Query, messages: list[dict[str, Any]]) -> WritingTruth:
    """Examine a trajectory's text; a trajectory without one scores 0."""
    text, constraints, language = last_answer(read_turns(messages)), query.constraints, query.language
    written, headings = length_of(text, language), _headings(text, constraints["sections"])
    facts = _facts(text, constraints["facts"], language)
    topic, *must = (count_of(word, text, language) > 0 for word in (constraints["topic"], *constraints["must"]))
    # an empty or unrelated text gets no points for avoiding words
    is_relevant = bool(topic or _share(must) or facts or headings)
    return WritingTruth(
        topic=float(topic),
        length=_length_share(written, constraints["length"]),
        must=_share(must),
        avoid=_share([count_of(word, text, language) == 0 for word in constraints["avoid"]]) * is_relevant,
        facts=facts,
        sections=len(set(headings)) / len(constraints["sections"]),
        order=_order(headings),
        tone=_tone(text, constraints["tone"], language),
        unique=_unique(text, constraints["sections"]),
        written=written,
        asked=constraints["length"],
    )


def find_unmet(query: Query, messages: list[dict[str, Any]]) -> list[str]:
    """Return a sentence for each constraint that the text does not meet, checked with the text and the query alone."""
    text, constraints, language = last_answer(read_turns(messages)), query.constraints, query.language
    truth, headings = examine(query, messages), _headings(text, constraints["sections"])
    missing = [section for number, section in enumerate(constraints["sections"]) if number not in headings]
    must = [word for word in constraints["must"] if not count_of(word, text, language)]
    facts = [fact for fact in constraints["facts"] if not count_of(fact, text, language)]
    avoid = [word for word in constraints["avoid"] if count_of(word, text, language)]
    used = f"uses words that it must avoid: {', '.join(avoid)}" if avoid else "is not about what is asked for"
    stated = f"lacks facts: {', '.join(facts)}" if facts else "states facts of these kinds that were not given"
    unit = "characters" if language == "zh" else "words"
    sentences = {
        "topic": f"The text does not name its topic, {constraints['topic']}.",
        "length": f"The text has {truth.written} {unit}, but {constraints['length']} are asked for.",
        "must": f"The text lacks words that it must use: {', '.join(must)}.",
        "avoid": f"The text {used}.",
        "facts": f"The text {stated}.",
        "sections": f"The text lacks sections: {', '.join(missing)}.",
        "order": f"The sections are to stand in this order: {', '.join(constraints['sections'])}.",
        "tone": f"The text is to be {constraints['tone']} throughout.",
        "unique": "The text repeats sentences.",
    }
    return [sentences[name] for name, is_met in truth.constraints.items() if not is_met]


def _length_share(written: int, asked: int) -> float:
    """Return 1 within the tolerance, 0 at twice or half of the requested length, linear in between."""
    if not written:
        return 0.0
    off = max(written / asked, asked / written) - 1
    return min(1.0, max(0.0, (1 - off) / (1 - TOLERANCE)))


def _headings(text: str, sections: list[str]) -> list[int]:
    """Return the section numbers of the text's headings, in the order of the text."""
    numbers = {section.lower(): number for number, section in enumerate(sections)}
    lines = [line.strip(_AROUND_HEADINGS).lower() for line in text.splitlines()]
    return [numbers[line] for line in lines if line in numbers]


def _order(headings: list[int]) -> float:
    """Return the share of adjacent headings in the query's order; 1 for a single heading, 0 for none."""
    if len(headings) < 2:
        return float(len(headings))
    return _share([first < second for first, second in pairwise(headings)])


def _facts(text: str, facts: list[str], language: str) -> float:
    """Return the number of given facts in the text / max(number of given facts, number of stated facts)."""
    patterns = [kind.pattern for kind in LEXICONS[language].facts]
    stated = {fact.lower() for pattern in patterns for fact in re.findall(pattern, text, re.IGNORECASE)}
    right = sum(fact.lower() in stated for fact in facts)
    return right / max(len(facts), len(stated))


def _tone(text: str, tone: str, language: str) -> float:
    """Return the share of marker words that belong to this tone; 0 without marker words."""
    marks = LEXICONS[language].marks
    counts = {name: sum(count_of(mark, text, language) for mark in marks[name]) for name in marks}
    return counts[tone] / sum(counts.values()) if any(counts.values()) else 0.0


def _unique(text: str, sections: list[str]) -> float:
    """Return the share of distinct sentences; 0 without sentences."""
    headings = {"", *(section.lower() for section in sections)}
    parts = (" ".join(part.lower().split()) for part in _SENTENCE_ENDS.split(text))
    sentences = [part for part in parts if part not in headings]
    return len(set(sentences)) / len(sentences) if sentences else 0.0


def _share(values: list[bool]) -> float:
    return sum(values) / len(values) if values else 1.0
