"""The grammar of turns, untrusted JSON and observations, and JSONL records."""

import json
import random
import time
from dataclasses import asdict
from itertools import pairwise
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arenarl.synthesis.near_duplicates import shingles
from arenarl.system.errors import UserError
from arenarl.trajectory import (
    MAX_NESTING,
    Query,
    ToolCall,
    Trajectory,
    answer_text,
    append_step,
    assistant_message,
    assistant_text,
    native_call,
    native_calls,
    parse_json,
    parse_turn,
    prompt_messages,
    read_jsonl,
    read_queries,
    read_steps,
    read_trajectories,
    read_turns,
    text_key,
    tool_message,
    write_jsonl,
)

QUERY = Query("q1", "travel", "Search", "zh", "找一家安静的咖啡馆", {"city": "Wuhan"})
FORMS = ("NFC", "NFD")  # of Unicode
AWKWARD = [
    "荷花博物馆", 'a "quoted" \\ word', "two\nlines", "tab\t", "{}", '{"name": "f"}', "<answer>", "</think>",
    "¥20 – 09:00", "😀", "", " ",
]  # fmt: skip
CALL, BROKEN = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', "<tool_call>\n{broken\n</tool_call>"
F, MALFORMED = ToolCall("f", {"x": 1}), ToolCall("", "{broken")


def random_value(rng, depth=2):
    plain = [rng.choice(AWKWARD), rng.randint(-(10**12), 10**12), rng.uniform(-200, 200), rng.random() < 0.5, None]
    kind = rng.randrange(8 if depth else 6)
    if kind == 7:
        return {rng.choice(AWKWARD): random_value(rng, depth - 1) for _ in range(rng.randrange(3))}
    return [random_value(rng, depth - 1) for _ in range(rng.randrange(3))] if kind == 6 else rng.choice(plain)


def random_turn(rng):
    thought = "\n".join(rng.sample(["想一想", 'say "no"', "{x}", "a < b", "", "<tool_call>"], rng.randrange(4)))
    message = {"role": "assistant", "reasoning_content": thought, "content": ""}
    if rng.random() < 0.3:
        return message | {"content": f"<answer>\n{rng.choice(AWKWARD[:4])}\n</answer>"}
    names = ["search_poi", "搜索", "f", 'a "b" \\ c\n']
    functions = [
        {"name": rng.choice(names), "arguments": {k: random_value(rng) for k in rng.sample(AWKWARD, 3)}}
        for _ in range(rng.randint(1, 3))
    ]
    return message | {"tool_calls": [{"type": "function", "function": function} for function in functions]}


def test_a_well_formed_turn_survives_text_and_back():
    for number in range(100):
        message = random_turn(random.Random(number))
        text = assistant_text(message)
        assert assistant_message(text) == message and assistant_text(assistant_message(text)) == text


def test_a_turn_has_the_form_of_qwen3():
    function = {"type": "function", "function": {"name": "search_poi", "arguments": {"query": "荷花"}}}
    message = {"role": "assistant", "reasoning_content": "先查", "content": "", "tool_calls": [function] * 2}
    call = '<tool_call>\n{"name": "search_poi", "arguments": {"query": "荷花"}}\n</tool_call>'
    assert assistant_text(message) == f"<think>\n先查\n</think>\n\n{call}\n{call}"


@pytest.mark.parametrize(("raw", "name"), [
    ('{"name": "f", "arguments": {"x": 1}', ""), ('{"name": "f", "arguments": "x"}', "f"),
    ('{"name": "f", "arguments": [1]}', "f"), ('{"name": "f"}', "f"), ('{"name": 3, "arguments": {}}', ""),
    ('{"arguments": {}}', ""), ('["f"]', ""), ("null", ""), ("f(x=1)", ""), ("", ""), ("[" * 100_000, ""),
    *((f'{{"name": "f", "arguments": {{"x": {number}}}}}', "")
      for number in ("9" * 5000, "NaN", "Infinity", "-Infinity", "1e999", '[1, {"a": -1e999}]')),
], ids=range(17))  # fmt: skip
def test_a_malformed_call_stays_in_the_text_and_becomes_a_call_with_a_string(raw, name):
    """NaN and Infinity are malformed too, as only Python's JSON has them."""
    text = f"<think>\nhm\n</think>\n\n<tool_call>\n{raw}\n</tool_call>"
    message = assistant_message(text)
    assert "tool_calls" not in message and message["content"] == f"<tool_call>\n{raw}\n</tool_call>"
    assert assistant_text(message) == text and parse_turn(message).tool_calls == [ToolCall(name, raw)]
    assert native_call("f", '{"x": NaN}') == ToolCall("f", '{"x": NaN}')


