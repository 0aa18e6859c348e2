"""YAML values are read as written, and hostile text is refused at once in one line."""

import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from arenarl.config.command_line import as_overrides
from arenarl.config.load import _read_override
from arenarl.system.yaml_text import MAX_DEPTH, MAX_VALUES, read_yaml, write_yaml

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20) | st.from_regex(
    r"[-+.\d_:eExobyYnNtTfF~=<*&!#%@ ]{1,8}", fullmatch=True
)
NUMBERS = st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))


@pytest.mark.parametrize("text", [
    "12:30:45", "010", "0x1f", "1_000", "+5", "-0", "1٣", "yes", "no", "on", "y", "2026-01-01", "=", "0o7", "9" * 5000,
])  # fmt: skip
def test_text_that_yaml_1_1_would_convert_stays_text(text):
    assert read_yaml(text) == text
    assert read_yaml(f"{{{text}: {text}}}" if len(text) < 1000 else f"x: {text}") in ({text: text}, {"x": text})


@pytest.mark.parametrize(("text", "value"), [
    ("2e-5", 2e-5), ("-3", -3), ("1.", 1.0), (".5", 0.5), ("1.5E+3", 1500.0), ("True", True), ("~", None),
    ("-.inf", -math.inf), ("1", 1), ("1E-3", 1e-3),
])  # fmt: skip
def test_numbers_booleans_and_null_are_read(text, value):
    assert read_yaml(text) == value and type(read_yaml(text)) is type(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("&a [*a]", "*a is inside its own anchor"), ("a: &x {b: [*x]}", "*x is inside its own anchor"),
        ("[" * 900, f"more than {MAX_DEPTH} deep"), ("[" * 900 + "]" * 900, "deep"), ("{a: " * 900, "deep"),
        ("- " * 900, "deep"), ("[" * 200_000, "deep"), (BOMB, f"{MAX_VALUES} values"),
        (f"[{'1,' * 200_000}]", "values"), ("a: 1\nb: 2\na: 3", "line 3: 'a' is named twice"),
        ("{a: {x: 1, x: 2}}", "named twice"), ("!!python/object/apply:os.system [ls]", "tags"),
        ("!!int 12:30:45", "tags"), ("[a]: b", "as a key"), ('"\\ud800"', "Unicode"), ("\0", "#x0000"),
        ("*nobody", "nobody"), ("a: [1", "line 1"), ("--- a\n--- b", "another document"), ("<<: 5", "merging"),
    ],
)  # fmt: skip
def test_unreadable_text_is_refused_in_one_line_at_once(text, reason):
    with pytest.raises(ValueError) as caught:
        read_yaml(text)  # a text that is refused too late would exhaust memory
    message = str(caught.value)
    assert reason in message and "\n" not in message and len(message) < 300


def test_aliases_and_merged_mappings_are_read():
    assert read_yaml("{a: &n 5, *n : 6}") == {"a": 5, "5": 6}
    first = {"x": 1, "2": "y"}
    assert read_yaml("a: &a {x: 1, 2: y}\nb: {<<: *a, x: 3}\nc: *a") == {"a": first, "b": first | {"x": 3}, "c": first}


@settings(max_examples=60)
@given(VALUES)
def test_written_values_read_back_here_in_yaml_1_1_and_as_an_override(value):
    text = write_yaml(value)
    assert read_yaml(text) == yaml.safe_load(text) == value
    assert _read_override(as_overrides({"a.b": value})[0]) == {"a": {"b": value}}


@settings(max_examples=300)
@given(st.text(st.sampled_from("[]{}&*!|>-:,?#%@'\"\\ \n\ta1<~"), max_size=30) | st.text(max_size=20))
def test_any_text_is_read_or_refused_in_one_line(text):
    try:
        read_yaml(text)
    except ValueError as error:
        assert "\n" not in str(error)
