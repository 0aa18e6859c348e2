"""One attempt at an OpenAI-compatible API: send the request, read the completion, say what an error means.

Gateways send HTML, errors, event streams, nothing or half a completion with status 200, and vLLM what it has of a
reply that is aborted. Whatever is no whole completion is a `NoCompletion` with its reason, which the client counts and
tries again; a completion whose usage cannot be believed is kept, its tokens unknown.
"""

import asyncio
import email.utils
import json
import math
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from arenarl.config.schema import LLMConfig
from arenarl.system.errors import UserError
from arenarl.system.user_input import first_problem
from arenarl.trajectory import storable, text_of

if TYPE_CHECKING:
    import openai

OPENAI_URL = "https://api.openai.com/v1"
# finish reasons of a reply that the server did not bring to its end: vLLM's, SGLang's, gateways'
_BROKEN_OFF = ("abort", "error")
_MOST_TOKENS = 10_000_000  # that a model reads or writes in one call: a larger count is none
_MOST_WORDS = 500  # characters of an API's error that are shown
_SHORTEST_KEY = 8  # characters; a shorter one, such as EMPTY for a server of one's own, may be a word of a reply
_PROXIES = "mend or unset HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY and SSL_CERT_FILE"
# vLLM's, OpenAI's and others' words for a prompt that is too long: no status says it
_TOO_LONG = re.compile(r"context.length|max_model_len|too long|maximum.{0,40}tokens", re.IGNORECASE)
_REPLY_FORMAT = re.compile(r"response_?format|json_schema|json_object")


class NoCompletion(ValueError):
    """A reply with status 200 that is no chat completion; `tokens` (in, out) if it was billed all the same."""

    def __init__(self, reason: str, tokens: tuple[int, int] | None = None):
        super().__init__(reason)
        self.tokens = tokens


@dataclass(frozen=True)
class Completion:
    """The first choice; `tokens` (in, out) as billed, None where the API does not say, or says what cannot be."""

    message: dict[str, Any]
    finish_reason: Any
    model: str | None
    tokens: tuple[int, int] | None

    def text(self) -> str:
        """The message's text alone."""
        return text_of(self.message.get("content"))

    def whole_message(self) -> str:
        """The message as JSON, with `finish_reason`. Raises NoCompletion if its tool calls are none."""
        try:
            _ToolCalls.model_validate(self.message)
        except ValidationError as error:
            raise NoCompletion(first_problem(error), self.tokens) from None
        return json.dumps({"finish_reason": self.finish_reason, **self.message})


class Transport:
    """Sends requests to the APIs of any number of LLMs. `keys` by the name of their environment variable."""

    def __init__(self, keys: dict[str, str]):
        import openai  # only here: it takes a second, and most runs ask no LLM

        self.openai, self.keys = openai, keys
        self._apis: dict[tuple[str, str | None], openai.AsyncOpenAI] = {}

    async def send(self, llm: LLMConfig, request: dict[str, Any]) -> Completion:
        """Make one attempt. Raises TimeoutError, NoCompletion, and whatever the SDK raises."""
        async with asyncio.timeout(llm.timeout_s):
            response = await self._api(llm).chat.completions.with_raw_response.create(**request)
        return read_completion(response.content)

    def without_keys(self, text: str) -> str:
        """Redact API keys: an API may repeat one in an error, and in a reply too."""
        for key in self.keys.values():
            text = text.replace(key, "***") if len(key) >= _SHORTEST_KEY else text
        return text

    def in_words(self, error: Exception) -> str:
        """What an error says, without keys."""
        if isinstance(error, TimeoutError):
            return "no reply in time"
        cause = f" ({error.__cause__!r})" if error.__cause__ else ""  # a connection error alone says nothing
        return self.without_keys(f"{type(error).__name__}: {error}{cause}")

    def explain(self, llm: LLMConfig, error: Exception) -> str:
        """What an attempt's error says, and what to change where the error tells."""
        return self.in_words(error)[:_MOST_WORDS] + _remedy(llm, error)

    def _api(self, llm: LLMConfig) -> "openai.AsyncOpenAI":
        url, variable = endpoint = (llm.base_url or OPENAI_URL, llm.api_key_variable)
        if endpoint not in self._apis:
            try:
                http = self.openai.DefaultAsyncHttpxClient(follow_redirects=False, event_hooks={"response": [_as_utf8]})
            except Exception as error:  # socks:// without its package, a port or certificates that are not there
                raise UserError(f"no connection to {url} can be made: {self.in_words(error)}; {_PROXIES}") from error
            self._apis[endpoint] = self.openai.AsyncOpenAI(
                base_url=url, api_key=self.keys.get(variable, "none"), max_retries=0, timeout=None, http_client=http
            )
        return self._apis[endpoint]


