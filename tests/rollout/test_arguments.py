"""Tool arguments checked against JSON schemas of all kinds."""

import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from arenarl.rollout import arguments
from arenarl.rollout.arguments import schema_problem
from arenarl.rollout.environment import ToolError, check_call

SCHEMAS = {
    "text": {"type": "string"}, "number": {"type": "number", "maximum": 10}, "whole": {"type": "integer"},
    "flag": {"type": "boolean"}, "list": {"type": "array", "items": {"type": "integer"}},
    "object": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
    "choice": {"enum": ["a", 2, None]}, "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "place": {"$ref": "#/$defs/Place"}, "anything": {},
}  # fmt: skip
PLACE = {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]}
PLACE["additionalProperties"] = False


def tools_of(parameters):
    return [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", **parameters}}}]


def tool(required=(), **properties):
    return tools_of({"properties": properties, "required": list(required), "$defs": {"Place": PLACE}})


ALL = tool(**SCHEMAS)


@pytest.mark.parametrize(("name", "written", "read"), [
    ("text", "5", "5"), ("number", "5", 5.0), ("number", 5, 5.0), ("number", ".5", 0.5), ("whole", "5", 5),
    ("whole", 5.0, 5), ("whole", "5.0", 5), ("flag", "true", True), ("list", "[1, 2]", [1, 2]),
    ("object", '{"x": 1}', {"x": 1}), ("choice", 2, 2), ("choice", None, None), ("maybe", None, None),
    ("maybe", "null", None), ("maybe", "7", 7), ("place", {"lat": 1.5}, {"lat": 1.5}), ("anything", "[1", "[1"),
])  # fmt: skip
def test_arguments_are_read_in_the_schemas_types(name, written, read):
    checked = check_call(ALL, "f", {name: written})[name]
    assert checked == read and type(checked) is type(read)


@pytest.mark.parametrize(("name", "written", "message"), [
    ("text", 5, "text must be a string, not 5."), ("number", "many", 'number must be a number, not "many".'),
    ("number", True, "a number"), ("number", math.inf, "number must be a number"),
    ("number", 11, "11.0 is greater than the maximum of 10"), ("whole", "5.5", "whole must be a whole number"),
    ("flag", "yes", 'flag must be true or false, not "yes".'), ("flag", 1, "true or false"),
    ("list", "[1, [2]]", "list[1] must be a whole number, not [2]."), ("list", "1, 2", "list must be a list"),
    ("object", {"x": "a"}, 'object.x must be a number, not "a".'),
    ("object", "{}", "object does not fit: 'x' is a required property"),
    ("choice", "b", "choice must be one of a, 2, None"), ("maybe", "x", "maybe must be a whole number or null"),
    ("place", {"lat": 1, "lon": 2}, "place does not fit"),
    ("texts", "x", 'f has no argument "texts". Did you mean "text"?'),
])  # fmt: skip
def test_a_value_that_does_not_fit_is_described_in_words(name, written, message):
    with pytest.raises(ToolError) as error:
        check_call(ALL, "f", {name: written})
    assert message in str(error.value) and len(str(error.value)) < 300


def test_a_missing_argument_is_an_error_and_a_null_counts_as_missing_unless_the_schema_allows_it():
    with pytest.raises(ToolError, match="f needs the arguments a, b"):
        check_call(tool(("a", "b"), a={"type": "string"}, b={"type": "integer"}), "f", {"a": None})
    assert check_call(tool(("a",), a={"type": ["string", "null"]}), "f", {"a": None}) == {"a": None}
    assert check_call(ALL, "f", {"place": None}) == {}
    assert check_call(tools_of({}), "f", "{}") == {}


@pytest.mark.parametrize(("more", "takes", "refuses"), [
    ({"additionalProperties": {}}, {"z": 1}, None),
    ({"additionalProperties": {"type": "integer"}}, {"z": "5"}, {"z": "x"}),
    ({"patternProperties": {"^k": {"type": "integer"}}}, {"k1": 5}, {"k1": "x"}),
    ({"allOf": [{"properties": {"x": {"type": "integer"}}}]}, {"x": 5}, {"x": "x"}),
    ({"anyOf": [{"required": ["x"]}, {"required": ["y"]}]}, {"x": 5}, {"z": 5}),
    ({"$ref": "#/$defs/A", "$defs": {"A": {"required": ["x"]}}}, {"x": 5}, {"y": 5}),
    ({"additionalProperties": False}, {}, {"z": 1}),
    ({}, {}, {"z": 1}),
])  # fmt: skip
def test_the_schema_decides_about_arguments_beyond_its_properties(more, takes, refuses):
    assert list(check_call(tools_of(more), "f", takes)) == list(takes)
    if refuses:
        with pytest.raises(ToolError):
            check_call(tools_of(more), "f", refuses)


@pytest.mark.parametrize(("draft", "properties", "fits", "misfit", "words"), [
    ("07", {"x": {"type": "array", "items": [{"type": "number"}, {"type": "string"}]}},
     {"x": [1, "a"]}, {"x": [1, 2]}, "a string, not 2"),
    ("03", {"x": {"type": "any", "required": True}, "y": {"type": ["integer", {"type": "string"}]}},
     {"x": "5", "y": "a"}, {"y": 1}, "x"),
])  # fmt: skip
def test_a_schema_is_read_by_the_draft_that_it_names(draft, properties, fits, misfit, words):
    tools = tools_of({"$schema": f"http://json-schema.org/draft-{draft}/schema#", "properties": properties})
    assert schema_problem(tools[0]["function"]["parameters"]) is None
    assert check_call(tools, "f", fits) == fits
    with pytest.raises(ToolError, match=words):
        check_call(tools, "f", misfit)


@pytest.mark.parametrize(
    "schema", [{"enum": [f"w{n}" for n in range(999)]}, {"type": "string", "maxLength": 3}, {"not": {"type": "string"}}]
)
def test_an_error_is_short_even_for_long_values_and_schemas(schema):
    with pytest.raises(ToolError) as error:
        check_call(tool(x=schema), "f", {"x": "y" * 5000})
    assert len(str(error.value)) < 400 and ("maxLength" not in schema or "too long" in str(error.value))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*SCHEMAS, "other"]), VALUES))
