"""Chunks chosen by meaning: an embedding model, then a reranker, of any kind that sentence-transformers can load (3.2, InfoAgent).

They run in a thread of their own, one call after another, so that nothing waits for them but who asked.
"""

from typing import Any

import numpy as np

from arenarl.system.errors import UserError

PACKAGE = "sentence-transformers==6.2.0"


class Embedder:
    """`embedder.best(query, texts, count)` → the texts nearest to the query, nearest first."""

    def __init__(self, model: str, device: str):
        self._model = _load("SentenceTransformer", model, device, "embedder")

    def best(self, query: str, texts: list[str], count: int) -> list[str]:
        wanted = self._model.encode_query([query], normalize_embeddings=True, show_progress_bar=False)
        known = self._model.encode_document(texts, normalize_embeddings=True, show_progress_bar=False)
        return _best(np.asarray(known) @ np.asarray(wanted)[0], texts, count)


class Reranker:
    """The same by a cross-encoder, which reads query and text together."""

    def __init__(self, model: str, device: str):
        self._model = _load("CrossEncoder", model, device, "reranker")

    def best(self, query: str, texts: list[str], count: int) -> list[str]:
        return _best(np.asarray(self._model.predict([(query, text) for text in texts], show_progress_bar=False)), texts, count)


def _best(scores: np.ndarray, texts: list[str], count: int) -> list[str]:
    return [texts[index] for index in np.argsort(-scores, kind="stable")[:count]]


def _load(kind: str, model: str, device: str, key: str) -> Any:
    try:
        import sentence_transformers
    except ImportError as error:
        raise UserError(f"environment.search.{key} needs a package that is not installed: pip install {PACKAGE}") from error
    try:
        return getattr(sentence_transformers, kind)(model, device=device)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"environment.search.{key}={model} cannot be loaded ({reason}); name a hub id or a local folder, or null") from error
