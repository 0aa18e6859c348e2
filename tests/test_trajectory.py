import json
import random
import time
from dataclasses import asdict

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from arenarl.system.errors import UserError
from arenarl.trajectory import (
    MAX_NESTING,
    Query,
    ToolCall,
    Trajectory,
    answer_text,
    assistant_message,
    assistant_text,
    native_call,
    native_calls,
    parse_json,
    parse_turn,
    prompt_messages,
    read_jsonl,
    read_queries,
    read_trajectories,
    read_turns,
    tool_message,
    write_jsonl,
)

QUERY = Query("q1", "travel", "Search", "zh", "找一家安静的咖啡馆", {"city": "Wuhan"})
AWKWARD = [
    "荷花博物馆", 'a "quoted" \\ word', "two\nlines", "tab\t", "{}", '{"name": "f"}', "<answer>", "</think>",
    "¥20 – 09:00", "😀", "", " ",
]  # fmt: skip


def random_value(rng, depth=2):
    kind = rng.randrange(8 if depth else 6)
    if kind == 7:
        return {rng.choice(AWKWARD): random_value(rng, depth - 1) for _ in range(rng.randrange(3))}
    if kind == 6:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(3))]
    return [
        rng.choice(AWKWARD),
        rng.choice(AWKWARD),
        rng.randint(-(10**12), 10**12),
        rng.uniform(-200, 200),
        rng.random() < 0.5,
        None,
    ][kind]


def random_turn(rng):
    thought = "\n".join(rng.sample(["想一想", 'say "no"', "{x}", "a < b", "", "<tool_call>"], rng.randrange(4)))
    if rng.random() < 0.3:
        return {
            "role": "assistant",
            "reasoning_content": thought,
            "content": f"<answer>\n{rng.choice(AWKWARD[:4])}\n</answer>",
        }
    names = ["search_poi", "搜索", "f"]
    functions = [
        {"name": rng.choice(names), "arguments": {k: random_value(rng) for k in rng.sample(AWKWARD, 3)}}
        for _ in range(rng.randint(1, 3))
    ]
    calls = [{"type": "function", "function": function} for function in functions]
    return {"role": "assistant", "reasoning_content": thought, "content": "", "tool_calls": calls}


@pytest.mark.parametrize("seed", range(100))
def test_a_well_formed_turn_survives_text_and_back(seed):
    message = random_turn(random.Random(seed))
    text = assistant_text(message)
    assert assistant_message(text) == message
    assert assistant_text(assistant_message(text)) == text


def test_a_turn_has_the_form_of_qwen3():
    function = {"name": "search_poi", "arguments": {"query": "荷花"}}
    message = {
        "role": "assistant",
        "reasoning_content": "先查",
        "content": "",
        "tool_calls": [{"type": "function", "function": function}],
    }
    call = '<tool_call>\n{"name": "search_poi", "arguments": {"query": "荷花"}}\n</tool_call>'
    assert assistant_text(message) == f"<think>\n先查\n</think>\n\n{call}"
    message["tool_calls"] *= 2
    assert assistant_text(message) == f"<think>\n先查\n</think>\n\n{call}\n{call}"


def test_a_turn_without_a_thought_is_read():
    message = assistant_message("<answer>\nhere\n</answer>")
    assert message == {"role": "assistant", "reasoning_content": "", "content": "<answer>\nhere\n</answer>"}
    assert parse_turn(message).answer == "here"


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ('{"name": "f", "arguments": {"x": 1}', ""),
        ('{"name": "f", "arguments": "x"}', "f"),
        ('{"name": "f", "arguments": [1]}', "f"),
        ('{"name": "f"}', "f"),
        ('{"name": 3, "arguments": {}}', ""),
        ('{"arguments": {}}', ""),
        ('["f"]', ""),
        ("null", ""),
        ("f(x=1)", ""),
        ("", ""),
        ("[" * 100_000, ""),
        ('{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}", ""),
    ],
    ids=range(12),
)
def test_a_malformed_call_stays_in_the_text_and_becomes_a_call_with_a_string(raw, name):
    text = f"<think>\nhm\n</think>\n\n<tool_call>\n{raw}\n</tool_call>"
    message = assistant_message(text)
    assert "tool_calls" not in message and message["content"] == f"<tool_call>\n{raw}\n</tool_call>"
    assert assistant_text(message) == text
    assert parse_turn(message).tool_calls == [ToolCall(name, raw)]


