"""Whatever a value holds, its text is JSON by the standard, and finite values come back as they were."""

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from arenarl.system.atomic_files import to_json, write_json, write_lines

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


def strict(text):
    """As a browser reads it: Python alone takes NaN and Infinity for JSON."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(VALUES)
def test_any_value_is_written_as_json_and_only_what_json_lacks_is_null(value):
    def expected(value):
        if isinstance(value, dict):
            return {key: expected(item) for key, item in value.items()}
        if isinstance(value, list):
            return [expected(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    assert strict(to_json(value)) == strict(to_json(value, indent=2)) == expected(value)


def test_files_hold_strict_json(tmp_path):
    call = json.loads('{"arguments": {"x": NaN, "y": [1e999, -Infinity], "z": 1.5}}')
    write_lines(tmp_path / "t.jsonl", [call, (1.0, call)])
    write_json(tmp_path / "t.json", call)
    kept = {"arguments": {"x": None, "y": [None, None], "z": 1.5}}
    assert [strict(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()] == [kept, [1.0, kept]]
    assert strict((tmp_path / "t.json").read_text()) == kept
