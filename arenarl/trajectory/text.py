"""Texts that others wrote: JSON with a limit on its nesting, text that files and tokenizers can hold, languages."""

import json
import re
from typing import Any

_CONTROL = re.compile(r"<(?=\||/?(?:think|tool_call|tool_response|answer)>)")
_JSON_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)

MAX_NESTING = 64  # brackets within brackets of a tool call. A record that holds one may have MAX_RECORD_NESTING
MAX_RECORD_NESTING = 100


def harmless(observation: str) -> str:
    """An observation with Qwen3's control tokens and our tags, if it spells any, broken by a blank after "<".

    Tool results are untrusted: left whole, they would be tokenised as the real thing, and a web page could end its own
    message and speak as the policy. Breaking the text works for every tokenizer, and the judge reads what the policy
    read.
    """
    return storable(_CONTROL.sub("< ", observation))


def storable(text: str) -> str:
    """The text without lone surrogates, which JSON escapes can spell and neither files nor tokenizers can hold."""
    return text.encode("utf-8", "replace").decode()


def text_of(content: Any) -> str:
    """The text of an API's message, which is a string, a list of parts, or nothing.

    >>> text_of("a"), text_of([{"type": "text", "text": "a"}, {"type": "image_url"}]), text_of(None)
    ('a', 'a', '')
    """
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        content = "".join(text for text in texts if isinstance(text, str))
    return storable(content) if isinstance(content, str) else ""


def parse_json(text: str, nesting: int = MAX_NESTING) -> Any:
    """What a JSON text of unknown origin holds. Raises ValueError where it is none,
    or has more brackets within brackets than `nesting`.

    Brackets are counted first, so that nothing that reads or writes the value recurses deeper than that.

    >>> parse_json('{"x": ["[[["]}', nesting=2)
    {'x': ['[[[']}
    """
    depth = 0
    for bracket in re.findall(r"[][{}]", _JSON_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > nesting:
            raise ValueError(f"more than {nesting} brackets stand within each other")
    return json.loads(text)


def same_query(text: str) -> str:
    """What two queries have in common that count as one: the text, whatever its case and spacing."""
    return " ".join(text.lower().split())


def language_of(text: str) -> str:
    """zh where Chinese characters are a tenth of it or more.

    >>> language_of("请找一家餐厅"), language_of("Find hot pot near 天府 Square")
    ('zh', 'en')
    """
    chinese = sum("\u4e00" <= character <= "\u9fff" for character in text)
    return "zh" if 10 * chinese >= max(len(text), 1) else "en"
