"""The search tool made for RL (3.2, B.1-B.4, InfoAgent): query → pages → chunks → the best chunks → a snippet per page.

    search: engine → fetch, main text → chunks of 128 tokens → BM25, 40 by the query and 3 by the snapshot (Eq. 5) →
            embedding, 8 → reranker, 3 → snippet of at most 60 words
    browse: fetch, main text → chunks of 2,048 tokens → BM25 by the title, 40 → embedding, 8 → reranker, 1 →
            summary, if the text is long

Each stage has a key and can be switched off. The engine's snapshot replaces a page that cannot be fetched, as in the
paper. Results are computed once and shared (B.3), because the trajectories of a group make similar searches.
"""

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from arenarl.config.schema import LLMConfig, SearchConfig
from arenarl.domains.bm25 import BM25
from arenarl.domains.research.engines import Engine
from arenarl.domains.research.pages import Hit, Page
from arenarl.domains.research.passages import chunks, cut, extract_snippet, extract_summary, terms, top
from arenarl.domains.research.rankers import Embedder, Reranker
from arenarl.llm.client import LLMClient
from arenarl.llm.json_reply import JSONReply
from arenarl.llm.prompts import prompt_texts, quoted
from arenarl.rollout.environment import ToolError
from arenarl.system.atomic_files import json_hash
from arenarl.system.database import open_database
from arenarl.system.event_loops import InFlight, LoopThread

T = TypeVar("T")
_IN_MEMORY = 5_000  # cached results, some of them whole pages; the oldest are dropped
_MAX_PROMPT_CHARS = 40_000  # page text in the prompt for a summary
_SCHEMA = "CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, stage TEXT, value TEXT);"
_STAGES = (  # settings that decide which chunks are chosen
    "search_chunk_tokens", "browse_chunk_tokens", "bm25_chunks", "snapshot_chunks", "embedder", "embedded_chunks",
    "reranker", "reranked_chunks",
)  # fmt: skip


class Snippet(JSONReply):
    snippet: Annotated[str, Field(min_length=1)]


class Summary(JSONReply):
    summary: Annotated[str, Field(min_length=1)]


_REPLIES = {"snippet": Snippet, "summary": Summary}  # a task is also the key of its LLM and the field of its reply


@dataclass(frozen=True)
class Result:
    url: str
    title: str
    snippet: str


class Cache:
    """Results in memory, and in one database for all processes. Failures are not stored. For one event loop only.

    With `waits` False, computing a result never waits, so two calls for one result never overlap.
    """

    def __init__(self, place: str | Path | None, waits: bool = True):
        self._waits = waits
        self._db = open_database(place, _SCHEMA, "environment.search.cache") if place else None
        self._memory: OrderedDict[tuple, Any] = OrderedDict()
        self._in_flight: InFlight[Any] = InFlight()
        self.hits: list[bool] = []  # per look-up since `take_metrics`: True if the result was stored or under way

    async def get(self, stage: str, inputs: tuple, make: Callable[[], Awaitable[Any]], on_disk: bool = True) -> Any:
        """Return the stored result for these inputs, or `await make()` and store it.
        `inputs` must name everything that the result depends on. With `on_disk` the result must be JSON."""
        key, database = (stage, *inputs), self._db if on_disk else None
        if key not in self._memory and key not in self._in_flight and database:
            stored = database.execute("SELECT value FROM results WHERE key = :key", {"key": json_hash(key)})
            if row := stored.fetchone():
                self._remember(key, json.loads(row[0]))
        self.hits.append(key in self._memory or key in self._in_flight)
        if key in self._memory:
            self._memory.move_to_end(key)
            return self._memory[key]

        async def make_and_store() -> Any:
            value = await make()
            if database:
                row = {"key": json_hash(key), "stage": stage, "value": json.dumps(value)}
                insert = "INSERT INTO results VALUES (:key, :stage, :value) ON CONFLICT (key) DO UPDATE"
                database.execute(f"{insert} SET value = excluded.value", row)
            self._remember(key, value)
            return value

        return await (self._in_flight.get(key, make_and_store) if self._waits else make_and_store())

    def _remember(self, key: tuple, value: Any) -> None:
        self._memory[key] = value
        if len(self._memory) > _IN_MEMORY:
            self._memory.popitem(last=False)


