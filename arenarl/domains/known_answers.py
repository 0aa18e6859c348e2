"""Compare an answer with the query's known answer, by exact match (C.1 and C.2, InfoAgent).

A query's `constraints` hold the known `answer`, `answer_aliases`, the `comparison` ("exact_match": by SQuAD's form),
and `entities`, the names that lead to the answer. Entities are matched by their exact names, the first method of
InfoAgent's Appendix E; the paper uses the third, a reranker.
"""

import re
import string
from typing import Any

from arenarl.domains.stated_facts import stands_in, without_escapes
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, composed, read_turns, text_key

_EDGES = " \n\t.,;:!?\"'()*_`。，、；：！？“”‘’「」『』《》（）【】…"

_IGNORANCE = re.compile(
    r"\b(?:not (?:found|known|available|clear)|unknown|(?:do|does|did) ?(?:not|n['’]t) (?:know|say|find)"
    r"|(?:can|could)(?:not|n['’]t| not) (?:be )?(?:find|found|say|tell)|no (?:answer|result|information|idea)s?)\b"
    r"|未找到|没有找到|找不到|不知道|未知|无法(?:确定|找到)",
    re.IGNORECASE,
)


def has_answer(query: Query) -> bool:
    """Return whether the query has a known answer; raise UserError if it is blank, or a number such as a year."""
    if "answer" not in query.constraints:
        return False
    answer, aliases = query.constraints["answer"], query.constraints.get("answer_aliases", [])
    are_texts = isinstance(aliases, list | tuple) and all(isinstance(known, str) for known in (answer, *aliases))
    if not are_texts or not answer.strip():
        problem = "constraints.answer must be a text that is not blank, answer_aliases a list of texts"
        raise UserError(f"query {query.query_id}: {problem}")
    return True


def is_correct(constraints: dict[str, Any], answer: str) -> bool:
    """Return whether an answer equals the known answer or an alias after normalisation.

    The default ignores case, spacing, a leading article, and punctuation or Markdown at both ends. If this leaves
    nothing of a text, articles count ("The The", "A"); if still nothing is left, punctuation counts too. An empty
    answer is never correct.

    >>> is_correct({"answer": "8,400", "answer_aliases": ["8400"]}, " 8400. "), is_correct({"answer": "1"}, "in 1")
    (True, False)
    """
    normalise = squad_form if constraints.get("comparison") == "exact_match" else plain_form

    def form(text: str) -> str:
        return normalise(text) or " ".join(_letters(text).split()) or text_key(text)

    known = {form(text) for text in (constraints["answer"], *constraints.get("answer_aliases", ()))}
    return form(answer) in known - {""}


def states_something(answer: str) -> bool:
    """Return False for an empty answer, and for an answer such as "not found".

    >>> [states_something(answer) for answer in ("1841", "not found", "I do not know.", "未找到", " ")]
    [True, False, False, False, False]
    """
    return bool(answer.strip()) and not _IGNORANCE.search(answer)


def plain_form(text: str) -> str:
    """Lower-case the text; compose accented letters; remove extra spaces, a leading article, and punctuation at both
    ends.

    >>> plain_form(" The  Blue\\nHarbour. "), plain_form("**Paris**"), plain_form("《西湖》。")
    ('blue harbour', 'paris', '西湖')
    """
    return re.sub(r"^(?:the|an?) ", "", text_key(text).strip(_EDGES))


def squad_form(text: str) -> str:
    """Lower-case the text; remove punctuation, articles and extra spaces, as SQuAD, Search-R1 and AgentGym-RL do;
    also compose accented letters.

    >>> squad_form("The  U.S.A., a\\ncountry")
    'usa country'
    """
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", _letters(text)).split())


def _letters(text: str) -> str:
    return "".join(letter for letter in composed(text).lower() if letter not in string.punctuation)


def entity_recall(query: Query, messages: list[dict[str, Any]]) -> float:
    """Return the share of the query's entities that tool results name; 0 without entities.

    A longer name counts for the shorter one within it: "East Kelmar" counts for "Kelmar". Accented letters count in
    either of Unicode's forms.
    """
    observations = (observation for turn in read_turns(messages) for observation in turn.observations)
    results = composed(without_escapes("\n".join(observations))).lower()
    names = query.constraints.get("entities", ())
    return sum(stands_in(composed(name).lower(), results) for name in names) / len(names) if names else 0.0
