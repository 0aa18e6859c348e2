"""Published data as our splits: invented records in the published formats, from folders and a local hub."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_servers import serving
from parts import domain_of, training_queries_of
from scripts import ROOT

from arenarl.config.load import load_config
from arenarl.config.schema import DataConfig
from arenarl.domains.public_data import find_source, read_public_data
from arenarl.domains.published_records import UNSTATED
from arenarl.system.errors import UserError
from arenarl.training.sft_data import tokenize, tokenize_trajectories
from arenarl.trajectory import MAX_RECORD_NESTING, Trajectory, assistant_text, read_jsonl, read_turns, write_jsonl

CONFIG = str(ROOT / "configs" / "travel" / "open_travel_qwen3_8b.yaml")
TEST_FILES = {
    "direction": "Direction", "one_day_travel": "1-Day", "compare_itinerary": "Compare", "search_around": "Search",
    "multi_day_travel": "M-Day",
}  # fmt: skip


def reference(answer):
    """Return a stored baseline in the authors' format: chat messages that end with the answer as plain text."""
    function = {"name": "poi_search", "arguments": json.dumps({"keywords": "湖"})}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    return [
        {"role": "system", "content": "You are a travel agent."},
        {"role": "assistant", "reasoning_content": "Where is it?", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"name": "湖"}<|im_end|>'},
        {"role": "assistant", "reasoning_content": "That will do.", "content": answer},
    ]


@pytest.fixture
def published(tmp_path):
    """A folder with the layout of Open-Travel."""
    folder = tmp_path / "Open-Travel"
    write(folder / "train.jsonl", [{"query": f"周末去{place}玩，怎么安排？"} for place in "甲乙丙丁"])
    for name in TEST_FILES:
        records = [{"query": f"{name}：第{number}个问题", "reference": reference(f"答案{number}")} for number in (1, 2)]
        write(folder / "test" / f"{name}.jsonl", records)
    return folder


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [record if isinstance(record, str) else json.dumps(record, ensure_ascii=False) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def load(*sources, tools=()):
    return read_public_data(DataConfig(source=[str(source) for source in sources]), "travel", tools)


def prepare_by_hub(folder, *words, environment=()):
    """Run the script in a separate process, because the hub's client reads its environment only once."""
    command = [sys.executable, str(ROOT / "data" / "prepare.py"), "--config", CONFIG, *map(str, words)]
    variables = os.environ | {"HF_HOME": str(folder / "hub"), "HF_HUB_DISABLE_TELEMETRY": "1"} | dict(environment)
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=300)


def test_the_published_layout_gives_splits_with_the_papers_subtasks_and_valid_baselines(published):
    splits = load(published).splits
    sizes = {name: len(records) for name, records in splits.items()}
    assert sizes == {"test_queries": 10, "test_baselines": 10, "rl_queries": 4}
    subtasks = {query.query_id.split("-")[3]: query.subtask for query in splits["test_queries"]}
    assert subtasks == TEST_FILES
    stated = {(query.domain, query.language, query.subtask) for query in splits["rl_queries"]}
    assert stated == {("travel", "zh", UNSTATED)}
    queries = splits["test_queries"] + splits["rl_queries"]
    assert len({query.query_id for query in queries}) == 14 and not any(query.constraints for query in queries)
    query, record = splits["test_queries"][0], splits["test_baselines"][0]
    baseline = Trajectory.from_record(record)
    assert record["query_id"] == query.query_id and record["valid"] and baseline.answer == "答案1"
    # in the form of rollouts
    assert [message["role"] for message in baseline.messages] == ["user", "assistant", "tool", "assistant"]
    assert baseline.messages[0]["content"] == query.query
    first, last = read_turns(baseline.messages)
    (search,) = first.tool_calls
    assert (first.thought, search.name, search.arguments) == ("Where is it?", "poi_search", {"keywords": "湖"})
    assert first.observations == ['{"name": "湖"}< |im_end|>'] and last.thought == "That will do."


