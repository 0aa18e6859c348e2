"""Whether a query with a known answer was answered, by exact comparison (C.1 and C.2, InfoAgent).

The known answer stands in a query's `constraints`: `answer`, `answer_aliases`, `comparison` ("exact_match": as
benchmarks of questions compare), and `entities`, the names that lead to it. Entities count as found by exact match of
their names (Appendix E, its first method; the paper takes its third, a reranker).
"""

import re
import string
from typing import Any

from arenarl.domains.stated_facts import stands_in
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, read_turns

_EDGES = " \n\t.,;:!?\"'()*_`。，、；：！？“”‘’「」『』《》（）【】…"

_IGNORANCE = re.compile(
    r"\b(?:not (?:found|known|available|clear)|unknown|(?:do|does|did) ?(?:not|n['’]t) (?:know|say|find)"
    r"|(?:can|could)(?:not|n['’]t| not) (?:be )?(?:find|found|say|tell)|no (?:answer|result|information|idea)s?)\b"
    r"|未找到|没有找到|找不到|不知道|未知|无法(?:确定|找到)",
    re.IGNORECASE,
)


def has_answer(query: Query) -> bool:
    """Raises UserError if what is known is no text: a year as a number could be compared with nothing."""
    if "answer" not in query.constraints:
        return False
    answer, aliases = query.constraints["answer"], query.constraints.get("answer_aliases", [])
    if not isinstance(aliases, list | tuple) or not all(isinstance(known, str) for known in (answer, *aliases)):
        what = "constraints.answer must be a text, and answer_aliases a list of texts"
        raise UserError(f"query {query.query_id}: {what}")
    return True


def is_correct(constraints: dict[str, Any], answer: str) -> bool:
    """Whether an answer is the known one, or an alias, but for capitals, blanks,
    an article and the punctuation or Markdown at its edges.

    >>> is_correct({"answer": "8,400", "answer_aliases": ["8400"]}, " 8400. "), is_correct({"answer": "1"}, "in 1")
    (True, False)
    """
    form = squad_form if constraints.get("comparison") == "exact_match" else plain_form
    return form(answer) in {form(known) for known in (constraints["answer"], *constraints.get("answer_aliases", ()))}


def states_something(answer: str) -> bool:
    """Return False for an empty answer and for one that says that nothing was found.

    >>> [states_something(answer) for answer in ("1841", "not found", "I do not know.", "未找到", " ")]
    [True, False, False, False, False]
    """
    return bool(answer.strip()) and not _IGNORANCE.search(answer)


def plain_form(text: str) -> str:
    """
    >>> plain_form(" The  Blue\\nHarbour. "), plain_form("**Paris**"), plain_form("《西湖》。")
    ('blue harbour', 'paris', '西湖')
    """
    return re.sub(r"^(?:the|an?) ", "", " ".join(text.lower().split()).strip(_EDGES))


def squad_form(text: str) -> str:
    """As SQuAD, Search-R1 and AgentGym-RL's SearchQA compare:
    small letters, without punctuation, articles and further blanks.

    >>> squad_form("The  U.S.A., a\\ncountry")
    'usa country'
    """
    letters = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())


def entity_recall(query: Query, messages: list[dict[str, Any]]) -> float:
    """Share of the query's entities that tool results name; 0 without any. East Kelmar names Kelmar too: the names of
    others are not known here."""
    shown = "\n".join(observation for turn in read_turns(messages) for observation in turn.observations).lower()
    names = query.constraints.get("entities", ())
    return sum(stands_in(name.lower(), shown) for name in names) / len(names) if names else 0.0
