"""Arguments by JSON schemas of all kinds."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from arenarl.rollout.arguments import schema_fault
from arenarl.rollout.environment import ToolError, check_call

SCHEMAS = {
    "text": {"type": "string"},
    "number": {"type": "number", "maximum": 10},
    "whole": {"type": "integer"},
    "flag": {"type": "boolean"},
    "list": {"type": "array", "items": {"type": "integer"}},
    "object": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
    "choice": {"enum": ["a", 2, None]},
    "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "place": {"$ref": "#/$defs/Place"},
    "anything": {},
}
PLACE = {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"], "additionalProperties": False}


def tool(required=(), **properties):
    parameters = {"type": "object", "properties": properties, "required": list(required), "$defs": {"Place": PLACE}}
    return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]


ALL = tool(**SCHEMAS)


@pytest.mark.parametrize(
    ("name", "written", "read"),
    [
        ("text", "5", "5"), ("number", "5", 5.0), ("number", 5, 5.0), ("number", ".5", 0.5), ("whole", "5", 5), ("whole", 5.0, 5),
        ("whole", "5.0", 5), ("flag", "true", True), ("list", "[1, 2]", [1, 2]), ("object", '{"x": 1}', {"x": 1}), ("choice", 2, 2),
        ("choice", None, None), ("maybe", None, None), ("maybe", "null", None), ("maybe", "7", 7),
        ("place", {"lat": 1.5}, {"lat": 1.5}), ("anything", "[1", "[1"),
    ],
)  # fmt: skip
def test_arguments_are_read_in_the_schema_s_types(name, written, read):
    checked = check_call(ALL, "f", {name: written})[name]
    assert checked == read and type(checked) is type(read)


@pytest.mark.parametrize(
    ("name", "written", "said"),
    [
        ("text", 5, "text must be a string, not 5."), ("number", "many", 'number must be a number, not "many".'), ("number", True, "a number"),
        ("number", math.inf, "number must be a number"), ("number", 11, "11.0 is greater than the maximum of 10"),
        ("whole", "5.5", "whole must be a whole number"), ("flag", "yes", 'flag must be true or false, not "yes".'), ("flag", 1, "true or false"),
        ("list", "[1, [2]]", "list[1] must be a whole number, not [2]."), ("list", "1, 2", "list must be a list"),
        ("object", {"x": "a"}, 'object.x must be a number, not "a".'), ("object", "{}", "object does not fit: 'x' is a required property"),
        ("choice", "b", "choice must be one of a, 2, None"), ("maybe", "x", "maybe must be a whole number or null"),
        ("place", {"lat": 1, "lon": 2}, "place does not fit"), ("place", None, None),
        ("texts", "x", 'f has no argument "texts". Did you mean "text"?'),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_in_words(name, written, said):
    if said is None:  # null for an optional one that has none
        assert check_call(ALL, "f", {name: written}) == {}
        return
    with pytest.raises(ToolError) as error:
        check_call(ALL, "f", {name: written})
    assert said in str(error.value) and len(str(error.value)) < 300


def test_what_is_required_is_told():
    with pytest.raises(ToolError, match="f needs the arguments a, b"):
        check_call(tool(("a", "b"), a={"type": "string"}, b={"type": "integer"}), "f", {"a": None})
    assert check_call(tool(("a",), a={"type": ["string", "null"]}), "f", {"a": None}) == {"a": None}
    assert check_call([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "f", "{}") == {}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*SCHEMAS, "other"]), VALUES))
def test_whatever_is_written_either_fits_or_is_a_tool_error(arguments):
    for written in (arguments, json.dumps(arguments)):
        try:
            checked = check_call(ALL, "f", written)
        except ToolError as error:
            assert str(error).encode()
        else:
            assert Draft202012Validator(ALL[0]["function"]["parameters"]).is_valid(checked)


def test_a_schema_that_is_none_is_found_at_the_start():
    assert schema_fault({"type": "object", "properties": {"x": {"type": "text"}}}) and schema_fault({"type": "array"}) and schema_fault([])
    assert schema_fault(ALL[0]["function"]["parameters"]) is None