@pytest.mark.parametrize(
    "record",
    [
        {"question": "q", "baseline": reference("a")},
        {"prompt": "q", "reference": json.dumps(reference("a"))},
        {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}], "reference": "a"},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]},
                      {"role": "assistant", "content": "<think>hm</think>a"}]},
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "So: <answer>a</answer>"}]},
        {"messages": json.dumps([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])},
    ],
    ids=["question", "string of messages", "answer as text", "parts", "sharegpt", "messages as a string"],
)  # fmt: skip
def test_common_record_formats_are_accepted(tmp_path, record):
    write(tmp_path / "test.jsonl", [record])
    write(tmp_path / "train.jsonl", [{"query": "another"}])
    splits = load(tmp_path).splits
    assert [query.query for query in splits["test_queries"]] == ["q"] and splits["test_queries"][0].language == "en"
    assert Trajectory.from_record(splits["test_baselines"][0]).answer == "a"


def test_calls_in_sharegpt_and_in_qwens_text_are_the_same_calls(tmp_path):
    function = {"name": "search", "arguments": {"query": "x"}}
    text = f"<think>\nhm\n</think>\n\n<tool_call>\n{json.dumps(function)}\n</tool_call>"
    both = f"<think>\nhm\n</think>\n{json.dumps([function, function])}"  # several calls, in LLaMA-Factory's format
    records = [
        {"conversations": [{"from": "human", "value": value}, {"from": "function_call", "value": value},
                           {"from": "observation", "value": "found"}, {"from": "gpt", "value": "a"}]}
        for value in (json.dumps(function), both)
    ]  # fmt: skip
    records.append(
        {"messages": [{"role": "user", "content": "two"}, {"role": "assistant", "content": text},
                      {"role": "tool", "content": {"found": 1}}, {"role": "assistant", "content": "a"}]}
    )  # fmt: skip
    write(tmp_path / "train.jsonl", [{"query": "r"}])
    write(tmp_path / "test.jsonl", [{"query": "t", "reference": "a"}])
    write(tmp_path / "sft.jsonl", records)
    turns = [read_turns(record["messages"]) for record in load(tmp_path).splits["sft"]]
    single, two, plain = (first for first, _ in turns)
    assert single.tool_calls == plain.tool_calls and all(last.answer == "a" for _, last in turns)
    assert two.tool_calls == 2 * single.tool_calls and two.thought == "hm"
    assert single.tool_calls[0].arguments == {"query": "x"}
    assert [first.observations for first, _ in turns] == [["found"], ["found"], ['{"found": 1}']]


def test_parquet_calls_keep_their_own_arguments_only_and_the_hubs_data_folder_is_found(tmp_path):
    import pyarrow.parquet

    calls = [{"name": "search", "arguments": {"query": "x"}}, {"name": "browse", "arguments": {"url": "u"}}]
    properties = [{"query": {"type": "string"}}, {"url": {"type": "string"}}]
    pairs = zip(calls, properties, strict=True)
    tools = [{"name": call["name"], "parameters": {"properties": own}} for call, own in pairs]
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [{"function": call} for call in calls]},
        {"role": "assistant", "content": "a"},
    ]
    sft = {"query": "s", "messages": messages, "tools": tools}
    (tmp_path / "data").mkdir()
    for name, row in {"train": {"query": "r"}, "test": {"query": "t", "reference": "a"}, "sft": sft}.items():
        path = tmp_path / "data" / f"{name}-00000-of-00001.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    (record,) = load(tmp_path).splits["sft"]
    arguments = [call.arguments for call in read_turns(record["messages"])[0].tool_calls]
    assert arguments == [call["arguments"] for call in calls]
    assert [tool["function"] for tool in record["tools"]] == tools


def test_no_query_is_in_two_splits_and_dropped_records_are_counted(published):
    test_query = "Direction：第1个问题"
    write(published / "train.jsonl", [{"query": query} for query in ("a", "A ", test_query, "b")])
    trajectories = [{"query": query, "messages": reference("x")} for query in ("c", "c", "B", "direction：第1个问题")]
    write(published / "sft.jsonl", trajectories)
    public = load(published)
    assert [query.query for query in public.splits["rl_queries"]] == ["a", "b"]
    # two trajectories of one query
    assert [record["messages"][0]["content"] for record in public.splits["sft"]] == ["c", "c"]
    assert any("2 rl, 2 sft" in note for note in public.notes)


