"""Reads what an API replied with status 200: the first choice's message, and what was billed for it.

Gateways send HTML, errors, event streams, nothing or half a completion with that status, and vLLM what it has of a
reply that is aborted. Whatever is no whole completion is a `NoCompletion` with its reason, which the client counts and
tries again; a completion whose usage cannot be believed is kept, its tokens unknown.
"""

import json
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from arenarl.system.user_input import first_problem
from arenarl.trajectory import storable

# finish reasons of a reply that the server did not bring to its end: vLLM's, SGLang's, gateways'
_BROKEN_OFF = ("abort", "error")
_MOST_TOKENS = 10_000_000  # that a model reads or writes in one call: a larger count is none


class NoCompletion(ValueError):
    """A reply with status 200 that is no chat completion; `tokens` (in, out)
    if it says that it was billed all the same."""

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


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class _Message(_Strict):
    content: str | list[dict[str, Any]] | None = None


class _Choice(_Strict):
    message: _Message


class _Choices(_Strict):
    choices: Annotated[list[Any], Field(min_length=1)]


class _Usage(_Strict):
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
        said = json.loads(storable(json.dumps(json.loads(body), ensure_ascii=False)))
    except (ValueError, RecursionError):
        raise NoCompletion(_reason(body, "no JSON")) from None
    tokens = _tokens(said)
    try:
        choice = _Choices.model_validate(said).choices[0]
        _Choice.model_validate(choice)
    except ValidationError as error:
        raise NoCompletion(_reason(body, first_problem(error)), tokens) from None
    if (finish := choice.get("finish_reason")) in _BROKEN_OFF:
        raise NoCompletion(f"status 200, but the server broke the reply off (finish_reason {finish})", tokens)
    model = said.get("model")
    return Completion(choice["message"], finish, model if isinstance(model, str) else None, tokens)


def check_tool_calls(completion: Completion) -> None:
    """Raises NoCompletion if the message's tool calls are none: for those who read them."""
    try:
        _ToolCalls.model_validate(completion.message)
    except ValidationError as error:
        raise NoCompletion(first_problem(error), completion.tokens) from None


def _tokens(said: Any) -> tuple[int, int] | None:
    """Gemini and Grok leave the thinking, which they bill as what they reply,
    out of `completion_tokens`: the total alone has it."""
    try:
        usage = _Usage.model_validate(said.get("usage") if isinstance(said, dict) else None)
    except ValidationError:
        return None
    beyond_prompt = usage.total_tokens - usage.prompt_tokens if type(usage.total_tokens) is int else 0
    return (
        usage.prompt_tokens,
        beyond_prompt if usage.completion_tokens < beyond_prompt <= _MOST_TOKENS else usage.completion_tokens,
    )


def _reason(body: bytes, problem: str) -> str:
    return (
        f"status 200, but no chat completion ({problem}): {body[:100].decode('utf-8', 'replace')!r}; "
        "base_url may not be that of the API"
    )
