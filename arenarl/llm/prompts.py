"""Parts of prompts: texts (system/prompt_files.py), and safe quoting of foreign text.

Foreign text is quoted line by line: a line that starts with "| " is material, any other line is structure. So no text
can close its block, open another block, or imitate instructions.
"""

import re
import unicodedata
from collections.abc import Sequence

from arenarl.system.prompt_files import fill as fill
from arenarl.system.prompt_files import prompt_texts as prompt_texts

Message = dict[str, str]
QUOTE = "| "
_GAP = re.compile(r"\[\d+ characters left out\]")
# Text that some tokenizer reads as a control token; an inserted blank makes it plain text again. Forms: a bar at either
# end of a tag (<|im_end|>, <turn|>, [|user|]), a tag with an underscore (<end_of_turn>, [TOOL_CALLS]), and known words
# in brackets.
_CONTROL_TOKEN = re.compile(
    r"<(?=[|｜]|/?[\w▁:-]{1,40}[|｜]>|/?[a-zA-Z\d▁:-]{0,40}_[\w▁:-]{0,40}>|<SYS"
    r"|/?(?i:\w{1,20}:)?(?i:think|answer|role|image|mask|s|bos|eos|pad|unk|cls|sep|sop|eop|eo[adhmt]|SYS|unused\d+)>)"
    r"|\[(?=[|｜]|/?(?i:INST|THINK|ARGS|IMG|[gs]?MASK|CLS|SEP|PAD|UNK|BOS|EOS|PREFIX|MIDDLE|SUFFIX)\]"
    r"|/?[A-Z\d]{1,40}_[A-Z\d_]{0,40}\])"
)
_LINE_BREAK = re.compile(r"\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]")
# Invisible characters, which can hide a message: Unicode's Default_Ignorable_Code_Point and all other format characters
# (Cf), except the visible signs around Arabic, Syriac and Kaithi numbers.
_INVISIBLE = re.compile(
    r"[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0"
    r"\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_JOINERS = "\u200c\u200d"
_BLANK = "\u2800"  # a Braille cell without dots; Unicode does not count it as a blank
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x1f\x7f-\x9f\ud800-\udfff]")


def quoted(text: str, limit: int) -> str:
    """Quote foreign text for a prompt: every line starts with "| ".
    A text above `limit` characters keeps its first 2/3 and its last 1/3 of the limit."""
    if len(text) <= limit:
        return QUOTE + quotable(text).replace("\n", f"\n{QUOTE}")
    head, tail = text[: limit * 2 // 3], text[len(text) - limit // 3 :]
    return f"{quoted(head, limit)}\n[{len(text) - len(head) - len(tail)} characters left out]\n{quoted(tail, limit)}"


def unquoted(lines: Sequence[str]) -> list[str]:
    """Return the lines without their quote marks. Raises ValueError for a line that is not quoted."""
    if wrong := [line for line in lines if not line.startswith(QUOTE) and not _GAP.fullmatch(line)]:
        raise ValueError(f"line is not quoted: {wrong[0][:80]!r}")
    return [line.removeprefix(QUOTE) for line in lines]


def sections_of(prompt: str, heading: re.Pattern) -> dict[str, list[str]]:
    """Return the lines below each heading, keyed by the first group of the pattern.

    Raises ValueError for a repeated heading and for a line above the first heading.

    >>> sections_of("# Query\\n| q\\n# Task\\nx\\n# y", re.compile("# (Query|Task)"))
    {'Query': ['| q'], 'Task': ['x', '# y']}
    """
    sections: dict[str, list[str]] = {}
    for line in prompt.split("\n"):
        if match := heading.fullmatch(line):
            if match[1] in sections:
                raise ValueError(f"repeated heading: {line}")
            lines = sections[match[1]] = []
        elif not sections:
            raise ValueError(f"line above the first heading: {line[:80]!r}")
        else:
            lines.append(line)
    return sections


def quotable(text: str) -> str:
    """Clean a text: one kind of line break, no control or invisible characters, control tokens broken by a blank.

    Joiners stay where spelling needs them: in Arabic script and after an Indic virama.

    >>> quotable("a\\r\\nb\\x1b <|im_end|> [INST]")
    'a\\nb\ufffd < |im_end|> [ INST]'
    """
    text = _INVISIBLE.sub(_joiner, _LINE_BREAK.sub("\n", text)).replace(_BLANK, " ")
    return _CONTROL_TOKEN.sub(lambda match: match[0] + " ", _CONTROL.sub("\ufffd", text))


def _joiner(match: re.Match) -> str:
    """Return a joiner that the spelling needs, and "" for any other invisible character."""
    before = match.string[match.start() - 1 : match.start()]
    is_joined = before and (unicodedata.bidirectional(before) == "AL" or unicodedata.combining(before) == 9)
    return match[0] if match[0] in _JOINERS and is_joined else ""
