"""The web as an engine: a search API finds pages, and `Fetcher` fetches them, never from this machine or its network.

The API's address comes from the config and may be on this machine (a SearXNG of your own). InfoAgent uses Google, then
Brave and Bing if Google finds nothing (B.1); here one API is used.

A policy may fetch any address, so fetching is guarded. A host name is resolved once, all its addresses are checked, and
the connection goes to a checked address. Each redirect is checked like the first address. Time, size, number of
redirects and parsing are bounded. System proxies are not used, because they would resolve the name a second time.
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
from arenarl.domains.research.pages import Hit, Page, decode, paragraphs, read_html_in_worker
from arenarl.llm.client import RunStopped
from arenarl.rollout.environment import ToolError, as_written
from arenarl.system.errors import UserError
from arenarl.system.masking import replace_values
from arenarl.system.progress import share_of
from arenarl.system.workers import WorkerLost
from arenarl.trajectory import MAX_RECORD_NESTING, parse_json

_ATTEMPTS = 3
_LONGEST_PAUSE_S = 10.0
_REFUSES_ALL = (401, 402, 403)  # the key or the account is refused, so every query would be refused
# Brave's message about a key (status 422) and Serper's about an account (status 400)
_REFUSED = re.compile(r"TOKEN_INVALID|not enough credits", re.IGNORECASE)
_MAX_ERROR_CHARS = 200  # quoted from an API's error message
PORTS = (80, 443, 8080, 8443)
MAX_REDIRECTS = 5
_TRANSLATED = ip_network("64:ff9b::/96")  # IPv4 addresses behind a NAT64 gateway
_UNICAST = ip_network("2000::/3")  # all global unicast addresses of IPv6
# addresses without public pages that `is_global` accepts in some Python versions: Azure's internal services, protocol
# assignments with Oracle's metadata, relays of 6to4, documentation
_BLOCKED = [ip_network(block) for block in ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "3fff::/20")]
_HEADERS = {"User-Agent": "arenarl-research/1.0", "Accept": "text/html, text/plain;q=0.9", "Accept-Encoding": "gzip"}

Allow = Callable[[str, int], bool]  # (address, port) → True if it may be fetched
Resolve = Callable[[str, int], Awaitable[list[str]]]  # (host, port) → its addresses


class FetchError(ToolError):
    """Error for a page that cannot be fetched; the message is its address followed by `reason`."""

    def __init__(self, url: str | httpx.URL, reason: str):
        super().__init__(as_written(str(url)) + reason)


def is_public(address: str, port: int) -> bool:
    """Return True for a web port at an address of the public internet.

    >>> [is_public(address, 80) for address in ("8.8.8.8", "127.0.0.1", "::ffff:10.0.0.1", "169.254.169.254")]
    [True, False, False, False]
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    return port in PORTS and all(
        target.is_global
        and not (target.is_multicast or target.is_reserved or any(target in network for network in _BLOCKED))
        and (target.version == 4 or target in _UNICAST)
        for target in _targets(ip)
    )


def _targets(ip: IPv4Address | IPv6Address) -> list[IPv4Address | IPv6Address]:
    """Return the IPv4 addresses that an IPv6 address contains; otherwise the address itself."""
    if ip.version == 4:
        return [ip]
    if ip in _TRANSLATED:
        return [IPv4Address(int(ip) & 0xFFFFFFFF)]
    embedded = [inner for inner in (ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())) if inner is not None]
    return embedded or [ip]