@pytest.mark.parametrize(("body", "answer", "calls"), [
    ("<answer>\nhere\n</answer>", "here", []), ("<answer></answer>", None, []), ("<answer>\n \n</answer>", None, []),
    ("<answer>\nhere", None, []), ("here</answer>", None, []), ("here", None, []), ("", None, []),
    ("<answer>a</answer> more", None, []), ("So: <answer>a</answer>", None, []),
    ("<answer>a</answer>\n<answer>b</answer>", None, []), (f"<answer>\nhere {CALL}\n</answer>", None, [F]),
    (f"{CALL}\n<answer>a</answer>", None, [F]), (f"<answer>a</answer>\n{CALL}", None, [F]),
    (f"{BROKEN}\n<answer>a</answer>", None, [MALFORMED]), (f"<answer>a</answer>\n{BROKEN}", None, [MALFORMED]),
    (f"{CALL}\n{BROKEN}", None, [F, MALFORMED]), (f"Let me look.\n{CALL}", None, [F]),
])  # fmt: skip
def test_an_answer_must_stand_alone_and_closed_and_text_beside_a_call_is_kept(body, answer, calls):
    for thought in ("", f"<think>\n{CALL}<answer>thought of</answer>\n</think>\n\n"):
        message = assistant_message(thought + body)
        turn = parse_turn(message)
        assert (turn.answer, turn.tool_calls, message["content"]) == (answer, calls, body.strip())
        assert Trajectory("q1", [message], "no_answer").answer == (answer or "")


