"""The web as an engine: a search API finds pages, `Fetcher` gets them, never from this machine or its network.

The API is at the address that the config names, which may be this machine (a SearXNG of one's own). InfoAgent asks
Google, then Brave and Bing where Google finds nothing (B.1); here one API is asked.

A policy may fetch any address. Its name is resolved once, all its addresses are checked, and the connection goes to a
checked address itself, so that no second answer of a name server can lead elsewhere. Redirects are followed by hand,
each checked like the first address. Time, size, redirects and parsing are bounded. The machine's proxies are not used,
because they would resolve the name anew.
"""

import asyncio
import os
import re
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import httpx

from arenarl.config.schema import WebConfig
from arenarl.domains.research.pages import Hit, Page, WorkerLost, decoded, paragraphs, read_html_apart
from arenarl.llm.client import RunStopped
from arenarl.rollout.environment import ToolError, as_written
from arenarl.system.errors import UserError
from arenarl.system.progress import share_of
from arenarl.trajectory import MAX_RECORD_NESTING, parse_json

_ATTEMPTS = 3
_LONGEST_PAUSE_S = 10.0
_REFUSES_ALL = (401, 402, 403)  # a key or an account: no other query fares better
# what Brave says of a key with status 422, Serper of an account with 400
_REFUSED = re.compile(r"TOKEN_INVALID|not enough credits", re.IGNORECASE)
_SAID = 200  # characters that are shown of what an API says of an error
PORTS = (80, 443, 8080, 8443)
MAX_REDIRECTS = 5
_TRANSLATED = ip_network("64:ff9b::/96")  # IPv4 addresses behind a NAT64 gateway
_UNICAST = ip_network("2000::/3")  # all of IPv6 that is given out to be reached from everywhere
_NO_PAGES = (  # what `is_global` lets through, of the Python at hand or by the letter
    ip_network("168.63.129.16/32"),  # Azure's services for its own machines
    ip_network("192.0.0.0/24"),  # of protocols; Oracle's metadata are at 192.0.0.192
    ip_network("192.88.99.0/24"),  # relays of 6to4
    ip_network("3fff::/20"),  # documentation
)
_HEADERS = {"User-Agent": "arenarl-research/1.0", "Accept": "text/html, text/plain;q=0.9", "Accept-Encoding": "gzip"}

Allow = Callable[[str, int], bool]  # of an address and a port
Resolve = Callable[[str, int], Awaitable[list[str]]]  # of a host and a port


class FetchError(ToolError):
    """Why a page could not be had: `reason` goes on from its address."""

    def __init__(self, url: str | httpx.URL, reason: str):
        super().__init__(as_written(str(url)) + reason)


def is_public(address: str, port: int) -> bool:
    """Whether a page may be fetched from there: a port of the web, an address of the public internet.

    >>> [is_public(address, 80) for address in ("8.8.8.8", "127.0.0.1", "::ffff:10.0.0.1", "169.254.169.254")]
    [True, False, False, False]
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    return port in PORTS and all(
        one.is_global
        and not (one.is_multicast or one.is_reserved or any(one in network for network in _NO_PAGES))
        and (one.version == 4 or one in _UNICAST)
        for one in _meant(ip)
    )


def _meant(ip: IPv4Address | IPv6Address) -> list[IPv4Address | IPv6Address]:
    """The address, or the IPv4 addresses that an IPv6 address stands for."""
    if ip.version == 4:
        return [ip]
    if ip in _TRANSLATED:
        return [IPv4Address(int(ip) & 0xFFFFFFFF)]
    inner = [one for one in (ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())) if one is not None]
    return inner or [ip]


async def resolve(host: str, port: int) -> list[str]:
    """The addresses that a name has, IPv4 first. Numbers count as the C library reads them: 2130706433 is 127.0.0.1."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    return list(dict.fromkeys(address[0] for *_, address in found))