def test_any_arguments_either_fit_or_raise_a_tool_error(arguments):
    for written in (arguments, json.dumps(arguments)):
        try:
            checked = check_call(ALL, "f", written)
        except ToolError as error:
            assert str(error).encode()
        else:
            assert Draft202012Validator(ALL[0]["function"]["parameters"]).is_valid(checked)


DEFINITIONS = {"Tree": {"properties": {"children": {"items": {"$ref": "#/$defs/Tree"}}}}}
CIRCLES = {"A": {"$ref": "#/$defs/A"}, "B": {"allOf": [{"oneOf": [{"$ref": "#/$defs/B"}]}]}}


@pytest.mark.parametrize(("schema", "message"), [
    ({"$ref": "#/$defs/Nope"}, "leads nowhere"), ({"$ref": "https://example.com/x.json"}, "leads nowhere"),
    ({"items": {"properties": {"y": {"$ref": "#/$defs/Nope"}}}}, "leads nowhere"),
    ({"$ref": "#/$defs/A"}, "leads back"), ({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/B"}]}, "leads back"),
    ({"$ref": "#/$defs/Tree"}, None),
    *(({key: {"$ref": "#/properties/x"}}, "leads back") for key in ("not", "if", "then", "else")),
    ({"items": {"not": {"$ref": "#/properties/x/items"}}}, "leads back"),
    ({"dependentSchemas": {"a": {"$ref": "#/properties/x"}}}, "leads back"),
    ({"$dynamicRef": "#/properties/x"}, "leads back"),
    ({"extends": {"$ref": "#/properties/x"}}, "leads back"), ({"disallow": [{"$ref": "#/properties/x"}]}, "leads back"),
    ({"type": ["string", {"$ref": "#/properties/x"}]}, "leads back"),
])  # fmt: skip
def test_unusable_references_are_found_at_the_start(schema, message):
    whole = {"type": "object", "properties": {"x": schema}}
    whole["$defs"] = DEFINITIONS | (CIRCLES if message == "leads back" else {})
    if {"extends", "disallow", "type"} & schema.keys():
        whole["$schema"] = "http://json-schema.org/draft-03/schema#"
    problem = schema_problem(whole)
    assert problem is None if message is None else message in problem


def test_an_invalid_schema_is_found_at_the_start():
    wrong = {"type": "object", "properties": {"x": {"type": "text"}}}
    assert all(map(schema_problem, (wrong, {"type": "array"}, [], {"$schema": 7})))
    assert schema_problem(ALL[0]["function"]["parameters"]) is None


CHAIN = {f"M{n}": {"anyOf": [{"$ref": f"#/$defs/M{n + 1}"}] * 2} for n in range(40)} | {"M40": {"type": "integer"}}
NESTED, DEEP, SELF = {"type": "integer"}, {"type": "integer"}, {}
for _ in range(2000):
    DEEP = {"properties": {"x": DEEP}}
for _ in range(50):
    NESTED = {"anyOf": [NESTED, NESTED]}
SELF["items"] = SELF


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("schema", [
    {"properties": {"x": {"$ref": "#/$defs/M0"}}, "$defs": CHAIN},
    {"properties": {"x": {"items": {"oneOf": [{"$ref": "#/$defs/M0"}]}}}, "$defs": CHAIN},
    {"properties": {"x": NESTED}}, {"properties": {"x": DEEP}}, {"properties": {"x": SELF}},
    {"properties": {"x": {"default": lambda: 1, "pattern": "a"}}}, {"properties": {"x": {"pattern": "("}}},
], ids=["chain", "chain in a list", "nested", "deep", "circular", "function", "pattern"])  # fmt: skip
def test_a_schema_that_no_call_can_be_checked_against_is_refused_in_time(schema, monkeypatch):
    monkeypatch.setattr(arguments, "_START_S", 1.0)
    start = time.monotonic()
    problem = schema_problem({"type": "object", **schema})
    assert problem and "\n" not in problem and time.monotonic() - start < 15


def test_arguments_that_take_too_long_to_check_are_an_error_and_the_next_call_works(monkeypatch):
    for more in ({"properties": {"x": {"pattern": "^(a+)+$"}}}, {"patternProperties": {"^(a|a)*$": {"minimum": 3}}}):
        schema = {"type": "object", **more}
        assert schema_problem(schema) is None
        slow = {"x": "a" * 60 + "b"} if "properties" in more else {"a" * 60 + "b": 5}
        with monkeypatch.context() as patch, pytest.raises(ToolError, match=r"cannot .* these arguments within 0\.3 s"):
            patch.setattr(arguments, "_CALL_S", 0.3)
            check_call(tools_of(schema), "f", slow)
        with pytest.raises(ToolError, match="does not fit"):
            check_call(tools_of(schema), "f", {"x": "b"} if "properties" in more else {"aa": 1})
        assert check_call(tools_of(schema), "f", {"x": "aa"} if "properties" in more else {"b": "x"})


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from(sorted(SCHEMAS)), VALUES))
def test_a_worker_and_this_process_read_the_same_arguments(given):
    outcomes = []
    for read in (arguments.read_arguments, arguments._read_arguments):
        try:
            outcomes.append(read(given, ALL[0]["function"]["parameters"]))
        except arguments.Misfit as misfit:
            outcomes.append((misfit.place, str(misfit)))
    assert repr(outcomes[0]) == repr(outcomes[1])