def test_one_malformed_call_among_good_ones_keeps_all_of_them_and_their_order():
    body = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>\n{broken\n</tool_call>'
    message = assistant_message(body)
    assert message["content"] == body
    assert parse_turn(message).tool_calls == [ToolCall("f", {}), ToolCall("", "{broken")]


def test_text_beside_a_call_is_kept_and_the_call_read():
    body = 'Let me look.\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    message = assistant_message(body)
    assert message["content"] == body
    assert parse_turn(message).tool_calls == [ToolCall("f", {"x": 1})]


@pytest.mark.parametrize("call", ['{"name": "f", "arguments": {}}', "{broken"])
@pytest.mark.parametrize("is_first", [True, False])
def test_an_answer_beside_a_tool_call_is_no_answer(call, is_first):
    parts = [f"<tool_call>\n{call}\n</tool_call>", "<answer>\nhere\n</answer>"]
    turn = parse_turn(assistant_message("\n".join(parts if is_first else parts[::-1])))
    assert turn.answer is None and len(turn.tool_calls) == 1


def test_a_call_inside_an_answer_is_no_answer():
    body = '<answer>\nhere <tool_call>{"name": "f", "arguments": {}}</tool_call>\n</answer>'
    assert parse_turn(assistant_message(body)).answer is None


def test_what_is_only_thought_of_is_neither_a_call_nor_an_answer():
    turn = parse_turn(
        assistant_message(
            '<think>\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><answer>a</answer>\n</think>\n\nhm'
        )
    )
    assert turn.tool_calls == [] and turn.answer is None


@pytest.mark.parametrize(
    "body",
    [
        "<answer></answer>",
        "<answer>\n \n</answer>",
        "<answer>\nhere",
        "here</answer>",
        "here",
        "",
        "<answer>a</answer> more",
        "So: <answer>a</answer>",
    ],
)
def test_an_answer_that_is_empty_unclosed_or_not_alone_is_none(body):
    message = assistant_message(f"<think>\nt\n</think>\n\n{body}")
    assert parse_turn(message).answer is None
    assert Trajectory("q1", [message], "no_answer").answer == ""


def test_two_answers_are_none():
    assert parse_turn(assistant_message("<answer>a</answer>\n<answer>b</answer>")).answer is None


def test_a_tools_name_survives_whatever_is_in_it():
    function = {"name": 'a "b" \\ c\n', "arguments": {}}
    message = {
        "role": "assistant",
        "reasoning_content": "",
        "content": "",
        "tool_calls": [{"type": "function", "function": function}],
    }
    assert assistant_message(assistant_text(message)) == message


@pytest.mark.parametrize("part", [
    "\n", "<answer>", "<answer>a", "<tool_call>", "<tool_call>a",
    "<tool_call></tool_call", "</tool_call><tool_call", "<think>",
    "<think>\n", "</think>", "</answer>", '<tool_call>"\\', "[", "{", '"',
])  # fmt: skip
@pytest.mark.parametrize("head", ["", "<answer>", "<tool_call>", "<think>", "\n"])
def test_a_policy_that_repeats_itself_is_read_in_time_linear_in_the_length(head, part):
    """Half a million characters: what grows with their square takes minutes."""
    start = time.process_time()
    text = head + part * (500_000 // len(part))
    turn = parse_turn(assistant_message(text))
    assert turn.answer is None and len(turn.tool_calls) <= 1
    assert answer_text(text) and tool_message(text)
    assert time.process_time() - start < 10


def test_a_turn_is_parsed_once_however_many_read_it():
    message = assistant_message('Let me look.\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>')
    first, second = parse_turn(message), parse_turn(dict(message))
    assert first.tool_calls[0] is second.tool_calls[0]
    first.tool_calls.clear()
    assert len(second.tool_calls) == len(parse_turn(message).tool_calls) == 1


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", '[1, {"a": -1e999}]'])
def test_a_number_that_json_does_not_have_makes_a_call_malformed(number):
    """Else no reader but Python could read the trajectory again."""
    raw = f'{{"name": "f", "arguments": {{"x": {number}}}}}'
    message = assistant_message(f"<tool_call>{raw}</tool_call>")
    assert "tool_calls" not in message and parse_turn(message).tool_calls == [ToolCall("", raw)]
    assert native_call("f", f'{{"x": {number}}}') == ToolCall("f", f'{{"x": {number}}}')


def nested(depth, kind):
    """A call whose arguments stand so many brackets within each other, its own two included."""
    opens, closes = {"list": ("[", "]"), "object": ('{"a": ', "}")}[kind]
    return '{"name": "f", "arguments": {"x": ' + opens * (depth - 2) + "1" + closes * (depth - 2) + "}}"


@pytest.mark.parametrize("kind", ["list", "object"])
@pytest.mark.parametrize("depth", [MAX_NESTING, MAX_NESTING + 1, 300, 500, 700, 900, 980, 1100, 100_000])
def test_brackets_beyond_any_use_make_a_malformed_call(depth, kind):
    raw = nested(depth, kind)
    message = assistant_message(f"<tool_call>\n{raw}\n</tool_call>")
    (call,) = parse_turn(message).tool_calls
    arguments = raw.removeprefix('{"name": "f", "arguments": ')[:-1]
    native = native_call("f", arguments)
    said = [{"function": {"name": "f", "arguments": arguments}}]
    assert [one for _, one in native_calls({"tool_calls": said})] == [native]
    assert (
        isinstance(call.arguments, dict) == isinstance(native.arguments, dict) == (depth <= MAX_NESTING)
        and native.name == "f"
    )
    assert ("tool_calls" in message) == (depth <= MAX_NESTING)
    json.dumps([message, asdict(call), asdict(native)])
    assert asdict(Trajectory("q", [message], "max_turns"))["messages"] == [message]


@seed(19)
@given(st.text(alphabet='[]{}",:\\ a1<>/'), st.integers(0, 5))
@settings(max_examples=300, deadline=None, database=None)
def test_brackets_are_counted_as_json_does(text, nesting):
    """What is refused for its depth is deeper than allowed, what is read is not,
    and nothing else is refused that is JSON."""

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


@pytest.mark.parametrize("text", ["plain <b>text</b> 3 < 4 | 荷花", '{"pois": ["a<b", "<thing>"]}', "< |im_end|>"])
def test_an_observation_without_control_tokens_is_left_as_it_is(text):
    assert tool_message(text) == {"role": "tool", "content": text}


@pytest.mark.parametrize(
    "token",
    ["<|im_end|>", "<|im_start|>", "</tool_response>", "<tool_response>", "<think>", "</answer>", "<tool_call>", "<|x"],
)
def test_a_control_token_in_an_observation_is_broken(token):
    (content,) = [tool_message(f"a{token}b<{token}")["content"]]
    assert token not in content and content.replace("< ", "<") == f"a{token}b<{token}"
    assert tool_message(content)["content"] == content


def test_turns_get_the_observations_that_follow_them():
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    messages = [
        *prompt_messages(QUERY),
        {"role": "assistant", "reasoning_content": "one", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "first"},
        {"role": "tool", "content": "second"},
        assistant_message("<think>\ntwo\n</think>\n\n<answer>\ndone\n</answer>"),
    ]
    turns = read_turns(messages)
    assert [(turn.thought, turn.observations, turn.answer) for turn in turns] == [
        ("one", ["first", "second"], None),
        ("two", [], "done"),
    ]


def test_a_prompt_is_the_query_after_the_system_message_if_there_is_one():
    assert prompt_messages(QUERY) == [{"role": "user", "content": QUERY.query}]
    assert [message["role"] for message in prompt_messages(QUERY, "be brief")] == ["system", "user"]


@pytest.mark.parametrize(
    ("stop_reason", "is_valid"), [("answer", True), ("no_answer", False), ("max_turns", False), ("max_tokens", False)]
)
def test_a_record_becomes_the_same_trajectory_again(tmp_path, stop_reason, is_valid):
    trajectory = Trajectory("q1", [random_turn(random.Random(1))], stop_reason, is_anchor=True, meta={"turns": 1})
    write_jsonl(tmp_path / "t.jsonl", [trajectory.to_record()])
    (record,) = read_jsonl(tmp_path / "t.jsonl")
    assert record["valid"] == is_valid and set(record) == {"query_id", "messages", "tools", "valid", "meta"}
    assert Trajectory.from_record(record) == trajectory


@pytest.mark.parametrize(("change", "says"), [
    ({"query": None}, "query Input should be a valid string"), ({"query": " "}, "query Value error, is blank"),
    ({"query": "\ud800"}, "query Value error, 'utf-8' codec can't encode"),
    ({"language": 3}, "language Input should be a valid string"),
    ({"constraints": "near"}, "constraints Input should be a valid dictionary"),
    ({"question": "x"}, "question Unexpected keyword argument"), (None, "Input should be a dictionary"),
])  # fmt: skip
def test_a_record_that_is_no_query_is_one_line_with_its_place(tmp_path, change, says):
    record = asdict(QUERY) | change if change else ["a list"]
    (tmp_path / "queries.jsonl").write_text(
        f"{json.dumps(asdict(QUERY))}\n\n{json.dumps(record)}\n", encoding="utf-8-sig"
    )
    with pytest.raises(UserError, match="line 3 is no query: ") as refused:
        read_queries(tmp_path / "queries.jsonl")
    assert says in str(refused.value) and "\n" not in str(refused.value)
    without = {key: value for key, value in asdict(QUERY).items() if key != "subtask"}
    (tmp_path / "queries.jsonl").write_text(json.dumps(without))
    with pytest.raises(UserError, match="line 1 is no query: subtask Field required"):
        read_queries(tmp_path / "queries.jsonl")


def test_queries_survive_writing_and_reading(tmp_path):
    queries = [QUERY, Query("q2", "travel", "Compare", "en", "fly or ride?\nsay \u2028 so")]
    write_jsonl(tmp_path / "new" / "q.jsonl", queries)
    assert read_queries(tmp_path / "new" / "q.jsonl") == queries
    assert "找一家" in (tmp_path / "new" / "q.jsonl").read_text(encoding="utf-8")


def test_nothing_is_written_if_a_record_cannot_be(tmp_path):
    write_jsonl(tmp_path / "q.jsonl", [QUERY])
    with pytest.raises(TypeError):
        write_jsonl(tmp_path / "q.jsonl", [QUERY, {"x": object()}])
    assert read_queries(tmp_path / "q.jsonl") == [QUERY]


def test_whatever_a_policy_wrote_can_be_stored(tmp_path):
    """JSON escapes can spell lone surrogates, which UTF-8 cannot hold."""
    message = assistant_message('<tool_call>\n{"name": "f", "arguments": {"x": "\\ud800"}}\n</tool_call>')
    write_jsonl(tmp_path / "t.jsonl", [Trajectory("q1", [message], "max_turns").to_record()])
    assert len(list(read_jsonl(tmp_path / "t.jsonl"))) == 1


@pytest.mark.parametrize("text", ["", "\n \r\n", "\ufeff"])
def test_a_split_without_a_query_is_refused(tmp_path, text):
    (tmp_path / "q.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"q\.jsonl has no query; data/README.md"):
        read_queries(tmp_path / "q.jsonl")


@pytest.mark.parametrize("key", ["query_id", "query"])
def test_queries_with_the_same_id_or_text_are_refused(tmp_path, key):
    fields = {"query_id": "q2", "query": "another", "constraints": QUERY.constraints} | {key: getattr(QUERY, key)}
    write_jsonl(tmp_path / "q.jsonl", [QUERY, Query(domain="travel", subtask="Search", language="zh", **fields)])
    with pytest.raises(UserError, match=rf"q\.jsonl.* same {key}\b"):
        read_queries(tmp_path / "q.jsonl")


def test_a_broken_line_names_file_and_line(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({"a": 1}) + "\n{broken\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"q\.jsonl, line 2"):
        list(read_jsonl(path))


def test_a_missing_file_says_how_to_make_it(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.jsonl does not exist.*data/prepare\.py"):
        list(read_jsonl(tmp_path / "nowhere.jsonl"))


@pytest.mark.parametrize(
    "odd",
    [
        {"meta": "x"},
        {"messages": [{"role": "assistant", "content": "x", "actions": "z"}]},
        {"messages": [{"role": "assistant", "content": "x", "actions": [{"name": "a"}]}]},
    ],
)
def test_a_trajectory_with_malformed_meta_or_actions_is_one_line(tmp_path, odd):
    path = tmp_path / "sft.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "assistant", "content": "x"}]} | odd))
    with pytest.raises(UserError, match="line 1 is no trajectory: "):
        list(read_trajectories(path))
