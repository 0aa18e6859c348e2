"""Untrusted text: JSON with a nesting limit, control tokens and lone surrogates removed, language detection."""

import json
import re
import unicodedata
from typing import Any

_CONTROL = re.compile(r"<(?=\||/?(?:think|tool_call|tool_response|answer)>)")
_WORD = re.compile(r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff]+")
_JSON_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)

MAX_NESTING = 64  # depth of brackets in a tool call
MAX_RECORD_NESTING = 100  # depth of brackets in a record that holds tool calls


def harmless(observation: str) -> str:
    """Break Qwen3's control tokens and our tags in an observation by a blank after "<".

    Tool results are untrusted: a web page with whole control tokens could end its own message and pose as the policy.
    Broken tokens are safe for every tokenizer, and the judge reads the same text as the policy.
    """
    return storable(_CONTROL.sub("< ", observation))


def storable(text: str) -> str:
    """Replace lone surrogates by "?". JSON escapes can contain them; files and tokenizers cannot."""
    return text.encode("utf-8", "replace").decode()


def storable_json(value: Any) -> Any:
    """Return a parsed JSON value with `storable` texts.

    >>> storable_json(json.loads('{"\\\\ud83d": ["\\\\ud83d\\\\ude00", 1]}'))
    {'?': ['😀', 1]}
    """
    text = json.dumps(value, ensure_ascii=False)
    return value if (clean := storable(text)) == text else json.loads(clean)


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case; each Chinese character is a word.

    >>> words_of("Jade Park, 公园")
    ['jade', 'park', '公', '园']
    """
    return _WORD.findall(text.lower())


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens: 4 ASCII characters, or 1.5 other characters, per token.

    >>> estimate_tokens("Find a park."), estimate_tokens("找一个公园")
    (3, 3)
    """
    ascii_count = len(text.encode("ascii", "ignore"))
    return round(ascii_count / 4 + (len(text) - ascii_count) / 1.5)


def is_blank(text: str) -> bool:
    """Return True for a text without a visible character: blanks, control and format characters only.

    >>> is_blank(" \\u3000\\u200b\\n"), is_blank("x")
    (True, False)
    """
    return not any(character.isprintable() and not character.isspace() for character in text)


def text_of(content: Any) -> str:
    """Return the text of an API message's content: a string, a list of parts, or None.

    >>> text_of("a"), text_of([{"type": "text", "text": "a"}, {"type": "image_url"}]), text_of(None)
    ('a', 'a', '')
    """
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        content = "".join(text for text in texts if isinstance(text, str))
    return storable(content) if isinstance(content, str) else ""


def parse_json(text: str, nesting: int = MAX_NESTING) -> Any:
    """Parse untrusted JSON. Raises ValueError if it is malformed or its brackets nest deeper than `nesting`.

    The brackets are counted before parsing, so no reader or writer of the value recurses deeper.

    >>> parse_json('{"x": ["[[["]}', nesting=2)
    {'x': ['[[[']}
    """
    depth = 0
    for bracket in re.findall(r"[][{}]", _JSON_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > nesting:
            raise ValueError(f"more than {nesting} brackets stand within each other")
    return json.loads(text)


def json_problem(error: ValueError) -> str:
    """Return what `parse_json` found wrong, with the character instead of the JSON parser's own line and column."""
    return f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)


def text_key(text: str) -> str:
    """Return a key that all spellings of a text share: the text in Unicode's composed form, lower case, single spaces.

    >>> text_key("A  Cafe\\u0301?") == text_key("a café?")
    True
    """
    return " ".join(composed(text).lower().split())


def composed(text: str) -> str:
    """Return the text in Unicode's form NFC, in which an accented letter is one character."""
    return unicodedata.normalize("NFC", text)


def language_of(text: str) -> str:
    """Return "zh" if at least a tenth of the characters are Chinese, else "en".

    >>> language_of("请找一家餐厅"), language_of("Find hot pot near 天府 Square")
    ('zh', 'en')
    """
    chinese = sum("\u4e00" <= character <= "\u9fff" for character in text)
    return "zh" if 10 * chinese >= max(len(text), 1) else "en"
