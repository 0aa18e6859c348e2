"""Text search: BM25 without JAX, and the helpers that turn text into search terms.

bm25s starts JAX on import if JAX is installed, only to select the best documents; this module selects them itself. A
started JAX reserves three quarters of the GPU memory, which the policy needs.
"""

import sys

_jax = sys.modules.get("jax")
sys.modules["jax"] = None  # makes `import jax` raise ImportError
try:
    from bm25s import BM25
    from bm25s.stopwords import STOPWORDS_EN
finally:
    if _jax is None:
        del sys.modules["jax"]
    else:
        sys.modules["jax"] = _jax

__all__ = ["BM25", "STOPWORDS_EN", "pairs", "search_form", "singular"]


def search_form(text: str) -> str:
    """Return a text in lower case without apostrophes.

    >>> search_form("Xi’an")
    'xian'
    """
    return text.lower().replace("'", "").replace("’", "")


def singular(word: str) -> str:
    """Return an English word without its plural ending, roughly. Queries and documents both pass through it.

    >>> singular("cities"), singular("temples"), singular("bus")
    ('city', 'temple', 'bus')
    """
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") and len(word) > 3 else word


def pairs(word: str) -> list[str]:
    """Return all pairs of neighbouring characters, the search terms of Chinese text, which has no spaces.

    >>> pairs("安静的")
    ['安静', '静的']
    """
    return [word[index : index + 2] for index in range(len(word) - 1)]
