"""A published data set without splits, such as DeepWriting-20K: one Parquet file, divided into SFT, RL and tests."""

import random
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arenarl.config.load import load_config
from arenarl.config.schema import DataConfig
from arenarl.domains.public_data import read_public_data
from arenarl.system.errors import UserError
from arenarl.system.repository import CONFIGS
from arenarl.trajectory import Trajectory, read_turns, same_query, write_jsonl

CONFIG = str(CONFIGS / "writing" / "sft_qwen3_8b.yaml")


def record(number):
    text = f"<think>\nA poem, number {number}.\n</think>\n\nRoses are {number}.\n\nViolets too."
    prompt = [{"role": "user", "content": f"Write poem {number}." if number % 2 else f"写第{number}首诗。"}]
    return {"prompt": prompt, "solution": text, "data_source": "own", "extra_info": {"index": number, "split": "train"}}


def parquet(folder, records, name="deepwriting20k.parquet"):
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(records)), folder / name)
    return folder


def divided(*sources, sft=10, rl=10, test=2, seed=0):
    sizes = {"sft_size": sft, "rl_size": rl, "test_per_subtask": test}
    config = DataConfig(source=list(map(str, sources)), divide=True, seed=seed, **sizes)
    return read_public_data(config, "writing", ())


def texts(public):
    """Return the query texts of each split."""
    splits = public.splits
    queries = {name: [query.query for query in splits[f"{name}_queries"]] for name in ("test", "rl")}
    return queries | {"sft": [trajectory["messages"][0]["content"] for trajectory in splits["sft"]]}


def test_one_file_is_divided_by_the_configured_sizes_and_no_query_is_in_two_splits(tmp_path):
    public = divided(parquet(tmp_path, map(record, range(40))))
    by_split = texts(public)
    assert {name: len(queries) for name, queries in by_split.items()} == {"test": 2, "sft": 10, "rl": 10}
    assert len({same_query(text) for queries in by_split.values() for text in queries}) == 22
    rl = public.splits["rl_queries"]
    assert {(query.domain, query.language) for query in rl} == {("writing", "zh"), ("writing", "en")}
    assert public.notes[0] == "divided by data.seed=0: 40 records, 40 different queries"
    for trajectory in map(Trajectory.from_record, public.splits["sft"]):
        (turn,) = read_turns(trajectory.messages)
        assert trajectory.valid and turn.thought.startswith("A poem, number")
        assert re.fullmatch(r"Roses are \d+\.\n\nViolets too\.", turn.answer)


def test_the_division_depends_only_on_the_seed_and_the_queries(tmp_path):
    records = list(map(record, range(40)))
    first = texts(divided(parquet(tmp_path / "a", records)))
    random.Random(1).shuffle(records)
    assert texts(divided(parquet(tmp_path / "b", records))) == first
    assert texts(divided(tmp_path / "b", seed=1)) != first


def test_rl_gets_the_rest_of_a_small_pool_with_a_note(tmp_path):
    public = divided(parquet(tmp_path, map(record, range(20))))
    assert len(public.splits["rl_queries"]) == 8
    assert "rl: 8 queries instead of data.rl_size=10; the data set has no more" in public.notes


def test_a_given_test_file_is_used_and_its_queries_leave_the_pool(tmp_path):
    write_jsonl(tmp_path / "test.jsonl", [{"query": "Write  poem 1.", "reference": "Roses"}])
    by_split = texts(divided(parquet(tmp_path / "pool", map(record, range(21))), tmp_path / "test.jsonl"))
    assert {name: len(queries) for name, queries in by_split.items()} == {"test": 1, "sft": 10, "rl": 10}
    assert "Write poem 1." not in by_split["rl"] + by_split["sft"]


@pytest.mark.parametrize(
    ("count", "says"),
    [(12, "12 different queries are too few for .*test_per_subtask=2 and data.sft_size=10"), (0, "is empty")],
)
def test_too_few_records_are_refused(count, says, tmp_path):
    with pytest.raises(UserError, match=says):
        divided(parquet(tmp_path, map(record, range(count))))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PAR1 nothing PAR1", "not Parquet"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "a Git LFS pointer"),
        (b"", "not Parquet"),
    ],
)
def test_a_file_that_is_not_parquet_is_refused_in_one_line(content, says, tmp_path):
    (tmp_path / "texts.parquet").write_bytes(content)
    with pytest.raises(UserError, match=says) as refused:
        divided(tmp_path)
    assert "\n" not in str(refused.value) and str(tmp_path / "texts.parquet") in str(refused.value)


def test_a_record_without_a_text_is_named(tmp_path):
    with pytest.raises(UserError, match=r"row \d+: no trajectory; its fields are prompt, .* must hold it"):
        texts = ({**record(number), "solution": "Roses." if number % 2 else None} for number in range(20))
        divided(parquet(tmp_path, texts), sft=16)


@pytest.mark.parametrize("field", ["prompt", "messages"])
def test_queries_without_any_trajectory_give_no_sft_data_and_no_baselines(field, tmp_path):
    records = ({field: record(number)["prompt"], "reward_model": {"rubrics": []}} for number in range(20))
    public = divided(parquet(tmp_path, records), rl=18)
    assert {name: len(queries) for name, queries in public.splits.items()} == {"test_queries": 2, "rl_queries": 18}
    assert any("evaluation compares with the first policy" in note for note in public.notes)


def test_dividing_needs_published_data():
    with pytest.raises(UserError, match="data.divide=true: nothing to divide"):
        load_config(CONFIG, ["data.source=[]"])


@pytest.mark.slow(seconds=5)
def test_the_papers_config_divides_twenty_thousand_records(tmp_path):
    """RL gets only 9,900 queries, because 100 of the 20,000 become tests."""
    parquet(tmp_path, map(record, range(20_000)))
    public = read_public_data(load_config(CONFIG, [f'data.source=["{tmp_path}"]']).data, "writing", ())
    assert "rl: 9900 queries instead of data.rl_size=10000; the data set has no more" in public.notes
    assert {name: len(queries) for name, queries in texts(public).items()} == {"test": 100, "sft": 10_000, "rl": 9900}