@pytest.mark.parametrize("split", ["rl", "sft"])
def test_a_split_with_queries_of_other_splits_only_is_refused(published, split):
    test = read_jsonl(published / "test" / "direction.jsonl")
    again = [{"query": f" {record['query']} ", "messages": reference("!")} for record in test]
    write(published / f"{split}.jsonl", again)
    if split == "rl":
        (published / "train.jsonl").unlink()
    with pytest.raises(UserError, match=f"all {split} queries \\(2\\) are also in another split"):
        load(published)


def test_calls_of_unknown_tools_are_kept_with_their_schemas_and_counted(published, compact, tokenizer, tmp_path):
    schema = {"name": "poi_search", "description": "Places.", "parameters": {"type": "object", "properties": {}}}
    known = [
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "search_poi", "arguments": "{}"}}]},
        {"role": "assistant", "content": "a"},
    ]
    unknown = {"query": "one", "messages": reference("a"), "tools": json.dumps([schema])}
    write(published / "sft.jsonl", [unknown, {"query": "two", "messages": known}])
    public = load(published, tools=compact.tools)
    assert [record["tools"] for record in public.splits["sft"]] == [[{"type": "function", "function": schema}], []]
    assert "sft: 1 of 2 call tools that the environment lacks, and are kept: poi_search (1)" in public.notes
    assert any("test_baselines: 10 of 10" in note for note in public.notes)
    path = tmp_path / "sft.jsonl"
    write_jsonl(path, public.splits["sft"])

    def texts(tools):
        return [tokenizer.decode(row["input_ids"]) for row in tokenize_trajectories(path, tokenizer, tools, 8192)]

    first, second = texts(compact.tools)
    assert "Places." in first and "universal_search" not in first and "universal_search" in second
    assert assistant_text(public.splits["sft"][0]["messages"][1]) in first
    assert not any("Places." in text for text in texts(None))


def test_ids_are_unique_if_sources_or_files_have_the_same_name(tmp_path):
    import pyarrow.parquet

    for folder in ("a", "b"):
        write(tmp_path / folder / "out" / "train.jsonl", [{"query": f"to {folder}"}])
        write(tmp_path / folder / "out" / "test.jsonl", [{"query": f"test {folder}", "response": "There."}])
    table = pyarrow.Table.from_pylist([{"query": "to c"}])
    pyarrow.parquet.write_table(table, tmp_path / "a" / "out" / "train.parquet")
    splits = load(tmp_path / "a" / "out", tmp_path / "b" / "out").splits
    ids = [query.query_id for query in splits["rl_queries"] + splits["test_queries"]]
    assert len(ids) == 5 == len(set(ids)) and {"out-train-00001", "out-test-00001"} < set(ids)


def test_a_records_own_subtask_is_used_and_unused_fields_are_reported(tmp_path):
    write(tmp_path / "train.jsonl", [{"query": "a", "category": "Technical Writing"}])
    metadata = {"task_type": "direction", "rubrics": ["r"]}
    write(tmp_path / "test.jsonl", [{"query": "b", "reference": "x", "metadata": metadata, "id": 7}])
    public = load(tmp_path)
    queries = public.splits["test_queries"] + public.splits["rl_queries"]
    assert [query.subtask for query in queries] == ["Direction", "Technical Writing"]
    assert any("unused fields: rubrics (1), id (1)" in note for note in public.notes)


