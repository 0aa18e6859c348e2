"""The search tool made for RL (3.2, B.1-B.4, InfoAgent): query → pages → chunks → the best chunks → a snippet a page.

    search: engine → fetch, main text → chunks of 128 tokens → BM25, 40 by the query and 3 by the snapshot (Eq. 5) →
            embedding, 8 → reranker, 3 → snippet of at most 60 words
    browse: fetch, main text → chunks of 2,048 tokens → BM25 by the title, 40 → embedding, 8 → reranker,
            1 → a long text summarised

Every stage is a key and can be left out. A page that cannot be fetched is known by its snapshot, as in the paper. All
work goes on in an event loop of its own.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from arenarl.config.schema import EnvironmentConfig, LLMConfig, SearchConfig
from arenarl.domains.bm25 import BM25
from arenarl.domains.research.cache import Cache
from arenarl.domains.research.engines import Engine, open_engine
from arenarl.domains.research.page_index import top
from arenarl.domains.research.pages import Hit, Page
from arenarl.domains.research.passages import chunks, cut, extract_snippet, extract_summary, terms
from arenarl.domains.research.rankers import Embedder, Reranker
from arenarl.llm.client import LLMClient
from arenarl.llm.json_reply import JSONReply
from arenarl.llm.prompts import prompt_texts, quoted
from arenarl.rollout.environment import ToolError
from arenarl.system.event_loops import LoopThread

T = TypeVar("T")
_MAX_PROMPT_CHARS = 40_000  # of a page that an LLM summarises
_STAGES = (  # what the choice of chunks depends on
    "search_chunk_tokens", "browse_chunk_tokens", "bm25_chunks", "snapshot_chunks", "embedder", "embedded_chunks",
    "reranker", "reranked_chunks",
)  # fmt: skip


class Snippet(JSONReply):
    snippet: Annotated[str, Field(min_length=1)]


class Summary(JSONReply):
    summary: Annotated[str, Field(min_length=1)]


@dataclass(frozen=True)
class Result:
    url: str
    title: str
    snippet: str


class SearchTools:
    """`await tools.search(query)`, `await tools.browse(url)`, from any event loop."""

    def __init__(self, config: SearchConfig, engine: Engine, client: LLMClient | None = None, language: str = "en"):
        """Without a `client` no LLM is asked. Raises UserError if a model or the cache cannot be had."""
        self.config, self.engine, self.client, self.language = config, engine, client, language
        self._stages = tuple(getattr(config, key) for key in _STAGES)
        self._is_quick = engine.is_local and not (config.embedder or config.reranker)
        self._waits = not self._is_quick or self._asks(config.snippet) or self._asks(config.summary)
        self.cache = Cache(Path(config.cache) if config.cache and not self._is_quick else None)
        self._seconds: list[float] = []  # of each call since they were last taken
        self._embedder = Embedder(config.embedder, config.device) if config.embedder else None
        self._reranker = Reranker(config.reranker, config.device) if config.reranker else None
        self._models = ThreadPoolExecutor(1, "search-models")
        self._thread = LoopThread("search")

    async def search(self, query: str) -> list[Result]:
        """At most `results` of them. Raises ToolError if the engine cannot be asked."""
        return await self._answer("search", self._search, query)

    async def browse(self, url: str) -> str:
        """The page's best long chunk. Raises ToolError if the page cannot be had."""
        return await self._answer("browse", self._browse, url)

    def take_metrics(self) -> dict[str, list[float]]:
        """What the calls since this was last called were like, each metric as the values whose mean it is."""
        hits, self.cache.hits = self.cache.hits, []
        seconds, self._seconds = self._seconds, []
        return {"search/hit_rate": [float(hit) for hit in hits], "search/call_s": seconds}

    async def _answer(self, tool: str, make: Callable[[str], Awaitable[T]], argument: str) -> T:
        """What the tool makes of its argument, the same for all who ask as long as this process remembers it."""

        async def answer() -> T:
            start = time.perf_counter()
            try:
                return await self.cache.get(tool, (argument,), lambda: make(argument), on_disk=False)
            finally:
                self._seconds.append(time.perf_counter() - start)

        return await (self._thread.run(answer()) if self._waits else answer())

    async def _aside(self, work: Callable[..., T], *arguments: Any) -> T:
        """What a page's text is made into, where others wait for it in another thread;
        hops between threads take longer than a small page."""
        return await asyncio.to_thread(work, *arguments) if self._waits else work(*arguments)

    async def _search(self, query: str) -> list[Result]:
        limit = self.config.results
        hits = await self._fetched("hits", (query, limit), lambda: self.engine.search(query, limit))
        return list(await asyncio.gather(*(self._result(query, Hit(*hit)) for hit in hits)))

    async def _result(self, query: str, hit: Hit) -> Result:
        return Result(hit.url, hit.title, await self._snippet(query, hit.title, await self._search_chunks(query, hit)))

    async def _browse(self, url: str) -> str:
        page = await self._page(url)
        texts = await self._chosen("chunk", (page.url,), lambda: self._browse_chunk(page))
        return await self._summary("\n\n".join(texts))

    async def _search_chunks(self, query: str, hit: Hit) -> list[str]:
        """A page's best chunks; of a page that cannot be had, as of nearly 15 % of the web (3.2), the snapshot."""
        try:
            page = None if hit.chunks else await self._page(hit.url)
        except ToolError:
            return [hit.snapshot]

        async def choose() -> list[str]:
            texts = (
                hit.chunks[: self.config.bm25_chunks]
                if page is None
                else await self._aside(self._candidates, query, hit, page)
            )
            return await self._narrow(query, texts, self.config.reranked_chunks)

        return await self._chosen("chunks", (query, hit.url, hit.snapshot), choose)

    def _candidates(self, query: str, hit: Hit, page: Page) -> list[str]:
        """A fetched page's chunks by the query, those by the snapshot, and the snapshot itself. Eq. 5, InfoAgent."""
        texts = chunks(page.text, self.config.search_chunk_tokens)
        by_query = best_by_terms(query, texts, self.config.bm25_chunks)
        if not hit.snapshot:
            return by_query
        by_snapshot = best_by_terms(hit.snapshot, texts, self.config.snapshot_chunks or 0)
        return list(dict.fromkeys([*by_query, *by_snapshot, hit.snapshot]))

    async def _browse_chunk(self, page: Page) -> list[str]:
        """The page's best chunk by its title, or all of it."""
        if self.config.browse_chunk_tokens is None:
            return [page.text]
        texts = await self._aside(chunks, page.text, self.config.browse_chunk_tokens)
        candidates = await self._aside(best_by_terms, page.title, texts, self.config.bm25_chunks)
        return await self._narrow(page.title, candidates, 1)

    async def _narrow(self, query: str, texts: list[str], count: int) -> list[str]:
        """The best `count` by embedding and reranker; without them, as they came."""
        run = asyncio.get_running_loop().run_in_executor
        if self._embedder and len(texts) > self.config.embedded_chunks:
            texts = await run(self._models, self._embedder.best, query, texts, self.config.embedded_chunks)
        if self._reranker and len(texts) > 1:
            texts = await run(self._models, self._reranker.best, query, texts, count)
        return texts[:count]

    async def _page(self, url: str) -> Page:
        async def fetch() -> tuple[str, ...]:
            return astuple(await self.engine.fetch(url))

        return Page(*await self._fetched("page", (url,), fetch))

    async def _snippet(self, query: str, title: str, texts: list[str]) -> str:
        if self._asks(self.config.snippet):
            words = {"words": self.config.snippet_words}
            reply = await self._ask(
                self.config.snippet, "snippet", Snippet, words, "\n".join(texts), f"\n{quoted(query, 1000)}"
            )
            if reply:
                return cut(reply.snippet, self.config.snippet_words)
        return extract_snippet(query, texts, self.config.snippet_words, title)

    async def _summary(self, text: str) -> str:
        limit = self.config.summary_above_chars
        if limit is None or len(text) <= limit:
            return text
        if self._asks(self.config.summary):
            reply = await self._ask(self.config.summary, "summary", Summary, {"chars": limit}, text)
            if reply:
                return extract_summary(reply.summary, limit)
        return extract_summary(text, limit)

    def _asks(self, llm: LLMConfig) -> bool:
        return llm.name == "llm" and self.client is not None

    async def _ask(
        self, llm: LLMConfig, task: str, reply_type: type, numbers: dict[str, int], text: str, after: str = ""
    ) -> Any | None:
        """An LLM's reply on a text that may say anything; None if none could be had."""
        texts = prompt_texts("search", self.language)
        asked = (
            f"{texts[task].format(**numbers).strip()}\n{quoted(text, _MAX_PROMPT_CHARS)}{after}\n"
            f"{texts['reply_' + task].strip()}"
        )
        messages = [{"role": "system", "content": texts["system"].strip()}, {"role": "user", "content": asked}]
        return await self.client.ask(llm, messages, reply_type, texts["again"], about=task)

    async def _fetched(self, stage: str, inputs: tuple, make: Callable[[], Awaitable[Any]]) -> Any:
        """What the engine gives, from the cache, unless the engine is quicker than that."""
        return await (make() if self.engine.is_local else self.cache.get(stage, (self.engine.name, *inputs), make))

    async def _chosen(self, stage: str, inputs: tuple, make: Callable[[], Awaitable[list[str]]]) -> list[str]:
        """What is chosen of a page, from the cache, unless no model chooses and the page is at hand."""
        return await (
            make() if self._is_quick else self.cache.get(stage, (self.engine.name, *inputs, *self._stages), make)
        )


def best_by_terms(query: str, texts: list[str], count: int | None) -> list[str]:
    """At most `count` of the texts, the best by BM25 first; those that have no term of the query come last.
    None takes them as they are."""
    if count is None or len(texts) < 2:
        return texts
    known, best = [terms(text) for text in texts], []
    wanted = [term for term in terms(query) if any(term in one for one in known)]
    if wanted:
        index = BM25()
        index.index(known, show_progress=False)
        best = top(index.get_scores(wanted), count).tolist()
    rest = set(range(len(texts))).difference(best)
    return [texts[number] for number in [*best, *sorted(rest)][:count]]


def build_search_tools(config: EnvironmentConfig, language: str, client: LLMClient | None = None) -> SearchTools:
    """The tools that `environment.search` describes.

    Raises:
        UserError: documents, models, the cache or the API's key cannot be had.
    """
    return SearchTools(config.search, open_engine(config), client, language)
