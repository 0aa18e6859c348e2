"""Make one attempt at an OpenAI-compatible API: send the request, parse the completion, explain errors.

With status 200, gateways may send HTML, errors, event streams, nothing or half a completion; vLLM sends the start of an
aborted reply. Anything but a complete completion raises `NoCompletion`, which the client counts and retries. A
completion with an impossible token count is kept, with unknown tokens.
"""

import asyncio
import email.utils
import json
import math
import re
import time
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from arenarl.config.schema import LLMConfig
from arenarl.system.errors import UserError
from arenarl.system.masking import mask, replace_values
from arenarl.system.user_input import first_problem
from arenarl.trajectory import storable, text_of

if TYPE_CHECKING:
    import openai

OPENAI_URL = "https://api.openai.com/v1"
_ABORTED = ("abort", "error")  # finish reasons of an unfinished reply: from vLLM, SGLang and gateways
_MAX_TOKENS = 10_000_000  # read or written in one call; a larger count is not believed
_MAX_ERROR_CHARS = 500  # shown of an API's error
_PROXIES = "correct or unset HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY and SSL_CERT_FILE"
# phrases of vLLM, OpenAI and others for a prompt that is too long, which has no status of its own
_TOO_LONG = re.compile(r"context.length|max_model_len|too long|maximum.{0,40}tokens", re.IGNORECASE)
_REPLY_FORMAT = re.compile(r"response_?format|json_schema|json_object")


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
        except ValidationError as error:
            raise NoCompletion(first_problem(error), self.tokens) from None
        return json.dumps({"finish_reason": self.finish_reason, **self.message})


class Transport:
    """Sends requests to the APIs of any number of LLMs. `keys` maps environment variables to API keys."""

    def __init__(self, keys: dict[str, str]):
        import openai  # imported late: it takes a second, and most runs call no LLM

        self.openai, self.keys = openai, keys
        self._apis: dict[tuple[str, str | None], openai.AsyncOpenAI] = {}

    async def send(self, llm: LLMConfig, request: dict[str, Any]) -> Completion:
        """Make one attempt. Raises TimeoutError, NoCompletion, and the errors of the SDK."""
        async with asyncio.timeout(llm.timeout_s):
            response = await self._api(llm).chat.completions.with_raw_response.create(**request)
        return read_completion(response.content)

    def without_keys(self, text: str) -> str:
        """Redact API keys, which an API may repeat in errors and replies."""
        return replace_values(text, dict.fromkeys(self.keys.values(), "***"))

    def describe(self, error: Exception) -> str:
        """Return the error as text, without API keys."""
        if isinstance(error, TimeoutError):
            return "no reply in time"
        cause = f" ({error.__cause__!r})" if error.__cause__ else ""  # a connection error alone has no details
        return mask(self.without_keys(f"{type(error).__name__}: {error}{cause}"))

    def explain(self, llm: LLMConfig, error: Exception) -> str:
        """Return the error of an attempt as text, with the key to change if the error implies one."""
        return self.describe(error)[:_MAX_ERROR_CHARS] + _remedy(llm, error)

    def _api(self, llm: LLMConfig) -> "openai.AsyncOpenAI":
        url, variable = endpoint = (llm.base_url or OPENAI_URL, llm.api_key_variable)
        if endpoint not in self._apis:
            try:
                http = self.openai.DefaultAsyncHttpxClient(follow_redirects=False, event_hooks={"response": [_as_utf8]})
            except Exception as error:  # socks:// without its package, a wrong port, missing certificates
                raise UserError(f"cannot open a connection to {url}: {self.describe(error)}; {_PROXIES}") from error
            self._apis[endpoint] = self.openai.AsyncOpenAI(
                base_url=url, api_key=self.keys.get(variable, "none"), max_retries=0, timeout=None, http_client=http
            )
        return self._apis[endpoint]


def _remedy(llm: LLMConfig, error: Exception) -> str:
    status, text = getattr(error, "status_code", None), str(error)
    if status not in (400, 401, 422, 429) and (host := _proxied_host(llm)):
        return f"; the call goes through the proxy of HTTP_PROXY, HTTPS_PROXY or ALL_PROXY: add {host} to NO_PROXY"
    if isinstance(error, TimeoutError):
        return f"; raise timeout_s={llm.timeout_s:g}, or lower judge.concurrency"
    if status == 404:
        return "; set model to a name that the API serves, and base_url to its address"
    if status in (401, 403) and llm.api_key_variable:
        return f"; set {llm.api_key_variable} to a key with access to this model"
    if status in (400, 422) and _REPLY_FORMAT.search(text):
        return "; set reply_format to json_object or none"
    if status in (400, 413, 422) and _TOO_LONG.search(text):
        keys = "max_reply_tokens or a judge's max_result_chars or max_text_chars"
        return f"; lower {keys}, or serve with a larger --max-model-len"
    return ""


def _proxied_host(llm: LLMConfig) -> str | None:
    """Return the host of an LLM in the local network whose calls go through a proxy, otherwise None."""
    parts = urlsplit(llm.base_url or OPENAI_URL)
    host, proxies = parts.hostname or "", getproxies()
    try:
        is_local = not ip_address(host).is_global
    except ValueError:
        is_local = "." not in host or host.endswith((".local", ".internal", ".lan"))
    return host if is_local and {parts.scheme, "all"} & proxies.keys() and not proxy_bypass(host) else None


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


async def _as_utf8(response: Any) -> None:
    """Ignore the server's charset: some charsets raise, and some need quadratic time."""
    response.encoding = "utf-8"


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
        reply = json.loads(storable(json.dumps(json.loads(body), ensure_ascii=False)))
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