async def resolve(host: str, port: int) -> list[str]:
    """Return a host's addresses, IPv4 first. Numbers are read as in the C library: 2130706433 is 127.0.0.1."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    infos.sort(key=lambda info: info[0] != socket.AF_INET)
    return list(dict.fromkeys(address[0] for *_, address in infos))


class Fetcher:
    """`await fetcher.fetch(url)` → the page, or FetchError. Tests pass an `is_allowed` that accepts localhost."""

    def __init__(self, config: WebConfig, is_allowed: Allow = is_public, resolve: Resolve = resolve):
        self.config, self._is_allowed, self._resolve = config, is_allowed, resolve
        self._client = httpx.AsyncClient(
            trust_env=False, timeout=config.timeout_s, headers=_HEADERS,
            limits=httpx.Limits(max_keepalive_connections=0),  # a kept connection could serve another host name
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # stores no cookies
        )  # fmt: skip
        self._slots = asyncio.Semaphore(share_of(config.concurrency))

    async def fetch(self, url: str) -> Page:
        async with self._slots:
            try:
                async with asyncio.timeout(self.config.timeout_s):
                    body, kind, charset = await self._get(url)
            except TimeoutError as error:
                raise FetchError(url, f" did not answer within {self.config.timeout_s:g} s.") from error
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:  # ValueError: a malformed redirect
                raise FetchError(url, f" could not be read ({type(error).__name__}: {str(error)[:100]}).") from error
        if kind == "text/plain":
            text = decode(body, charset)
            return Page(url, url, paragraphs(text if isinstance(text, str) else text.decode("utf-8-sig", "replace")))
        try:
            page = await read_html_in_worker(body, url, charset, self.config.timeout_s)
        except WorkerLost as error:
            limits = f"longer than {self.config.timeout_s:g} s, or too much memory"
            raise FetchError(url, f" could not be parsed: it took {limits}.") from error
        if page is None:
            raise FetchError(url, " has no main text.")
        return page

    async def _get(self, url: str) -> tuple[bytes, str, str | None]:
        """Return body, media type and the server's charset."""
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
        """Check all addresses of the host, try at most three, and return the response before its body is read."""
        port = {"https": 443, "http": 80}[place.scheme] if place.port is None else place.port
        try:
            addresses = await self._resolve(place.host, port)
        except (OSError, UnicodeError) as error:
            raise FetchError(place, ": there is no such host.") from error
        if not all(self._is_allowed(address, port) for address in addresses):
            raise FetchError(place, " is refused: only ports of the web on public addresses are fetched.")
        addresses = addresses[:3]
        for number, address in enumerate(addresses, start=1):
            headers, extensions = {"Host": place.netloc.decode()}, {"sni_hostname": place.host}
            url = place.copy_with(host=address)
            request = self._client.build_request("GET", url, headers=headers, extensions=extensions)
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
    """Parse and check an address; a redirect's is relative to `base`."""
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
    """Format of a search API: `path` leads to the list of results; `url` and `snapshot` are fields of a result."""

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
    """An `Engine` on a search API, for one event loop. Raises UserError if the API's key is not in the environment."""

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
        """Raises RunStopped if the API refuses the key or the account, and ToolError for other failures."""
        api = self.api
        parameters = {"q": query, **dict(api.parameters), **self.config.parameters}
        async with self._slots:
            response = await self._request({"json" if api.method == "POST" else "params": parameters})
        try:
            reply = records = parse_json(response.text, MAX_RECORD_NESTING)
            for name in api.path:
                records = records.get(name) or {}
            records = list(records)[:limit]
            triples = [(record[api.url], record.get("title"), record.get(api.snapshot)) for record in records]
            hits = [Hit(str(url), str(title or url), str(snapshot or "")) for url, title, snapshot in triples]
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise ToolError("the search engine's reply could not be read.") from error
        # SearXNG's sources have blocked it, so its empty reply says nothing about the pages
        if not hits and reply.get("unresponsive_engines"):
            raise ToolError("the engines that the search engine asks do not answer.")
        return hits

    async def _request(self, request: dict[str, Any]) -> httpx.Response:
        """Send a request; retry timeouts, 429, 5xx and refusals, because Brave withdraws some refusals."""
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
                text = replace_values(" ".join(response.text.split()), dict.fromkeys(self._headers.values(), "***"))
                text = text[:_MAX_ERROR_CHARS]
                reason = f"answers {status}" + (f": {text}" if text else "")
                with suppress(ValueError):  # retry-after may be a date
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