def _remedy(llm: LLMConfig, error: Exception) -> str:
    status, words = getattr(error, "status_code", None), str(error)
    if isinstance(error, TimeoutError):
        return f"; raise timeout_s={llm.timeout_s:g}, or lower judge.concurrency"
    if status == 404:
        return "; set model to a name that the API serves, base_url to its address"
    if status in (401, 403) and llm.api_key_variable:
        return f"; set {llm.api_key_variable} to a key that may ask this model"
    if status in (400, 422) and _REPLY_FORMAT.search(words):
        return "; set reply_format to json_object or none"
    if status in (400, 413, 422) and _TOO_LONG.search(words):
        shown = "what a prompt shows (a judge's max_result_chars, max_text_chars)"
        return f"; lower max_reply_tokens or {shown}, or serve with a larger --max-model-len"
    return ""


def asked_pause(retry_after: str | None) -> float:
    """Seconds that a server asks for, by their number or by a date; 0 for what is neither."""
    try:
        seconds = float(retry_after or 0)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


async def _as_utf8(response: Any) -> None:
    """Whatever charset a server names: some raise, and some take time in the square of a text's length."""
    response.encoding = "utf-8"


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class _Message(_Strict):
    content: str | list[dict[str, Any]] | None = None


class _Choice(_Strict):
    message: _Message


class _Choices(_Strict):
    choices: Annotated[list[Any], Field(min_length=1)]


class _Billed(_Strict):
    prompt_tokens: Annotated[int, Field(gt=0, le=_MOST_TOKENS)]
    completion_tokens: Annotated[int, Field(ge=0, le=_MOST_TOKENS)]
    total_tokens: Any = None


class _Called(_Strict):
    id: str | None = None
    function: dict[str, Any] | None = None


class _ToolCalls(_Strict):
    tool_calls: list[_Called] | None = None


def read_completion(body: bytes) -> Completion:
    """Raises NoCompletion.

    >>> read_completion(b'{"choices": [{"message": {"content": "yes"}}], "usage": {"prompt_tokens": -9}}')
    Completion(message={'content': 'yes'}, finish_reason=None, model=None, tokens=None)
    """
    try:
        reply = json.loads(storable(json.dumps(json.loads(body), ensure_ascii=False)))
    except (ValueError, RecursionError):
        raise NoCompletion(_reason(body, "no JSON")) from None
    tokens = _tokens(reply)
    try:
        choice = _Choices.model_validate(reply).choices[0]
        _Choice.model_validate(choice)
    except ValidationError as error:
        raise NoCompletion(_reason(body, first_problem(error)), tokens) from None
    if (finish := choice.get("finish_reason")) in _BROKEN_OFF:
        raise NoCompletion(f"status 200, but the server broke the reply off (finish_reason {finish})", tokens)
    model = reply.get("model")
    return Completion(choice["message"], finish, model if isinstance(model, str) else None, tokens)


def _tokens(reply: Any) -> tuple[int, int] | None:
    """Gemini and Grok bill thinking as reply, but count it in the total alone, not in `completion_tokens`."""
    try:
        usage = _Billed.model_validate(reply.get("usage") if isinstance(reply, dict) else None)
    except ValidationError:
        return None
    beyond_prompt = usage.total_tokens - usage.prompt_tokens if type(usage.total_tokens) is int else 0
    has_thinking = usage.completion_tokens < beyond_prompt <= _MOST_TOKENS
    return usage.prompt_tokens, beyond_prompt if has_thinking else usage.completion_tokens


def _reason(body: bytes, problem: str) -> str:
    shown = body[:100].decode("utf-8", "replace")
    return f"status 200, but no chat completion ({problem}): {shown!r}; base_url may not be that of the API"
