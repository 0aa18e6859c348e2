"""Parse an LLM's reply: return its one JSON object as a pydantic model, or raise the reason.

Replies are never repaired, because a cut reply may end in the middle of a score. The errors go back to the LLM with the
second request, so their texts are part of the prompts.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

Parsed = TypeVar("Parsed", bound=BaseModel)

_OBJECT_BEGINS = re.compile(r'\{\s*"')


class JSONReply(BaseModel):
    """Base class of replies. The parser ignores further keys; the schema forbids them."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})


def parse_reply(text: str, reply_type: type[Parsed]) -> Parsed:
    """Return the one JSON object outside the thinking; prose and code fences around it are ignored.
    Raises ValueError, with the reason, for no object, several objects, or an object that does not fit."""
    if not text.strip():  # some servers return thinking in another field, and it may have been the whole reply
        raise ValueError("it is empty")
    try:  # a reply that is one object has no thinking, even if its strings quote such tags
        whole = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        whole = None
    objects = [whole] if isinstance(whole, dict) else list(json_objects(without_thinking(text)))
    if len(objects) != 1:
        count = f"{len(objects) or 'no'} complete JSON object{'s' * (len(objects) > 1)}"
        raise ValueError(f"it holds {count} where one was asked for")
    try:
        return reply_type.model_validate(objects[0])
    except ValidationError as error:
        problems = error.errors(include_url=False)[:3]
        lines = (f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems)
        raise ValueError("; ".join(lines)) from error


def ends_with_an_object(text: str) -> bool:
    """Return True if only the end of a code block follows the last brace.

    Otherwise the object may be a draft that the cut text withdraws.

    >>> ends_with_an_object('```json\\n{"x": 1}\\n```'), ends_with_an_object('Perhaps {"x": 1}. But')
    (True, False)
    """
    return not text.rpartition("}")[2].strip(" \t\r\n`")


def without_thinking(text: str) -> str:
    """Return the text after the last `</think>`, up to a `<think>` that is never closed."""
    return text.rpartition("</think>")[2].partition("<think>")[0]


def json_objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the outermost objects. Only the first 100 braces are tried, because each try takes time proportional to the
    text's length. Raises ValueError for an incomplete object, because later objects may be quotations or drafts."""
    decoder, start = json.JSONDecoder(object_pairs_hook=_without_repeats), text.find("{")
    for _ in range(100):
        if start < 0:
            return
        try:
            value, end = decoder.raw_decode(text, start)
            yield value
        except (ValueError, RecursionError):
            if _OBJECT_BEGINS.match(text, start):
                raise ValueError("it holds no complete JSON object where one was asked for") from None
            end = start + 1
        start = text.find("{", end)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)