class Fetcher:
    """`await fetcher.fetch(url)` → the page, or FetchError. Tests on this machine pass an `is_allowed` of their own."""

    def __init__(self, config: WebConfig, is_allowed: Allow = is_public, resolve: Resolve = resolve):
        self.config, self._is_allowed, self._resolve = config, is_allowed, resolve
        self._client = httpx.AsyncClient(
            trust_env=False, timeout=config.timeout_s, headers=_HEADERS,
            limits=httpx.Limits(max_keepalive_connections=0),  # one kept for a name would serve another of its address
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # keeps none
        )  # fmt: skip
        self._slots = asyncio.Semaphore(share_of(config.concurrency))

    async def fetch(self, url: str) -> Page:
        async with self._slots:
            try:
                async with asyncio.timeout(self.config.timeout_s):
                    body, kind, charset = await self._get(url)
            except TimeoutError as error:
                raise FetchError(url, f" did not answer within {self.config.timeout_s:g} s.") from error
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                # redirects too that httpx can make nothing of
                raise FetchError(url, f" could not be read ({type(error).__name__}: {str(error)[:100]}).") from error
        if kind == "text/plain":
            text = decoded(body, charset)
            return Page(url, url, paragraphs(text if isinstance(text, str) else text.decode("utf-8-sig", "replace")))
        try:
            page = await read_html_apart(body, url, charset, self.config.timeout_s)
        except WorkerLost as error:
            limits = f"longer than {self.config.timeout_s:g} s, or too much memory"
            raise FetchError(url, f" could not be parsed: it took {limits}.") from error
        if page is None:
            raise FetchError(url, " has no main text.")
        return page

    async def _get(self, url: str) -> tuple[bytes, str, str | None]:
        """(body, media type, charset as the server says)."""
        place = _parse(url)
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._open(place)
            try:
                if not response.has_redirect_location:
                    return await self._read(response, url)
                place = _parse(response.headers["location"], place)
            finally:
                await response.aclose()
        raise FetchError(url, f" redirects more than {MAX_REDIRECTS} times.")

    async def _open(self, place: httpx.URL) -> httpx.Response:
        """The response's head, from one of at most three addresses, all of which are checked first."""
        port = {"https": 443, "http": 80}[place.scheme] if place.port is None else place.port
        try:
            addresses = await self._resolve(place.host, port)
        except (OSError, UnicodeError) as error:
            raise FetchError(place, ": there is no such host.") from error
        if not all(self._is_allowed(address, port) for address in addresses):
            raise FetchError(place, " is refused: only ports of the web on public addresses are fetched.")
        addresses = addresses[:3]
        for number, address in enumerate(addresses, start=1):
            to_host = {"headers": {"Host": place.netloc.decode()}, "extensions": {"sni_hostname": place.host}}
            request = self._client.build_request("GET", place.copy_with(host=address), **to_host)
            try:
                return await self._client.send(request, stream=True, follow_redirects=False)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if number == len(addresses):
                    raise
        raise FetchError(place, " has no address.")

    async def _read(self, response: httpx.Response, url: str) -> tuple[bytes, str, str | None]:
        if response.status_code != 200:
            raise FetchError(url, f" answers {response.status_code} {response.reason_phrase}.")
        kind = response.headers.get("content-type", "text/html").partition(";")[0].strip().lower()
        if kind not in ("text/html", "application/xhtml+xml", "text/plain"):
            raise FetchError(url, f" is {as_written(kind)}, not a web page.")
        body = bytearray()
        async for block in response.aiter_bytes(65536):
            body += block
            if len(body) > self.config.max_page_bytes:
                raise FetchError(url, f" is larger than {self.config.max_page_bytes:,} bytes.")
        return bytes(body), kind, response.charset_encoding


def _parse(url: str, base: httpx.URL | None = None) -> httpx.URL:
    """An address, or one that a page at `base` redirects to."""
    try:
        place = base.join(url.strip()) if base else httpx.URL(url.strip())
        host = place.host
    except (httpx.InvalidURL, ValueError) as error:
        raise FetchError(url, " is no address of a web page.") from error
    if place.scheme not in ("http", "https") or not host or place.userinfo:
        raise FetchError(url, " is refused: write http(s)://host/path, without a user.")
    return place


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
    """An `Engine`, for one event loop. Raises UserError if the environment variable for the API's key is not set."""

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
        client = httpx.AsyncClient(timeout=config.timeout_s, headers=self._headers)
        self._send = partial(client.request, self.api.method, self.endpoint)
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
            triples = [(one[api.url], one.get("title"), one.get(api.snapshot)) for one in list(records)[:limit]]
            hits = [Hit(str(url), str(title or url), str(snapshot or "")) for url, title, snapshot in triples]
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
                    response = await self._send(**request)
            except (TimeoutError, httpx.HTTPError) as error:
                reason = f"does not answer ({type(error).__name__})"
            else:
                if (status := response.status_code) == 200:
                    return response
                text = " ".join(response.text.split())
                for key in self._headers.values():
                    text = text.replace(key, "***")
                text = text[:_SAID]
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
