"""Make one attempt at an OpenAI-compatible API: send the request, parse the completion, explain errors.

With status 200, gateways may send HTML, errors, event streams, nothing or half a completion; vLLM sends the start of an
aborted reply. Anything but a complete completion raises `NoCompletion`, which the client counts and retries. A
completion with an impossible token count is kept, with unknown tokens. Proxies and certificates come from the
environment, as for other programs.
"""

import asyncio
import email.utils
import json
import math
import os
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import certifi
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from arenarl.config.schema import LLMConfig
from arenarl.system.errors import UserError, raise_open_file_limit
from arenarl.system.masking import mask, replace_values
from arenarl.system.user_input import first_problem
from arenarl.trajectory import storable, storable_json, text_of

if TYPE_CHECKING:
    import aiohttp

OPENAI_URL = "https://api.openai.com/v1"
_ABORTED = ("abort", "error")  # finish reasons of an unfinished reply: from vLLM, SGLang and gateways
_MAX_TOKENS = 10_000_000  # read or written in one call; a larger count is not believed
_MAX_ERROR_CHARS = 500  # shown of an API's error
_MAX_READ_CHARS = 20_000  # read of an API's error; more than are shown, because secrets are cut out first
_ERROR_NAMES = {
    400: "BadRequestError", 401: "AuthenticationError", 403: "PermissionDeniedError", 404: "NotFoundError",
    409: "ConflictError", 422: "UnprocessableEntityError", 429: "RateLimitError",
}  # fmt: skip
_ACCOUNT = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}  # header -> variable
_MAX_BYTES = 64 * 2**20  # of a reply
_MAX_HEADER_BYTES = 2**16
KEEP_ALIVE_S = 4.0  # below the 5 s after which uvicorn, and so vLLM, closes an idle connection
_SSL_OBJECT = re.compile(r" ssl:<ssl\.SSLContext object at 0x[0-9a-f]+>")  # in aiohttp's errors, also for http
# phrases of vLLM, OpenAI and others for a prompt that is too long, which has no status of its own
_TOO_LONG = re.compile(r"context.length|max_model_len|too long|maximum.{0,40}tokens", re.IGNORECASE)
_SURROGATE = re.compile(rb"\\u[dD]|\xed|\0")  # bytes of every JSON text that holds one, in any encoding
_REPLY_FORMAT = re.compile(r"response_?format|json_schema|json_object")


class APIConnectionError(Exception):
    """An attempt without a reply: no connection, a connection that broke, or a reply that violates HTTP."""


class APIStatusError(Exception):
    """A reply with a status that is not 2xx. The error's text contains the API's message, `code` its code."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes):
        try:
            reply = json.loads(body)
        except (ValueError, RecursionError):
            reply = None
        details = reply.get("error", reply) if isinstance(reply, dict) else None
        details = details if isinstance(details, dict) else {}
        name = _ERROR_NAMES.get(status, "InternalServerError" if status >= 500 else "APIStatusError")
        message = details.get("message")
        message = f" - {message[:_MAX_READ_CHARS]}" if isinstance(message, str) and message else ""
        super().__init__(f"{name}: Error code: {status}{message}")
        self.status, self.headers, self.code = status, headers, details.get("code")


class NoCompletion(ValueError):
    """A reply with status 200 that is not a chat completion. `tokens` is (in, out) if it was billed, else None."""

    def __init__(self, reason: str, tokens: tuple[int, int] | None = None):
        super().__init__(reason)
        self.tokens = tokens


@dataclass(frozen=True)
class Completion:
    """The first choice of a chat completion. `tokens` is (in, out) as billed, None if missing or impossible.
    `tokens_cached` of them were read from the API's cache."""

    message: dict[str, Any]
    finish_reason: Any
    model: str | None
    tokens: tuple[int, int] | None
    tokens_cached: int = 0

    def text(self) -> str:
        """Return the text of the message."""
        return text_of(self.message.get("content"))

    def whole_message(self) -> str:
        """Return the message as JSON, with `finish_reason`. Raises NoCompletion for malformed tool calls."""
        try:
            _ToolCalls.model_validate(self.message)
            return json.dumps({"finish_reason": self.finish_reason, **self.message})
        except ValidationError as error:
            raise NoCompletion(first_problem(error), self.tokens) from None
        except RecursionError:
            raise NoCompletion("the message is nested too deeply", self.tokens) from None


