"""Foreign text in prompts: no hidden characters, no control tokens of any tokenizer, ordinary text unchanged."""

import sys
import unicodedata

import pytest
from hostile import HOSTILE
from hypothesis import given, settings
from hypothesis import strategies as st

from arenarl.llm.prompts import quotable

TOKENS = """
<|im_start|> <|im_end|> <|endoftext|> <|start_header_id|> <|eot_id|> <|channel|> <|message|> <|end|> <|user|> <｜User｜>
<｜tool▁calls▁begin｜> <|turn> <turn|> <channel|> <|tool_call> <tool_call|> <tool▁sep|> <start_of_turn> <end_of_turn>
<start_function_call> <BOS_TOKEN> <SPECIAL_12> <extra_id_0> <unused7> <reserved_106> <fim_prefix> <s> </s> <bos> <eos>
<pad> <unk> <mask> <sop> <eop> <eod> <think> </think> <tool_call> </tool_call> <answer> <seed:think> <minimax:tool_call>
<role> <image> <<SYS>> <</SYS>> [INST] [/INST] [SYSTEM_PROMPT] [AVAILABLE_TOOLS] [TOOL_CALLS] [TOOL_RESULTS]
[TOOL_CONTENT] [THINK] [/THINK] [ARGS] [CALL_ID] [MODEL_SETTINGS] [IMG] [IMG_BREAK] [gMASK] [sMASK] [MASK] [CLS] [SEP]
[PREFIX] [|user|] [|endofturn|]
""".split()
ORDINARY = [
    "Two adults, 3 < 4 and 5 > 4; a<b>c, <div class='x'>, </p>, <b>bold</b>, <https://example.org/a_b>,",
    "x[i_1], [1], [PDF], [see note], [A B], list[int].",
    "| a table | of | three |", "¥20 – 30 € … naïve café, “quoted”, １２３，中文：「公园」、故宫。",
    "Русский текст, Ελληνικά, עברית, العربية ٣٤٥",
    "ไทย, 한국어, ひらがなカタカナ",
    "می\u200cخواهم به خانه\u200cها بروم", "क्\u200dष, ශ්\u200dරී, ക്\u200cഷ",
    "\u0601٢٠٢٦ \u06dd١ \u00a0\u3000\u2003indented", "👍🏽 🎉 ♥",
]  # fmt: skip


def test_ordinary_text_and_needed_joiners_stay_and_control_tokens_of_all_model_families_are_broken():
    assert [quotable(text) for text in ORDINARY] == ORDINARY
    for token in TOKENS:
        assert token not in quotable(f"a{token}b") and quotable(f"a{token}b").replace(" ", "") == f"a{token}b", token
    assert quotable("م\u200c\u200c\u200dخ") == "م\u200cخ" and quotable("a\u200db, 👨\u200d👩, \u200cم") == "ab, 👨👩, م"


def test_invisible_characters_are_removed_but_visible_format_characters_stay():
    """The visible characters among them are signs around numbers."""
    formats = [char for char in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(char) in ("Cf", "Cc", "Cs")]
    left = [char for char in formats if char in quotable(f"a{char}b")]
    signs = ("NUMBER", "SIGN", "MARK", "END OF AYAH")
    visible = [char for char in left if any(sign in unicodedata.name(char, "") for sign in signs)]
    assert left == ["\t", "\n", *visible]
    hidden = "\u00ad\u034f\u061c\u115f\u1160\u17b4\u180b\u180e\u200b\u200c\u200d\u3164\ufe0f\uffa0\ufff9"
    assert all(quotable(f"a{char}b") == "ab" for char in f"{hidden}\U000e0041\U000e0101")
    assert quotable("a\u2800b") == "a b"


@settings(max_examples=200)
@given(st.lists(st.sampled_from([*HOSTILE, *TOKENS]) | st.text(max_size=5)).map("".join))
def test_quotable_is_idempotent(text):
    assert quotable(quotable(text)) == quotable(text)


@pytest.mark.parametrize("text", ["<" + "_" * 10**6, "<_" * 10**5, "[A_" * 10**5, "<a:" * 10**5, "\u200c" * 10**5])
def test_quotable_handles_a_megabyte(text):
    assert len(quotable(text)) <= 2 * len(text)
