"""Requests to LLMs: the body, the reply's format, and the second prompt after a reply that does not parse."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from arenarl.config.schema import LLMConfig
from arenarl.llm.json_reply import ends_with_an_object
from arenarl.llm.reply_store import StoredReply
from arenarl.llm.transport import OPENAI_URL

Message = dict[str, Any]
Messages = Sequence[Message]
Read = TypeVar("Read")
Reader = Callable[[str], Read]  # raises ValueError


@dataclass(frozen=True)
class Call(Generic[Read]):
    """A call. `read` parses the reply's text, `retry` is the second prompt, `fields` are further fields of the request.

    A reply that used all of `max_reply_tokens` may lack its end. It still counts if it ends with a JSON object, unless
    `must_be_whole` is set.
    """

    llm: LLMConfig
    messages: Messages
    read: Reader[Read]
    retry: str
    fields: dict[str, Any] = field(default_factory=dict)
    must_be_whole: bool = False

    def request(self, conversation: Messages) -> dict[str, Any]:
        return chat_request(self.llm, conversation, self.llm.max_reply_tokens, self.llm.temperature, **self.fields)

    def is_cut(self, reply: StoredReply) -> bool:
        return (reply.tokens_out or 0) >= self.llm.max_reply_tokens

    def parse(self, reply: StoredReply) -> Read:
        """Return the parsed reply. Raises ValueError if the reply is cut off or has the wrong form."""
        is_cut = self.is_cut(reply)
        if is_cut and self.must_be_whole:
            raise ValueError("it is cut off")
        parsed = self.read(reply.text)
        if is_cut and not ends_with_an_object(reply.text):
            raise ValueError("it is cut off")
        return parsed

    def retry_messages(self, reply: StoredReply, problem: ValueError) -> list[Message]:
        """Return the messages of the second request: the messages of the first, the wrong reply, and the problem."""
        text = reply.text[:4000] if reply.text.strip() else "(nothing)"  # Anthropic's API refuses an empty message
        retry = self.retry.format(error=problem)
        return [*self.messages, {"role": "assistant", "content": text}, {"role": "user", "content": retry}]


def chat_request(
    llm: LLMConfig, messages: Messages, max_tokens: int, temperature: float | None, **fields: Any
) -> dict[str, Any]:
    """Return the body of a chat completion request. A temperature of null is left out."""
    request = {"model": llm.model, "messages": list(messages), llm.token_limit_name: max_tokens, **fields}
    if llm.temperature is not None:
        request["temperature"] = temperature
    if llm.extra_body:
        request["extra_body"] = llm.extra_body
    return request


def probe_request(llm: LLMConfig) -> dict[str, Any]:
    """Return the request of a short prompt, which any LLM can answer."""
    messages = [{"role": "user", "content": "Answer with one word: yes."}]
    return chat_request(llm, messages, llm.max_reply_tokens, llm.temperature)


def target(llm: LLMConfig) -> tuple[str, str]:
    """Return (address, model) of the LLM."""
    return llm.base_url or OPENAI_URL, llm.model


@lru_cache
def reply_format(name: str, reply_type: type[BaseModel]) -> dict[str, Any]:
    """Return the request fields that enforce the format of the reply. `name` is `LLMConfig.reply_format`."""
    if name == "json_object":
        return {"response_format": {"type": "json_object"}}
    if name == "json_schema":
        schema = {"name": reply_type.__name__, "strict": True, "schema": reply_type.model_json_schema()}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {}
