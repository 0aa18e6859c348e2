"""bm25s without JAX. Where JAX is installed, bm25s starts it as it is imported, to pick a query's best texts by it; we
pick them ourselves, and JAX, once started, takes three quarters of a GPU's memory, which is the policy's.
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

__all__ = ["BM25", "STOPWORDS_EN"]