def test_a_prompt_may_be_a_json_string_of_messages_and_messages_after_the_query_are_counted(tmp_path):
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]
    more = [{"role": "assistant", "content": "b?"}, {"role": "user", "content": "c"}]
    texts = ['[{"x": 1}]', '[{"from": "Berlin", "to": "Paris"}]', "[1, 2]", "[]"]
    as_text = [{"prompt": json.dumps(chat)}, *({"prompt": text} for text in texts)]
    answered = {"conversations": [{"from": "human", "value": "d"}, {"from": "gpt", "value": "e"}]}
    write(tmp_path / "train.jsonl", [*as_text, answered])
    write(tmp_path / "test.jsonl", [{"query": "f", "reference": "x"}])
    public = load(tmp_path)
    assert [query.query for query in public.splits["rl_queries"]] == ["a", *texts, "d"]
    assert not any("after the first user message" in note for note in public.notes)
    write(tmp_path / "train.jsonl", [{"prompt": json.dumps(chat + more)}, {"messages": [*chat, *more]}, answered])
    write(tmp_path / "test.jsonl", [{"prompt": [*chat, more[0]], "reference": "x"}])
    dialogue = [{"role": "user", "content": "g"}, *more]
    sft = [{"prompt": dialogue, "response": "h"}, {"messages": [*dialogue, more[0]]}, {"prompt": "i", "response": "j"}]
    write(tmp_path / "sft.jsonl", sft)  # only the first loses messages
    note = "read without the messages after the first user message: 1 test, 2 rl, 1 sft queries"
    assert note in load(tmp_path).notes


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 223371"
BAD_CALL = {"query": "a", "messages": [{"role": "assistant", "tool_calls": ["f"]}]}
WIZARD = {"prompt": [{"role": "wizard", "content": "a"}]}


@pytest.mark.parametrize(("name", "lines", "says"), [
    ("train", [POINTER], "line 1: a Git LFS pointer, not the data; run git lfs pull"),
    ("train", [], "is empty; download it again"),
    ("train", [{"query": "a"}, "<html>"], "line 2 is not JSON"),
    ("train", ["[", '{"query": "a"}', "]"], "line 1 is not JSON"),
    ("train", ['[{"query": "a"}]'], "line 1: a list, not an object"),
    ("train", [{"query": "a"}, "", {"text": "b", "id": 1}], "line 3: no query; its fields are text, id, and one"),
    ("train", [WIZARD], "line 1: a message of unknown role wizard; known: system"),
    ("train", [{"messages": ["a"]}], "line 1: messages must be a list of objects"),
    ("test", [{"query": "a", "rubrics": ["r"]}], "line 1: no trajectory; its fields are query, rubrics, and one"),
    ("sft", [{"messages": [{"role": "user", "content": "a"}]}], "line 1: no trajectory"),
    ("sft", [{"query": "a", "messages": "b", "tools": "search"}], "line 1: tools must be a list of JSON schemas"),
    ("sft", [BAD_CALL], "line 1: tool_calls must be a list of objects"),
])  # fmt: skip
def test_an_unreadable_file_is_refused_with_its_name_line_and_fix(published, name, lines, says):
    write(published / f"{name}.jsonl", lines)
    with pytest.raises(UserError) as error:
        load(published)
    message = str(error.value)
    assert str(published / f"{name}.jsonl") in message and says in message and "\n" not in message


def test_a_folder_without_a_split_or_above_two_data_sets_is_refused(published):
    (published / "train.jsonl").unlink()
    with pytest.raises(UserError, match="no rl queries in .*must be called train or rl"):
        load(published)
    with pytest.raises(UserError, match=r"has no train\.jsonl.*name the folder"):
        load(published.parent)


def test_a_path_is_not_looked_up_on_the_hub_and_no_name_of_a_data_set_is_refused():
    for path in ("my/sft.jsonl", "./Open-Travel", "/nowhere/Open-Travel"):
        with pytest.raises(UserError, match=f"data.source: {path} does not exist"):
            find_source(path)
    with pytest.raises(UserError, match="is not a local folder, and the hub.s data set of this name cannot be"):
        find_source("not/a/hub id")


