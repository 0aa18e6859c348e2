"""`search` and `browse` as tools of a policy (Appendix C, ArenaRL; 3.2, InfoAgent).

Results come in two forms. `full` is JSON with url, title and snippet. `compact` is one line per page, named by its
title; `browse` then takes the title, because a tiny policy cannot copy addresses. `environment.search` sets how much
text they show: a tiny policy wants few results, short snippets and a low `summary_above_chars`. A failed search or page
becomes an observation, so training continues (B.4).
"""

import json
from collections.abc import Awaitable, Coroutine
from dataclasses import asdict
from typing import Any, Literal, Self

from arenarl.config.schema import EnvironmentConfig
from arenarl.domains.research.engines import open_engine
from arenarl.domains.research.search import SearchTools
from arenarl.llm.client import LLMClient
from arenarl.rollout.environment import ToolError, check_call, tool_schema
from arenarl.trajectory import storable

NO_RESULTS = "no results"  # compact form


class ResearchEnvironment:
    """The research tools as an `Environment` that all trajectories share."""

    shared = True

    def __init__(self, tools: SearchTools, results: Literal["full", "compact"] = "full"):
        self.search_tools, self.is_compact = tools, results == "compact"
        page = "title of a result" if self.is_compact else "address of a page"
        query, url = ({"type": "string", "description": text} for text in ("what to look for", page))
        self.tools = [
            tool_schema("search", "Finds pages on a topic.", {"query": query}),
            tool_schema("browse", "Reads a page.", {"url": url}),
        ]

    @classmethod
    def from_config(cls, config: EnvironmentConfig, language: str, client: LLMClient | None = None) -> Self:
        """Open engine, models and cache. Raises UserError if something that `environment.search` names is missing."""
        return cls(SearchTools(config.search, open_engine(config), client, language), config.results)

    def reset(self, query: Any) -> None:
        pass

    def call(self, name: str, arguments: dict[str, Any] | str) -> str | Awaitable[str]:
        """Run a tool. Return its result directly, not as an awaitable, if it waits for nothing.

        The engine runs awaitables in another thread. Their results arrive at times that depend on the machine's load,
        and so join other batches. The rows of a batch change its rounding, which decides close draws of tokens.
        """
        observation = self._call(name, arguments)
        return observation if self.search_tools.waits else _result_of(observation)

    async def _call(self, name: str, arguments: dict[str, Any] | str) -> str:
        try:
            checked = check_call(self.tools, name, arguments)
            return storable(await (self._search(**checked) if name == "search" else self._browse(**checked)))
        except ToolError as error:
            return f"Error: {error}"

    def take_metrics(self) -> dict[str, list[float]]:
        return self.search_tools.take_metrics()

    async def _search(self, query: str) -> str:
        results = await self.search_tools.search(query)
        if self.is_compact:
            return "\n".join(f"{result.title}: {_one_line(result.snippet)}" for result in results) or NO_RESULTS
        return json.dumps([asdict(result) for result in results], ensure_ascii=False)

    async def _browse(self, url: str) -> str:
        text = await self.search_tools.browse(url)
        return _one_line(text) if self.is_compact else json.dumps({"url": url, "text": text}, ensure_ascii=False)


def _result_of(coroutine: Coroutine[Any, Any, str]) -> str:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a search tool waited, although SearchTools.waits is False")


def _one_line(text: str) -> str:
    return " ".join(text.split())
