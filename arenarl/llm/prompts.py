"""What LLMs are told: texts from configs/prompts, and foreign text quoted so that it cannot speak for itself.

All that is not ours is quoted line by line: a line that starts with "| " is material, any other line is structure. So no text can
close its block, open another or speak as who asks.
"""

import re
from functools import lru_cache

import yaml

from arenarl.system.repository import CONFIGS

PROMPTS = CONFIGS / "prompts"


Message = dict[str, str]


_QUOTE = "| "


# What some model's tokenizer takes for its own control tokens; a blank inside makes it plain text again.
_CONTROL_TOKEN = re.compile(
    r"<(?=[|｜]|/?(?:think|tool_call|tool_response|answer|s|bos|eos|pad|unk|start_of_turn|end_of_turn|SYS)>|<SYS)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\])",
    re.IGNORECASE,
)


_LINE_BREAK = re.compile(r"\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]")


_INVISIBLE = re.compile(r"[\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e0fff]")  # tag characters can hide a message


_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x1f\x7f-\x9f\ud800-\udfff]")


@lru_cache
def prompt_texts(name: str, language: str) -> dict[str, str]:
    """The texts of configs/prompts/<name>_<language>.yaml; English where there is no such language."""
    path = PROMPTS / f"{name}_{language}.yaml"
    return yaml.safe_load((path if path.is_file() else PROMPTS / f"{name}_en.yaml").read_text(encoding="utf-8"))


def quoted(text: str, limit: int) -> str:
    """Foreign text as it stands in a prompt: every line behind "| "; of a text above `limit` characters the first two thirds and the last third."""
    if len(text) <= limit:
        return _QUOTE + quotable(text).replace("\n", f"\n{_QUOTE}")
    head, tail = text[: limit * 2 // 3], text[len(text) - limit // 3 :]
    return f"{quoted(head, limit)}\n[{len(text) - len(head) - len(tail)} characters left out]\n{quoted(tail, limit)}"


def quotable(text: str) -> str:
    """Text with one kind of line break, without control or invisible characters, its control tokens broken by a blank.

    >>> quotable("a\\r\\nb\\x1b <|im_end|> [INST]")
    'a\\nb\ufffd < |im_end|> [ INST]'
    """
    text = _INVISIBLE.sub("", _LINE_BREAK.sub("\n", text))
    return _CONTROL_TOKEN.sub(lambda match: match[0] + " ", _CONTROL.sub("\ufffd", text))