def test_prepared_data_is_read_and_kept_until_a_source_changes(published, prepare_script, monkeypatch, capsys):
    words = ["--config", CONFIG, "travel", "--from", str(published), "--set", "data.folder=data"]
    monkeypatch.setattr(sys, "argv", ["prepare.py", *words])

    def prepare():
        prepare_script.main()
        return capsys.readouterr().out

    printed = prepare()
    assert "10 test, 4 RL and 0 SFT queries: no two splits share one" in printed and "no SFT trajectories" in printed
    manifest = json.loads(Path("data/manifest.json").read_text())
    hashes = manifest["origin"][0]["files"]
    assert len(hashes) == 6
    assert hashes["train.jsonl"] == hashlib.sha256((published / "train.jsonl").read_bytes()).hexdigest()
    assert "up to date" in prepare()
    write(published / "sft.jsonl", [{"query": "s", "messages": reference("a")}])
    printed = prepare()
    assert "up to date" not in printed and "10 test, 4 RL and 1 SFT" in printed
    config = load_config(CONFIG, ["data.folder=data", f"data.source=[{published}]", "rl.groups=4"])
    queries, baselines = domain_of(config).read_test_set()
    assert len(queries) == 10 and all(baselines[query.query_id].valid for query in queries)
    assert [query.subtask for query in training_queries_of(config)] == [UNSTATED] * 4
    everything = queries + training_queries_of(config)
    assert len(domain_of(config).spread_over_subtasks(everything, 14)) == 14
    assert next(read_jsonl(Path("data/sft.jsonl")))["messages"][0]["content"] == "s"
    write(published / "train.jsonl", [{"query": "x"}])
    assert "10 test, 1 RL" in prepare()


COMMIT = "1" * 40


