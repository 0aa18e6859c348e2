"""The web as an engine: one search API finds pages, `fetch` gets them.

The API is asked at the address that the config names, which may be this machine (a SearXNG of one's own); only the
pages it finds come from anywhere. InfoAgent asks Google, then Brave and Bing where Google finds nothing (B.1); here one
API is asked.
"""

import asyncio
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from arenarl.config.schema import WebConfig
from arenarl.domains.research.fetch import Fetcher
from arenarl.domains.research.pages import Hit
from arenarl.llm.client import RunStopped
from arenarl.rollout.environment import ToolError
from arenarl.system.errors import UserError
from arenarl.system.progress import share_of
from arenarl.trajectory import MAX_RECORD_NESTING, parse_json

_ATTEMPTS = 3
_LONGEST_PAUSE_S = 10.0
_REFUSES_ALL = (401, 402, 403)  # a key or an account: no other query fares better
# what Brave says of a key with status 422, Serper of an account with 400
_REFUSED = re.compile(r"TOKEN_INVALID|not enough credits", re.IGNORECASE)
_SAID = 200  # characters that are shown of what an API says of an error


@dataclass(frozen=True)
class API:
    """How a search API is asked, and where its reply has the results: `path` to the list, fields of a result."""

    endpoint: str | None
    method: str
    key_header: str | None
    path: tuple[str, ...]
    url: str
    snapshot: str
    parameters: tuple[tuple[str, str], ...] = ()


APIS = {  # environment.search.web.api
    "serper": API("https://google.serper.dev/search", "POST", "X-API-KEY", ("organic",), "link", "snippet"),
    "brave": API(
        "https://api.search.brave.com/res/v1/web/search", "GET", "X-Subscription-Token", ("web", "results"), "url",
        "description",
    ),
    "searxng": API(None, "GET", None, ("results",), "url", "content", (("format", "json"),)),
}  # fmt: skip


class WebEngine:
    """An `Engine`. Its event loop is that of the `SearchTools` that it serves.

    Raises:
        UserError: the environment variable for the API's key is not set.
    """

    is_local = False

    def __init__(self, config: WebConfig, fetcher: Fetcher | None = None):
        self.config, self.api = config, APIS[config.api]
        self.endpoint = config.endpoint or self.api.endpoint
        self.name = f"{config.api} {self.endpoint} {sorted(config.parameters.items())}"
        self._headers = {}
        if self.api.key_header:
            variable = config.api_key_variable
            if not (key := os.environ.get(variable or "")):
                raise UserError(f"set the environment variable {variable} to the key of the search API {config.api}")
            self._headers[self.api.key_header] = key
        self._client = httpx.AsyncClient(timeout=config.timeout_s)
        self._slots = asyncio.Semaphore(share_of(config.concurrency))
        self.fetch = (fetcher or Fetcher(config)).fetch

    async def search(self, query: str, limit: int) -> list[Hit]:
        """Raises RunStopped if the API refuses the key or the account, which no further call can mend."""
        api = self.api
        asked = {"q": query, **dict(api.parameters), **self.config.parameters}
        async with self._slots:
            response = await self._ask({"json": asked} if api.method == "POST" else {"params": asked})
        try:
            reply = records = parse_json(response.text, MAX_RECORD_NESTING)
            for name in api.path:
                records = records.get(name) or {}
            hits = [
                Hit(str(one[api.url]), str(one.get("title") or one[api.url]), str(one.get(api.snapshot) or ""))
                for one in list(records)[:limit]
            ]
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise ToolError("the search engine's reply could not be read.") from error
        # SearXNG, whose own sources have shut it out: not that there is nothing
        if not hits and reply.get("unresponsive_engines"):
            raise ToolError("the engines that the search engine asks do not answer.")
        return hits

    async def _ask(self, request: dict[str, Any]) -> httpx.Response:
        """The reply, after some more attempts on timeouts, 429, 5xx, and refusals, of which Brave takes some back."""
        for attempt in range(_ATTEMPTS):
            is_refused, pause_s = False, 0.5 * 2**attempt
            try:
                async with asyncio.timeout(self.config.timeout_s):
                    response = await self._client.request(
                        self.api.method, self.endpoint, headers=self._headers, **request
                    )
            except (TimeoutError, httpx.HTTPError) as error:
                reason = f"does not answer ({type(error).__name__})"
            else:
                if (status := response.status_code) == 200:
                    return response
                text = self._shown_text(response)
                reason = f"answers {status}" + (f": {text}" if text else "")
                with suppress(ValueError):  # retry-after is a date
                    pause_s = max(0.0, float(response.headers.get("retry-after", pause_s)))
                is_refused = status in _REFUSES_ALL or (status in (400, 422) and bool(_REFUSED.search(text)))
                if not (is_refused or status == 429 or status >= 500):
                    break
            if attempt < _ATTEMPTS - 1:
                await asyncio.sleep(min(pause_s, _LONGEST_PAUSE_S))
        if not is_refused:
            raise ToolError(f"the search engine {reason}.")
        key = f"the key in {self.config.api_key_variable}, or its account"
        hint = "; SearXNG needs json among search.formats in its settings.yml" if self.config.api == "searxng" else ""
        raise RunStopped(f"{self.endpoint} refuses {key if self._headers else 'to answer'}: it {reason}{hint}")

    def _shown_text(self, response: httpx.Response) -> str:
        """The beginning of an error's body, without the key."""
        text = " ".join(response.text.split())
        for key in self._headers.values():
            text = text.replace(key, "***")
        return text[:_SAID]
