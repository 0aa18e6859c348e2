"""Reads an LLM's reply: the one JSON object that was asked for, as a pydantic model,
or an error that says what is wrong with it.

Nothing is repaired or guessed: a reply cut short may end in the middle of a score.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

Parsed = TypeVar("Parsed", bound=BaseModel)

_OBJECT_BEGINS = re.compile(r'\{\s*"')


class JSONReply(BaseModel):
    """Whatever else a reply holds is ignored, but a server that keeps to schemas shall not write it."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})


def parse_reply(text: str, reply_type: type[Parsed]) -> Parsed:
    """Return the one JSON object in a reply, its thinking left out; prose and code fences around it do no harm.
    Raises ValueError for no object, several, or one that does not fit; says why. A reply is never repaired."""
    if not text.strip():  # all of it may have been thinking, which some servers put elsewhere
        raise ValueError("it is empty")
    try:  # a reply that is one object and nothing else holds no thinking, whatever tags its strings quote
        whole = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        whole = None
    found = [whole] if isinstance(whole, dict) else list(json_objects(without_thinking(text)))
    if len(found) != 1:
        objects = f"{len(found) or 'no'} complete JSON object{'s' * (len(found) > 1)}"
        raise ValueError(f"it holds {objects} where one was asked for")
    try:
        return reply_type.model_validate(found[0])
    except ValidationError as error:
        problems = error.errors(include_url=False)[:3]
        words = (f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems)
        raise ValueError("; ".join(words)) from error


def ends_with_an_object(text: str) -> bool:
    """Whether nothing but the end of a code block stands behind the last brace:
    what a cut reply goes on to say may take its draft back.

    >>> ends_with_an_object('```json\\n{"x": 1}\\n```'), ends_with_an_object('Perhaps {"x": 1}. But')
    (True, False)
    """
    return not text.rpartition("}")[2].strip(" \t\r\n`")


def without_thinking(text: str) -> str:
    """What a reply says behind its thinking, and before any that begins and does not end."""
    return text.rpartition("</think>")[2].partition("<think>")[0]


def json_objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the outermost objects. Only the first hundred braces are tried: each costs time in the length of the text.
    Raises ValueError if an object begins that cannot be read to its end: what follows may be a quotation or a draft."""
    decoder, start = json.JSONDecoder(object_pairs_hook=_without_repeats), text.find("{")
    for _ in range(100):
        if start < 0:
            return
        try:
            found, end = decoder.raw_decode(text, start)
            yield found
        except (ValueError, RecursionError):
            if _OBJECT_BEGINS.match(text, start):
                raise ValueError("it holds no complete JSON object where one was asked for") from None
            end = start + 1
        start = text.find("{", end)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)