def hub(folder, name):
    """Return an application with the part of the hub's API that a download of one data set uses."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*.jsonl")}

    def etag(path):
        return hashlib.sha1(path.read_bytes()).hexdigest()

    async def info(request):
        if request.match_info["owner"] + "/" + request.match_info["name"] != name:
            missing = {"error": "Repository not found"}
            return web.json_response(missing, status=404, headers={"X-Error-Code": "RepoNotFound"})
        return web.json_response({"id": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]})

    async def tree(request):
        entries = [{"path": file, "size": path.stat().st_size, "oid": etag(path)} for file, path in files.items()]
        entries.append({"path": "assets/large.bin", "size": 1 << 40, "oid": "0" * 40})
        return web.json_response([entry | {"type": "file"} for entry in entries])

    async def resolve(request):
        path = files[request.match_info["file"]]
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag(path)}"'}
        return web.Response(body=path.read_bytes(), headers=headers)

    app = web.Application()
    api = "/api/datasets/{owner}/{name}"
    app.router.add_get(f"{api}/revision/{{revision}}", info)
    app.router.add_get(f"{api}/tree/{{revision}}", tree)
    app.router.add_get("/datasets/{owner}/{name}/resolve/{revision}/{file:.+}", resolve)
    return app


@pytest.mark.slow(seconds=6)
def test_a_hub_data_set_is_downloaded_once_and_its_commit_stored(published):
    folder = published.parent
    with serving(hub(published, "Alibaba-NLP/Open-Travel")) as url:
        address = {"HF_ENDPOINT": url.removesuffix("/v1")}
        done = prepare_by_hub(folder, environment=address)
        assert done.returncode == 0, done.stderr
        missing = prepare_by_hub(folder, "--from", "nobody/Nothing", environment=address)
    manifest = json.loads((folder / "data/open-travel/manifest.json").read_text())
    assert manifest["origin"][0]["revision"] == COMMIT and manifest["origin"][0]["source"] == "Alibaba-NLP/Open-Travel"
    assert manifest["splits"]["test_queries"]["records"] == 10
    assert missing.returncode == 2 and missing.stderr.count("\n") == 1
    assert "nobody/Nothing is not a local folder" in missing.stderr
    offline = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    assert "up to date" in prepare_by_hub(folder, environment=offline).stdout  # prepared data needs no network
    # the hub's cache is enough to prepare it again
    elsewhere = prepare_by_hub(folder, "--set", "data.folder=again", environment=offline)
    assert elsewhere.returncode == 0 and (folder / "again" / "rl_queries.jsonl").is_file()


def test_an_unreachable_hub_is_a_one_line_error(tmp_path):
    done = prepare_by_hub(tmp_path, environment={"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert done.returncode == 2 and "cannot be downloaded" in done.stderr and done.stderr.count("\n") == 1


FIELDS = """query messages conversations tools metadata subtask reference role from content value tool_calls function
name name arguments id type text reasoning_content""".split()
WORDS = ["user", "assistant", "tool", "system", "human", "gpt", "function_call", "observation", "f", "", "[]", "{}"]
WORDS += ["<answer>a</answer>", "[1]", '<tool_call>{"name": "f", "arguments": {}}</tool_call>', "<|im_end|>", "\ud800"]
WORDS += ["[" * 900 + "]" * 900, '{"a":' * 700 + "1" + "}" * 700]
SCALARS = st.none() | st.booleans() | st.integers(-1, 10**20) | st.floats(allow_nan=False, allow_infinity=False)
ANYTHING = st.recursive(
    st.sampled_from(WORDS) | SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
    max_leaves=12,
)
FUNCTION = st.fixed_dictionaries({"name": ANYTHING, "arguments": ANYTHING})
CALLS = ANYTHING | st.lists(st.fixed_dictionaries({"function": FUNCTION}), max_size=2)
MESSAGE = {"role": st.sampled_from(WORDS[:8]), "content": ANYTHING}
MESSAGES = st.lists(st.fixed_dictionaries(MESSAGE, optional={"tool_calls": CALLS}), max_size=4)
CHAT = st.fixed_dictionaries({"query": st.just("q2"), "messages": MESSAGES}, optional={"tools": ANYTHING})
RECORDS = st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=6) | CHAT


@given(RECORDS)
@settings(max_examples=150)
def test_a_hostile_record_can_be_tokenised_or_is_refused_in_one_line(tmp_path_factory, tokenizer, record):
    folder = tmp_path_factory.mktemp("hostile")
    write(folder / "sft.jsonl", [json.dumps(record)])
    write(folder / "test.jsonl", [{"query": "q", "reference": "a"}])
    write(folder / "train.jsonl", [{"query": "r"}])
    try:
        public = load(folder)
    except UserError as error:
        assert f"{folder / 'sft.jsonl'}, line 1" in str(error) and "\n" not in str(error)
        return
    write_jsonl(folder / "out" / "sft.jsonl", public.splits["sft"])
    for stored in read_jsonl(folder / "out" / "sft.jsonl"):
        assert read_turns(stored["messages"])
        tokenize(tokenizer, stored["messages"], None, 256)


@pytest.mark.parametrize("depth", [50, 200, 500, 700, 900, 5000])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_deeply_nested_call_is_kept_as_text_or_its_record_refused(published, depth, as_text):
    arguments = '{"a":' * depth + "1" + "}" * depth
    call = '{"function": {"name": "f", "arguments": ' + (json.dumps(arguments) if as_text else arguments) + "}}"
    line = '{"query": "q", "messages": [{"role": "assistant", "tool_calls": [' + call + "]}]}"
    write(published / "sft.jsonl", [line])
    if depth > MAX_RECORD_NESTING and not as_text:
        with pytest.raises(UserError, match="line 1 is not JSON.*100 brackets"):
            load(published)
        return
    (record,) = load(published).splits["sft"]
    (turn,) = read_turns(record["messages"])
    assert turn.tool_calls[0].arguments == (json.loads(arguments) if depth < 64 else arguments)


def test_one_chinese_word_makes_no_query_chinese_and_files_without_a_split_are_reported(published):
    texts = ("Please say what the name 西安 means in the stories that are told there.", "西安在哪里")
    write(published / "train.jsonl", [{"query": text} for text in texts])
    write(published / "validation.jsonl", [{"query": "v"}])
    public = load(published)
    assert [query.language for query in public.splits["rl_queries"]] == ["en", "zh"]
    assert "not read, because no word of their names is sft, test, train, rl: validation.jsonl" in public.notes
