"""What a text fulfils of what its query asks: length, sections and their order, words, facts, tone, no repetition.

The embedded judge scores from this and adds noise; evaluation reports it as it is. It reads the text as it stands,
whoever wrote it: headings are lines, sentences end at full stops or lines, facts have the closed forms of the lexicon,
and a tone is told by its words.
"""

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from arenarl.domains.domain import Truth
from arenarl.domains.writing.lexicon import LEXICONS, count_of, length_of
from arenarl.trajectory import Query, last_answer, read_turns

TOLERANCE = 0.1  # of the length that is asked: within it all is well, at twice or half of it nothing
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
    """Shares in [0, 1], one for each demand; `written` and `asked` are the length in words or characters."""

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
        relevance = self.length * (self.topic + self.must + self.avoid) / 3
        structure = self.sections * (1 + self.order) / 2
        shares = {
            "relevance": relevance,
            "content": self.facts,
            "structure": structure,
            "style": self.tone * self.unique,
        }
        return {f"answer_{name}": 10 * share for name, share in shares.items()}

    def figures(self) -> dict[str, float]:
        met = 100 * sum(self.constraints.values()) / len(self.constraints)
        return {"constraints_met": met, "length_of_asked": 100 * self.written / self.asked}

    def findings(self) -> dict[str, Any]:
        return {"constraints": self.constraints, "written": self.written, "asked": self.asked}

    def passes(self) -> dict[str, bool]:
        return {"constraints": all(self.constraints.values())}


def has_truth(query: Query) -> bool:
    """Whether the constraints say all that `examine` goes by, in a language that it can read."""
    try:
        wanted = _Constraints.model_validate(query.constraints, strict=True)
    except ValidationError:
        return False
    return query.language in LEXICONS and wanted.tone in LEXICONS[query.language].tones


def examine(query: Query, messages: list[dict[str, Any]]) -> WritingTruth:
    """Examine one trajectory, whether it ended with a text or not."""
    text, wanted, language = last_answer(read_turns(messages)), query.constraints, query.language
    written, delivered = length_of(text, language), _headings(text, wanted["sections"])
    facts = _facts(text, wanted["facts"], language)
    topic, *must = (count_of(word, text, language) > 0 for word in (wanted["topic"], *wanted["must"]))
    # to write of something else, or nothing, keeps no promise by leaving words out
    is_about_it = bool(topic or _share(must) or facts or delivered)
    return WritingTruth(
        topic=float(topic),
        length=_length_share(written, wanted["length"]),
        must=_share(must),
        avoid=_share([count_of(word, text, language) == 0 for word in wanted["avoid"]]) * is_about_it,
        facts=facts,
        sections=len(set(delivered)) / len(wanted["sections"]),
        order=_order(delivered),
        tone=_tone(text, wanted["tone"], language),
        unique=_unique(text, wanted["sections"]),
        written=written,
        asked=wanted["length"],
    )


def unmet(query: Query, messages: list[dict[str, Any]]) -> list[str]:
    """A sentence for each demand that the text does not meet.
    All of them can be read off it, by whoever has the query."""
    text, wanted, language = last_answer(read_turns(messages)), query.constraints, query.language
    truth, delivered = examine(query, messages), _headings(text, wanted["sections"])
    missing = [section for number, section in enumerate(wanted["sections"]) if number not in delivered]
    must, facts = ([word for word in wanted[key] if not count_of(word, text, language)] for key in ("must", "facts"))
    avoid = [word for word in wanted["avoid"] if count_of(word, text, language)]
    used = f"uses words that it must avoid: {', '.join(avoid)}" if avoid else "is not about what is asked for"
    stated = f"lacks facts: {', '.join(facts)}" if facts else "states facts of these kinds that were not given"
    unit = "characters" if language == "zh" else "words"
    sentences = {
        "topic": f"The text does not name its topic, {wanted['topic']}.",
        "length": f"The text has {truth.written} {unit}, but {wanted['length']} are asked for.",
        "must": f"The text lacks words that it must use: {', '.join(must)}.",
        "avoid": f"The text {used}.",
        "facts": f"The text {stated}.",
        "sections": f"The text lacks sections: {', '.join(missing)}.",
        "order": f"The sections are to stand in this order: {', '.join(wanted['sections'])}.",
        "tone": f"The text is to be {wanted['tone']} throughout.",
        "unique": "The text repeats sentences.",
    }
    return [sentences[name] for name, is_met in truth.constraints.items() if not is_met]


def _length_share(written: int, asked: int) -> float:
    """1 within the tolerance, 0 at twice or half of what is asked, straight in between."""
    if not written:
        return 0.0
    off = max(written / asked, asked / written) - 1
    return min(1.0, max(0.0, (1 - off) / (1 - TOLERANCE)))


def _headings(text: str, sections: list[str]) -> list[int]:
    """Which of the sections each heading of the text is, in the text's order."""
    numbers = {section.lower(): number for number, section in enumerate(sections)}
    lines = [line.strip(_AROUND_HEADINGS).lower() for line in text.splitlines()]
    return [numbers[line] for line in lines if line in numbers]


def _order(headings: list[int]) -> float:
    """Share of the neighbouring headings that stand in the order of the query;
    of a single heading there is no order to be wrong."""
    if len(headings) < 2:
        return float(len(headings))
    return _share([first < second for first, second in pairwise(headings)])


def _facts(text: str, facts: list[str], language: str) -> float:
    """Share of the facts that are stated, less than that if others are stated too:
    an invented one costs what a missing one does."""
    patterns = [kind.pattern for kind in LEXICONS[language].facts]
    stated = {fact.lower() for pattern in patterns for fact in re.findall(pattern, text, re.IGNORECASE)}
    right = sum(fact.lower() in stated for fact in facts)
    return right / max(len(facts), len(stated))


def _tone(text: str, tone: str, language: str) -> float:
    """Of the words that mark a tone, the share that mark this one; 0 without any."""
    marks = LEXICONS[language].marks
    counts = {name: sum(count_of(mark, text, language) for mark in marks[name]) for name in marks}
    return counts[tone] / sum(counts.values()) if any(counts.values()) else 0.0


def _unique(text: str, sections: list[str]) -> float:
    """Share of the sentences that were not said before."""
    headings = {"", *(section.lower() for section in sections)}
    parts = (" ".join(part.lower().split()) for part in _SENTENCE_ENDS.split(text))
    sentences = [part for part in parts if part not in headings]
    return len(set(sentences)) / len(sentences) if sentences else 0.0


def _share(values: list[bool]) -> float:
    return sum(values) / len(values) if values else 1.0
