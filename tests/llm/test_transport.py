"""Completions and invalid replies: everything that a gateway may send with status 200."""

import json
import random

import pytest
from hostile import NO_COMPLETION, completion_of, mutated
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from arenarl.llm.transport import NoCompletion, read_completion

SIMPLE = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON = st.recursive(SIMPLE, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


def read(reply):
    return read_completion(json.dumps(reply).encode())


@pytest.mark.parametrize("name", NO_COMPLETION)
def test_the_error_of_an_invalid_completion_is_one_line_with_its_start(name):
    with pytest.raises(NoCompletion, match="^status 200, but no chat completion") as caught:
        read_completion(NO_COMPLETION[name])
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 700


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_aborted_reply_is_not_a_completion(reason):
    reply = completion_of()
    reply["choices"][0]["finish_reason"] = reason
    with pytest.raises(NoCompletion, match=f"aborted the reply .finish_reason {reason}") as caught:
        read(reply)
    assert caught.value.tokens == (1000, 10)


def check(body):
    """Check that the body raises NoCompletion, or gives a completion with valid parts."""
    try:
        completion = read_completion(body)
    except NoCompletion:
        return
    assert isinstance(completion.message, dict) and isinstance(completion.message.get("content"), str | list | None)
    assert completion.tokens is None or (0 < completion.tokens[0] <= 10**7 and 0 <= completion.tokens[1] <= 10**7)
    json.dumps([completion.message, completion.model], ensure_ascii=False).encode()


@seed(0)
@settings(max_examples=50, deadline=None)
@given(JSON.map(lambda value: json.dumps(value).encode()) | st.binary())
def test_any_bytes_are_a_completion_or_raise_no_completion(body):
    check(body)


def test_any_mutated_completion_is_a_completion_or_raises_no_completion():
    rng = random.Random(0)
    for _ in range(3000):
        check(json.dumps(mutated(rng, completion_of())).encode())


def test_a_completion_with_impossible_usage_has_unknown_tokens():
    counts = [
        (None, None), ("5", "5"), (-5, 5), (5, -5), (10**30, 5), (5, 10**8), (float("nan"), 5), (True, 5), (0, 0),
        (5.5, 5), ([], {}),
    ]  # fmt: skip
    usages = [{"prompt_tokens": tokens_in, "completion_tokens": tokens_out} for tokens_in, tokens_out in counts]
    for usage in (None, {}, [], 7, "many", {"prompt_tokens": 5}, *usages):
        assert read(completion_of(usage=usage)).tokens is None
    assert read(completion_of()).tokens == (1000, 10)


def test_a_model_that_is_not_a_string_is_unknown():
    assert read(completion_of(model={"name": "m"})).model is None and read(completion_of(model="m\ud800")).model == "m?"


@pytest.mark.parametrize(("total", "billed"), [
    (1010, 10), (9000, 8000), (None, 10), (5, 10), (-1, 10), (10**30, 10), ("9000", 10), (True, 10), (9000.0, 10),
])  # fmt: skip
def test_thinking_that_only_the_total_includes_is_billed(total, billed):
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": total}
    assert read(completion_of(usage=usage)).tokens == (1000, billed)
