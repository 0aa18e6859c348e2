"""Text search: BM25 without JAX, and how text becomes search terms (English singulars, Chinese pairs).

Where JAX is installed, bm25s starts it as it is imported, to pick a query's best texts by it; we pick them ourselves,
and JAX, once started, takes three quarters of a GPU's memory, which is the policy's.
"""

import sys

_jax = sys.modules.get("jax")
sys.modules["jax"] = None  # whoever imports it now is told that it is not there
try:
    from bm25s import BM25
    from bm25s.stopwords import STOPWORDS_EN
finally:
    if _jax is None:
        del sys.modules["jax"]
    else:
        sys.modules["jax"] = _jax

__all__ = ["BM25", "STOPWORDS_EN", "pairs", "singular"]


def singular(word: str) -> str:
    """An English word without its plural, roughly; the same for queries and documents, so that they meet.

    >>> singular("cities"), singular("temples"), singular("bus")
    ('city', 'temple', 'bus')
    """
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") and len(word) > 3 else word


def pairs(word: str) -> list[str]:
    """Neighbouring characters: Chinese is written without blanks between words.

    >>> pairs("安静的")
    ['安静', '静的']
    """
    return [word[index : index + 2] for index in range(len(word) - 1)]