@pytest.mark.parametrize("part", [
    "\n", "<answer>", "<answer>a", "<tool_call>", "<tool_call>a",
    "<tool_call></tool_call", "</tool_call><tool_call", "<think>",
    "<think>\n", "</think>", "</answer>", '<tool_call>"\\', "[", "{", '"',
])  # fmt: skip
@pytest.mark.parametrize("head", ["", "<answer>", "<tool_call>", "<think>", "\n"])
def test_repetitive_text_is_parsed_in_linear_time(head, part):
    """At this length linear time takes 0.02 s, quadratic time seconds."""
    start = time.process_time()
    text = head + part * (200_000 // len(part))
    turn = parse_turn(assistant_message(text))
    assert turn.answer is None and len(turn.tool_calls) <= 1
    assert answer_text(text) and tool_message(text)
    assert time.process_time() - start < 1


def test_a_turn_is_parsed_once_for_all_readers():
    message = assistant_message(f"Let me look.\n{CALL}")
    first, second = parse_turn(message), parse_turn(dict(message))
    assert first.tool_calls[0] is second.tool_calls[0]
    first.tool_calls.clear()
    assert len(second.tool_calls) == len(parse_turn(message).tool_calls) == 1


@pytest.mark.parametrize(("opens", "closes"), [("[", "]"), ('{"a": ', "}")])
@pytest.mark.parametrize("depth", [MAX_NESTING, MAX_NESTING + 1, 300, 500, 700, 900, 980, 1100, 100_000])
def test_too_deeply_nested_arguments_make_a_malformed_call(depth, opens, closes):
    """`depth` includes the two brackets of the call itself."""
    arguments = '{"x": ' + opens * (depth - 2) + "1" + closes * (depth - 2) + "}"
    message = assistant_message(f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>')
    (call,) = parse_turn(message).tool_calls
    native = native_call("f", arguments)
    calls = [{"function": {"name": "f", "arguments": arguments}}]
    assert [call for _, call in native_calls({"tool_calls": calls})] == [native] and native.name == "f"
    is_whole = depth <= MAX_NESTING
    assert isinstance(call.arguments, dict) == isinstance(native.arguments, dict) == is_whole
    assert ("tool_calls" in message) == is_whole
    json.dumps([message, asdict(call), asdict(native)])
    assert asdict(Trajectory("q", [message], "max_turns"))["messages"] == [message]


@given(st.text(alphabet='[]{}",:\\ a1<>/'), st.integers(0, 5))
@settings(max_examples=300)
def test_the_nesting_limit_counts_brackets_as_json_does(text, nesting):
    def depth(value):
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return 1 + max(map(depth, inner), default=0) if isinstance(value, dict | list) else 0

    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError):
            parse_json(text, nesting)
        return
    if depth(expected) > nesting:
        with pytest.raises(ValueError, match="brackets"):
            parse_json(text, nesting)
    else:
        assert parse_json(text, nesting) == expected


def test_only_control_tokens_in_an_observation_are_broken():
    for text in ("plain <b>text</b> 3 < 4 | 荷花", '{"pois": ["a<b", "<thing>"]}', "< |im_end|>"):
        assert tool_message(text) == {"role": "tool", "content": text}
    for token in ("<|im_end|>", "</tool_response>", "<tool_response>", "<think>", "</answer>", "<tool_call>", "<|x"):
        content = tool_message(f"a{token}b<{token}")["content"]
        assert token not in content and content.replace("< ", "<") == f"a{token}b<{token}"
        assert tool_message(content)["content"] == content


def test_turns_have_the_observations_that_follow_them():
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    messages = [
        *prompt_messages(QUERY),
        {"role": "assistant", "reasoning_content": "one", "content": "", "tool_calls": [call, call]},
        *map(tool_message, ("first", "second")),
        assistant_message("<think>\ntwo\n</think>\n\n<answer>\ndone\n</answer>"),
    ]
    turns = [(turn.thought, turn.observations, turn.answer) for turn in read_turns(messages)]
    assert turns == [("one", ["first", "second"], None), ("two", [], "done")]


@pytest.mark.parametrize("stop_reason", ["answer", "no_answer", "max_turns", "max_tokens"])
def test_a_trajectory_survives_writing_and_reading(tmp_path, stop_reason):
    """This also holds for a lone surrogate, which JSON escapes can contain and UTF-8 cannot."""
    odd = assistant_message('<tool_call>\n{"name": "f", "arguments": {"x": "\\ud800"}}\n</tool_call>')
    trajectory = Trajectory("q1", [random_turn(random.Random(1)), odd], stop_reason, is_anchor=True, meta={"turns": 1})
    write_jsonl(tmp_path / "t.jsonl", [trajectory.to_record()])
    (record,) = read_jsonl(tmp_path / "t.jsonl")
    assert record["valid"] == (stop_reason == "answer")
    assert set(record) == {"query_id", "messages", "tools", "valid", "meta"}
    assert Trajectory.from_record(record) == trajectory


@pytest.mark.parametrize(("change", "message"), [
    ({"query": None}, "query Input should be a valid string"),
    ({"query": " \u3000\u200b"}, "query Value error, is blank"),
    ({"query": "\ud800"}, "query Value error, 'utf-8' codec can't encode"),
    ({"subtask": "\ud800"}, "subtask Value error, 'utf-8' codec can't encode"),
    ({"constraints": {"where": ["\ud800"]}}, "constraints Value error, 'utf-8' codec can't encode"),
    ({"language": 3}, "language Input should be a valid string"),
    *(({"language": name}, "language Value error, ") for name in ("zh_CN", "zh-Hans", "EN", "English", "", "中")),
    ({"constraints": "near"}, "constraints Input should be a valid dictionary"),
    ({"question": "x"}, "question Unexpected keyword argument"), (None, "Input should be a dictionary"),
])  # fmt: skip
def test_an_invalid_query_is_an_error_with_its_line(tmp_path, change, message):
    record = asdict(QUERY) | change if change else ["a list"]
    lines = f"{json.dumps(asdict(QUERY))}\n\n{json.dumps(record)}\n"
    (tmp_path / "queries.jsonl").write_text(lines, encoding="utf-8-sig")
    with pytest.raises(UserError, match="line 3 is not a valid query: ") as refused:
        read_queries(tmp_path / "queries.jsonl")
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("record", [{}, {"step": "3"}, {"step": 1.0}, {"step": True}, {"step": None}, [1], 7, None])
def test_a_record_without_a_step_is_refused_with_its_line(tmp_path, record):
    path = tmp_path / "curve.jsonl"
    append_step(path, 1, [{"step": 1}])
    append_step(path, 3, [{"step": 2}, {"step": 3}])
    append_step(path, 2, [{"step": 2, "again": True}])
    assert list(read_steps(path)) == [{"step": 1}, {"step": 2, "again": True}]
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
    with pytest.raises(UserError, match=r"curve.jsonl, line 3 has no step; restore the file"):
        append_step(path, 3, [{"step": 3}])
    assert len(path.read_text().splitlines()) == 3


def step_records(step):
    return [{"step": step, "text": "一家🛫\n" * 3, "row": row} for row in range(2)]


def test_each_step_writes_its_own_bytes_alone(tmp_path):
    path, files, added = tmp_path / "groups.jsonl", set(), [0]
    for step in range(10, 30):  # all numbers of equal length
        append_step(path, step, step_records(step))
        files.add(path.stat().st_ino)  # a rewritten file has another inode
        added.append(path.stat().st_size)
    assert len(files) == 1 and {after - before for before, after in pairwise(added)} == {added[1]}
    append_step(path, 17, step_records(17))
    assert [record["step"] for record in read_steps(path)] == [step for step in range(10, 18) for _ in range(2)]


def test_after_a_kill_at_any_byte_the_resumed_run_ends_with_the_same_file(tmp_path):
    path, records = tmp_path / "groups.jsonl", [record for step in range(3) for record in step_records(step)]
    for step in range(3):
        append_step(path, step, step_records(step))
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        assert [*read_steps(path)] == records[: whole[: cut + 1].count(b"\n")]  # a line may lack its end alone
        for step in range(whole[:cut].count(b"\n") // 2, 3):
            append_step(path, step, step_records(step))
        assert path.read_bytes() == whole


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_all_unicode_forms_of_a_query_are_the_same_query(text):
    keys = [{text_key(form), *shingles(form)} for form in (normalize(name, text) for name in FORMS)]
    assert keys[0] == keys[1]


def test_queries_survive_writing_and_reading_and_a_failed_write(tmp_path):
    path, queries = tmp_path / "new" / "q.jsonl", [QUERY, Query("q2", "travel", "Compare", "en", "fly?\nsay \u2028 so")]
    write_jsonl(path, queries)
    with pytest.raises(TypeError):
        write_jsonl(path, [QUERY, {"x": object()}])
    assert read_queries(path) == queries and "找一家" in path.read_text(encoding="utf-8")


def test_a_missing_file_is_to_be_made_as_the_others_of_its_folder_were(tmp_path):
    path = tmp_path / "rl_queries.jsonl"
    for beside, how in (
        ("notes.txt", "data/prepare.py --config <the run's YAML>, or write it yourself; data/README.md"),
        ("test_queries.jsonl", "does not exist; write it beside your test_queries.jsonl; data/README.md"),
        ("build.json", "finish the folder with: python data/build.py"), (None, "finish the folder"),
    ):  # fmt: skip
        (tmp_path / (beside or "manifest.json")).write_text("{}")
        with pytest.raises(UserError, match=how):
            read_queries(path)
    (tmp_path / "build.json").unlink()
    with pytest.raises(UserError, match="make it with: python data/prepare.py"):
        read_queries(path)


@pytest.mark.parametrize(("text", "message"), [
    ("", "has no query; data/README.md"), ("\n \r\n", "has no query"), ("\ufeff", "has no query"),
    ('{"a": 1}\n{broken\n', "line 1 is not a valid query"),
    ("\n{broken\n", r"line 2 is not JSON: [^\d]* at character 2"),
    ('{"query_id": "q", "domain": "d", "language": "en", "query": "x"}',
     "line 1 is not a valid query: subtask Field required"),
    *(("\n".join(json.dumps(asdict(QUERY) | same) for same in ({}, other)),
       f"lines 1 and 2 have the same {key}; each must be unique")
      for key, other in (("query_id", {"query": "another"}), ("query and constraints", {"query_id": "q2"}))),
    ("\n".join(json.dumps(asdict(QUERY) | {"query_id": form, "query": normalize(form, "A café?"),
                                           "constraints": {"near": normalize(form, "Café")}}) for form in FORMS),
     "same query and constraints; each must be unique"),
    (None, "does not exist; make it with: python data/prepare.py"),
])  # fmt: skip
def test_an_unusable_split_is_refused_with_its_file(tmp_path, text, message):
    if text is not None:
        (tmp_path / "q.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=rf"q\.jsonl.* {message}"):
        read_queries(tmp_path / "q.jsonl")


@pytest.mark.parametrize("odd", [{"meta": "x"}, *({"messages": messages} for messages in (
    [], [{"role": "assistant", "content": "x", "actions": "z"}], [{"role": "system", "content": "x"}],
    [{"role": "assistant", "content": "x", "actions": [{"name": "a"}]}], [{"role": "user", "content": 3}],
    [{"role": "assistant", "content": "x", "actions": [{"name": ["a"], "arguments": {}}]}],
))])  # fmt: skip
def test_a_trajectory_with_malformed_messages_meta_or_actions_is_refused(tmp_path, odd):
    path = tmp_path / "sft.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "assistant", "content": "x"}]} | odd))
    with pytest.raises(UserError, match="line 1 is not a valid trajectory: "):
        list(read_trajectories(path))
