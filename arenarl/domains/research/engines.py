"""Where pages come from: the embedded corpus, a local folder, or the web (`web.py`).
Each finds pages for a query and fetches one.

Local engines know their pages' chunks already, so they hand them over in BM25's order,
and nothing they do is worth keeping on disk.
"""

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from arenarl.config.schema import EnvironmentConfig
from arenarl.domains.research.documents import open_folder
from arenarl.domains.research.page_index import PageIndex
from arenarl.domains.research.pages import Hit, Page
from arenarl.rollout.environment import ToolError, as_written


class Engine(Protocol):
    name: str  # what its answers depend on, for the cache
    is_local: bool  # answers in a millisecond, without waiting for anything

    async def search(self, query: str, limit: int) -> list[Hit]:
        """Raises ToolError if it cannot be asked."""

    async def fetch(self, url: str) -> Page:
        """Raises ToolError if the page cannot be had."""


class LocalEngine:
    """An `Engine` over an index. Pages are fetched by url or title, from the index alone."""

    is_local = True

    def __init__(self, index: PageIndex, name: str):
        self.index, self.name = index, name

    async def search(self, query: str, limit: int) -> list[Hit]:
        return [Hit(page.url, page.title, chunks=chunks) for page, chunks in self.index.search(query, limit)]

    async def fetch(self, url: str) -> Page:
        page = self.index.find(url)
        if page is None:
            nearest = self.index.search(url, 1)
            raise ToolError(
                f"no page {as_written(url)}." + (f" Did you mean {as_written(nearest[0][0].title)}?" if nearest else "")
            )
        return page


def open_engine(config: EnvironmentConfig) -> Engine:
    """The engine that `environment.search.engine` names.

    Raises:
        UserError: its documents or its key are missing.
    """
    search = config.search
    if search.engine == "corpus":
        return _corpus_engine(config.world_seed, search.corpus_size, search.search_chunk_tokens)
    if search.engine == "folder":
        index, fingerprint = open_folder(Path(search.folder), search.search_chunk_tokens, Path(search.indexes))
        return LocalEngine(index, fingerprint)
    from arenarl.domains.research.web import WebEngine

    return WebEngine(search.web)


@lru_cache(maxsize=2)
def _corpus_engine(seed: int, size: int, chunk_tokens: int) -> LocalEngine:
    from arenarl.domains.research.corpus import build_corpus

    pages = build_corpus(seed, size).pages
    return LocalEngine(PageIndex.build(pages, chunk_tokens), hashlib.sha256(repr(pages).encode()).hexdigest())