class SearchTools:
    """`await tools.search(query)`, `await tools.browse(url)`, from any event loop.

    `waits` is False if no call ever waits: the engine is local, and neither models nor LLMs are used.
    """

    def __init__(self, config: SearchConfig, engine: Engine, client: LLMClient | None = None, language: str = "en"):
        """Load the models and the cache. Without a `client`, no LLM is called.
        Raises UserError if a model or the cache cannot be opened."""
        self.config, self.engine, self.client, self.language = config, engine, client, language
        self._stages = tuple(getattr(config, key) for key in _STAGES)
        embedder = None if config.dense else config.embedder  # a dense engine already orders the chunks
        self._is_quick = engine.is_local and not (embedder or config.reranker)
        self.waits = not self._is_quick or self._uses(config.snippet) or self._uses(config.summary)
        self.cache = Cache(None if self._is_quick else config.cache, self.waits)
        self._seconds: list[float] = []  # duration of each call since `take_metrics`
        self._embedder = Embedder(embedder, config.device) if embedder else None
        self._reranker = Reranker(config.reranker, config.device) if config.reranker else None
        self._models = ThreadPoolExecutor(1, "search-models")
        self._thread = LoopThread("search")

    async def search(self, query: str) -> list[Result]:
        """Return at most `environment.search.results` pages. Raises ToolError if the engine cannot be reached."""
        return await self._answer("search", self._search, query)

    async def browse(self, url: str) -> str:
        """Return the page's best long chunk. Raises ToolError if the page cannot be fetched."""
        return await self._answer("browse", self._browse, url)

    def take_metrics(self) -> dict[str, list[float]]:
        """Return hits and durations of the calls since the previous call of this method."""
        hits, self.cache.hits = self.cache.hits, []
        seconds, self._seconds = self._seconds, []
        return {"search/hit_rate": [float(hit) for hit in hits], "search/call_s": seconds}

    async def _answer(self, tool: str, make: Callable[[str], Awaitable[T]], argument: str) -> T:
        """Return the tool's result, computed once per argument and shared by all callers in this process."""

        async def answer() -> T:
            start = time.perf_counter()
            try:
                return await self.cache.get(tool, (argument,), lambda: make(argument), on_disk=False)
            finally:
                self._seconds.append(time.perf_counter() - start)

        return await (self._thread.run(answer()) if self.waits else answer())

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run text processing in a thread if calls wait for I/O anyway; otherwise run it directly, which is faster."""
        return await asyncio.to_thread(work, *arguments) if self.waits else work(*arguments)

    async def _search(self, query: str) -> list[Result]:
        limit, is_local = self.config.results, self.engine.is_local
        hits = await self._get_result("hits", (query, limit), lambda: self.engine.search(query, limit), is_local)

        async def result_of(hit: Hit) -> Result:
            texts, words = await self._search_chunks(query, hit), self.config.snippet_words
            written = await self._ask("snippet", words, texts, query)
            snippet = cut(written, words) if written else extract_snippet(query, texts, words, hit.title)
            return Result(hit.url, hit.title, snippet)

        results = [result_of(Hit(*hit)) for hit in hits]
        return list(await asyncio.gather(*results)) if self.waits else [await result for result in results]

    async def _browse(self, url: str) -> str:
        page = await self._page(url)

        async def choose() -> list[str]:
            """Return the page's best chunk by its title; the whole page without `browse_chunk_tokens`."""
            if self.config.browse_chunk_tokens is None:
                return [page.text]
            texts = await self._in_thread(chunks, page.text, self.config.browse_chunk_tokens)
            texts = await self._in_thread(best_by_terms, page.title, texts, self.config.bm25_chunks)
            return await self._narrow(page.title, texts, 1)

        texts = await self._get_result("chunk", (page.url, *self._stages), choose, self._is_quick)
        text, limit = "\n\n".join(texts), self.config.summary_above_chars
        if limit is None or len(text) <= limit:
            return text
        return extract_summary(await self._ask("summary", limit, [text]) or text, limit)

    async def _search_chunks(self, query: str, hit: Hit) -> list[str]:
        """Return a page's best chunks, or its snapshot if it cannot be fetched (nearly 15 % of the web, 3.2)."""
        try:
            page = None if hit.chunks else await self._page(hit.url)
        except ToolError:
            return [hit.snapshot]

        async def choose() -> list[str]:
            if page:
                texts = await self._in_thread(self._candidates, query, hit, page)
            else:
                texts = hit.chunks[: self.config.bm25_chunks]
            return await self._narrow(query, texts, self.config.reranked_chunks)

        inputs = (query, hit.url, hit.snapshot, *self._stages)
        return await self._get_result("chunks", inputs, choose, self._is_quick)

    def _candidates(self, query: str, hit: Hit, page: Page) -> list[str]:
        """Return a page's best chunks by the query, then by the snapshot, then the snapshot. Eq. 5, InfoAgent."""
        texts = chunks(page.text, self.config.search_chunk_tokens)
        by_query = best_by_terms(query, texts, self.config.bm25_chunks)
        if not hit.snapshot:
            return by_query
        by_snapshot = best_by_terms(hit.snapshot, texts, self.config.snapshot_chunks or 0)
        return list(dict.fromkeys([*by_query, *by_snapshot, hit.snapshot]))

    async def _narrow(self, query: str, texts: list[str], count: int) -> list[str]:
        """Return the best `count` texts by embedding and reranker; without models, the first texts."""
        if self._embedder and len(texts) > self.config.embedded_chunks:
            texts = await self._by_model(self._embedder, query, texts, self.config.embedded_chunks)
        if self._reranker and len(texts) > 1:
            texts = await self._by_model(self._reranker, query, texts, count)
        return texts[:count]

    async def _by_model(self, model: Embedder | Reranker, query: str, texts: list[str], count: int) -> list[str]:
        return await asyncio.get_running_loop().run_in_executor(self._models, model.best, query, texts, count)

    async def _page(self, url: str) -> Page:
        async def fetch() -> tuple[str, ...]:
            return astuple(await self.engine.fetch(url))

        return Page(*await self._get_result("page", (url,), fetch, self.engine.is_local))

    def _uses(self, llm: LLMConfig) -> bool:
        return llm.name == "llm" and self.client is not None

    async def _ask(self, task: str, limit: int, texts: list[str], query: str | None = None) -> str | None:
        """Return an LLM's snippet or summary of at most `limit` words or characters; None if no LLM replies."""
        llm = getattr(self.config, task)
        if not self._uses(llm):
            return None
        prompt = prompt_texts("search", self.language)
        lines = [prompt[task].format(words=limit, chars=limit).strip(), quoted("\n".join(texts), _MAX_PROMPT_CHARS)]
        lines += [] if query is None else [quoted(query, 1000)]
        content = "\n".join([*lines, prompt["reply_" + task].strip()])
        messages = [{"role": "system", "content": prompt["system"].strip()}, {"role": "user", "content": content}]
        reply = await self.client.ask(llm, messages, _REPLIES[task], prompt["again"], about=task)
        return getattr(reply, task) if reply else None

    async def _get_result(self, stage: str, inputs: tuple, make: Callable[[], Awaitable[Any]], is_quick: bool) -> Any:
        """Return `await make()` if that is quick; otherwise the cached result."""
        return await (make() if is_quick else self.cache.get(stage, (self.engine.name, *inputs), make))


def best_by_terms(query: str, texts: list[str], count: int | None) -> list[str]:
    """Return at most `count` texts, best first by BM25. Texts without a term of the query come last, in their original
    order. With `count` None, return the texts as they are."""
    if count is None or len(texts) < 2:
        return texts
    terms_of_texts, best = [terms(text) for text in texts], []
    query_terms = [term for term in terms(query) if any(term in text_terms for text_terms in terms_of_texts)]
    if query_terms:
        index = BM25()
        index.index(terms_of_texts, show_progress=False)
        best = top(index.get_scores(query_terms), count).tolist()
    rest = set(range(len(texts))).difference(best)
    return [texts[number] for number in [*best, *sorted(rest)][:count]]