class Transport:
    """Sends requests to the APIs of any number of LLMs. `keys` maps environment variables to API keys."""

    def __init__(self, keys: dict[str, str]):
        import aiohttp  # imported late: it takes a fifth of a second, and most runs call no LLM

        self._aiohttp, self.keys = aiohttp, keys
        self._session: aiohttp.ClientSession | None = None
        self._requests: dict[tuple[str, str | None], dict[str, Any]] = {}

    async def send(self, llm: LLMConfig, request: dict[str, Any]) -> Completion:
        """Make one attempt. Raises TimeoutError, NoCompletion, APIConnectionError and APIStatusError; UserError for a
        wrong proxy or certificate, and PydanticSerializationError for a request with a lone surrogate."""
        fields = {name: value for name, value in request.items() if name != "extra_body"}
        fields |= request.get("extra_body") or {}
        body = to_json(fields)
        session, options = self._connections(), self._options(llm)
        try:
            async with asyncio.timeout(llm.timeout_s), session.post(data=body, **options) as response:
                reply = await _read(response)
        except (TimeoutError, NoCompletion):
            raise
        except (self._aiohttp.ClientError, OSError, ValueError) as error:
            raise APIConnectionError(_SSL_OBJECT.sub("", str(error)) or type(error).__name__) from error
        if not 200 <= response.status < 300:
            raise APIStatusError(response.status, response.headers, reply)
        return read_completion(reply)

    async def close(self) -> None:
        """Close all connections. Call it in the event loop of `send`."""
        if self._session:
            await self._session.close()

    def without_keys(self, text: str) -> str:
        """Redact API keys, which an API may repeat in errors and replies."""
        return replace_values(text, dict.fromkeys(self.keys.values(), "***"))

    def describe(self, error: Exception) -> str:
        """Return the error as text that a file can hold, without API keys. A long text loses its end."""
        if isinstance(error, TimeoutError):
            return "no reply in time"
        text = str(error) if isinstance(error, APIStatusError) else f"{type(error).__name__}: {error}"
        text = mask(self.without_keys(storable(text[:_MAX_READ_CHARS])))
        return text[: _MAX_READ_CHARS // 2]  # the end may be the beginning of a key

    def explain(self, llm: LLMConfig, error: Exception) -> str:
        """Return the error of an attempt as text, with the key to change if the error implies one."""
        return self.describe(error)[:_MAX_ERROR_CHARS] + _remedy(llm, error)

    def _connections(self) -> "aiohttp.ClientSession":
        """Return the connections to all APIs. They belong to the event loop of the first call."""
        if self._session is None:
            raise_open_file_limit()
            self._session = self._aiohttp.ClientSession(
                connector=self._aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
                timeout=self._aiohttp.ClientTimeout(),  # none: `send` limits the whole attempt
                headers={"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "arenarl"},
                max_line_size=_MAX_HEADER_BYTES,
                max_field_size=_MAX_HEADER_BYTES,
            )
        return self._session

    def _options(self, llm: LLMConfig) -> dict[str, Any]:
        """Return address, headers, proxy and certificates of an API's requests."""
        url, variable = endpoint = (llm.base_url or OPENAI_URL, llm.api_key_variable)
        if endpoint not in self._requests:
            account = {header: os.environ.get(name) for header, name in _ACCOUNT.items() if url == OPENAI_URL}
            headers = {"Authorization": f"Bearer {self.keys.get(variable, 'none')}"}
            headers |= {header: value for header, value in account.items() if value}
            self._requests[endpoint] = {
                "url": f"{url.rstrip('/')}/chat/completions",
                "headers": headers,
                "proxy": _proxy_of(url),
                "ssl": _certificates() if urlsplit(url).scheme == "https" or os.environ.get("SSL_CERT_FILE") else True,
                "allow_redirects": False,
            }
        return self._requests[endpoint]


async def _read(response: "aiohttp.ClientResponse") -> bytes:
    blocks, size = [], 0
    async for block in response.content.iter_any():
        blocks.append(block)
        size += len(block)
        if size > _MAX_BYTES:
            raise NoCompletion(f"the reply is larger than {_MAX_BYTES:,} bytes")
    return b"".join(blocks)


def _certificates() -> ssl.SSLContext:
    """Trust the certificates of SSL_CERT_FILE, or of SSL_CERT_DIR, or else of the system and of certifi."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the default context refuses certificates of many companies
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if not (file or folder):
        context.load_default_certs()
        file = certifi.where()
    try:
        context.load_verify_locations(file or None, None if file else folder)
    except OSError as error:
        raise UserError(f"cannot read SSL_CERT_FILE={file}: {error}; correct or unset it") from error
    return context


def _remedy(llm: LLMConfig, error: Exception) -> str:
    status, text = getattr(error, "status", None), str(error)
    if status not in (400, 401, 422, 429) and (host := _proxied_host(llm)):
        return f"; the call goes through the proxy of HTTP_PROXY, HTTPS_PROXY or ALL_PROXY: add {host} to NO_PROXY"
    if isinstance(error, TimeoutError):
        return f"; raise timeout_s={llm.timeout_s:g}, or lower judge.concurrency"
    if status == 404:
        return "; set model to a name that the API serves, and base_url to its address"
    if status in (401, 403):
        if llm.api_key_variable:
            return f"; set {llm.api_key_variable} to a key with access to this model"
        return "; set api_key_variable to the environment variable that holds the key"
    if status in (400, 422) and _REPLY_FORMAT.search(text):
        return "; set reply_format to json_object or none"
    if status in (400, 413, 422) and _TOO_LONG.search(text):
        keys = "max_reply_tokens or a judge's max_result_chars or max_text_chars"
        return f"; lower {keys}, or serve with a larger --max-model-len"
    return ""


def _proxied_host(llm: LLMConfig) -> str | None:
    """Return the host of an LLM in the local network whose calls go through a proxy, otherwise None."""
    url = llm.base_url or OPENAI_URL
    host = urlsplit(url).hostname or ""
    try:
        is_local = not ip_address(host).is_global
    except ValueError:
        is_local = "." not in host or host.endswith((".local", ".internal", ".lan"))
    return host if is_local and _proxy_of(url) else None


def _proxy_of(url: str) -> str | None:
    """Return the proxy for an address, or None. Raises UserError for a wrong variable, even if no proxy is needed."""
    parts, proxies = urlsplit(url), {}
    for scheme, proxy in getproxies().items():
        if scheme in ("http", "https", "all"):
            proxies[scheme] = proxy = proxy if "://" in proxy else f"http://{proxy}"
            try:
                is_sound = urlsplit(proxy).scheme in ("http", "https") and urlsplit(proxy).port != 0
            except ValueError:
                is_sound = False
            if not is_sound:
                raise UserError(f"{scheme.upper()}_PROXY is not the address of an HTTP proxy; correct or unset it")
    is_direct = any(map(proxy_bypass, (parts.hostname or "", parts.netloc)))  # NO_PROXY may name a port
    is_direct = is_direct or "*" in re.split(r"[\s,]+", getproxies().get("no", ""))
    return None if is_direct else proxies.get(parts.scheme) or proxies.get("all")


def retry_after_s(retry_after: str | None) -> float:
    """Return the seconds of a Retry-After header, a number or a date; 0 for anything else."""
    try:
        seconds = float(retry_after or 0)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class _Message(_Strict):
    content: str | list[dict[str, Any]] | None = None


class _Choice(_Strict):
    message: _Message


class _Choices(_Strict):
    choices: Annotated[list[Any], Field(min_length=1)]


class _BilledUsage(_Strict):
    prompt_tokens: Annotated[int, Field(gt=0, le=_MAX_TOKENS)]
    completion_tokens: Annotated[int, Field(ge=0, le=_MAX_TOKENS)]
    total_tokens: Any = None


class _ToolCall(_Strict):
    id: str | None = None
    function: dict[str, Any] | None = None


class _ToolCalls(_Strict):
    tool_calls: list[_ToolCall] | None = None


def read_completion(body: bytes) -> Completion:
    """Parse the body of a reply with status 200. Raises NoCompletion for anything but a complete chat completion.

    >>> read_completion(b'{"choices": [{"message": {"content": "yes"}}], "usage": {"prompt_tokens": -9}}')
    Completion(message={'content': 'yes'}, finish_reason=None, model=None, tokens=None, tokens_cached=0)
    """
    try:
        reply = json.loads(body)
        if _SURROGATE.search(body):
            reply = storable_json(reply)
    except (ValueError, RecursionError):
        raise NoCompletion(_reason(body, "not JSON")) from None
    tokens = _tokens(reply)
    try:
        choice = _Choices.model_validate(reply).choices[0]
        _Choice.model_validate(choice)
    except ValidationError as error:
        raise NoCompletion(_reason(body, first_problem(error)), tokens) from None
    if (finish := choice.get("finish_reason")) in _ABORTED:
        raise NoCompletion(f"status 200, but the server aborted the reply (finish_reason {finish})", tokens)
    model = reply.get("model")
    model = model if isinstance(model, str) else None
    return Completion(choice["message"], finish, model, tokens, _cached(reply) if tokens else 0)


def _tokens(reply: Any) -> tuple[int, int] | None:
    """Return the billed (in, out), with thinking: Gemini and Grok count it only in `total_tokens`."""
    try:
        usage = _BilledUsage.model_validate(reply.get("usage") if isinstance(reply, dict) else None)
    except ValidationError:
        return None
    beyond_prompt = usage.total_tokens - usage.prompt_tokens if type(usage.total_tokens) is int else 0
    has_thinking = usage.completion_tokens < beyond_prompt <= _MAX_TOKENS
    return usage.prompt_tokens, beyond_prompt if has_thinking else usage.completion_tokens


def _cached(reply: dict[str, Any]) -> int:
    """Return the prompt tokens that the API read from its cache; 0 for a missing or impossible count."""
    details = reply["usage"].get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if type(cached) is int and 0 <= cached <= reply["usage"]["prompt_tokens"] else 0


def _reason(body: bytes, problem: str) -> str:
    start = body[:100].decode("utf-8", "replace")
    return f"status 200, but no chat completion ({problem}): {start!r}; check that base_url is the address of the API"
