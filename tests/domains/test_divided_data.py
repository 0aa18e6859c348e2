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
from arenarl.trajectory import Trajectory, read_turns, text_key, write_jsonl

CONFIG = str(CONFIGS / "writing" / "sft_qwen3_8b.yaml")


def record(number):
    text = f"<think>\nA poem, number {number}.\n</think>\n\nRoses are {number}.\n\nViolets too."
    prompt = [{"role": "user", "content": f"Write poem {number}." if number % 2 else f"写第{number}首诗。"}]
    return {"prompt": prompt, "solution": text, "data_source": "own", "extra_info": {"index": number, "split": "train"}}


def parquet(folder, records):
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(records)), folder / "deepwriting20k.parquet")
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


@pytest.mark.parametrize(("count", "rl"), [(40, 10), (20, 8)])
def test_one_file_is_divided_by_the_configured_sizes_and_rl_gets_the_rest_of_a_small_pool(count, rl, tmp_path):
    public = divided(parquet(tmp_path, map(record, range(count))))
    by_split = texts(public)
    assert {name: len(queries) for name, queries in by_split.items()} == {"test": 2, "sft": 10, "rl": rl}
    assert len({text_key(text) for queries in by_split.values() for text in queries}) == 12 + rl
    stated = {(query.domain, query.language) for query in public.splits["rl_queries"]}
    assert stated == {("writing", "zh"), ("writing", "en")}
    assert public.notes[0] == f"divided by data.seed=0: {count} records, {count} different queries"
    assert ("rl: 8 queries instead of data.rl_size=10; the data set has no more" in public.notes) == (rl == 8)
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


def test_a_given_test_file_is_used_and_its_queries_leave_the_pool(tmp_path):
    write_jsonl(tmp_path / "test.jsonl", [{"query": "Write  poem 1.", "reference": "Roses"}])
    by_split = texts(divided(parquet(tmp_path / "pool", map(record, range(21))), tmp_path / "test.jsonl"))
    assert {name: len(queries) for name, queries in by_split.items()} == {"test": 1, "sft": 10, "rl": 10}
    assert "Write poem 1." not in by_split["rl"] + by_split["sft"]


def test_records_that_are_too_few_or_lack_a_text_are_refused(tmp_path):
    without = [record(number) | {"solution": "Roses." if number % 2 else None} for number in range(20)]
    for records, says in (
        (map(record, range(12)), "12 different queries are too few for .*test_per_subtask=2 and data.sft_size=16"),
        ([], "is empty"), (without, r"row \d+: no trajectory; its fields are prompt, .* must hold it"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=says):
            divided(parquet(tmp_path, records), sft=16)


def test_a_file_that_is_not_parquet_is_refused_in_one_line(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0"
    for content, says in ((b"PAR1 no PAR1", "not Parquet"), (pointer, "a Git LFS pointer"), (b"", "not Parquet")):
        (tmp_path / "texts.parquet").write_bytes(content)
        with pytest.raises(UserError, match=says) as refused:
            divided(tmp_path)
        assert "\n" not in str(refused.value) and str(tmp_path / "texts.parquet") in str(refused.value)


@pytest.mark.parametrize("field", ["prompt", "messages"])
def test_queries_without_any_trajectory_give_no_sft_data_and_no_baselines(field, tmp_path):
    records = ({field: record(number)["prompt"], "reward_model": {"rubrics": []}} for number in range(20))
    public = divided(parquet(tmp_path, records), rl=18)
    assert {name: len(queries) for name, queries in public.splits.items()} == {"test_queries": 2, "rl_queries": 18}
    assert any("evaluation compares with the first policy" in note for note in public.notes)


def test_the_papers_config_has_its_sizes_and_needs_published_data():
    data = load_config(CONFIG, ['data.source=["a/b"]']).data
    assert (data.divide, data.sft_size, data.rl_size, data.test_per_subtask) == (True, 10_000, 10_000, 100)
    with pytest.raises(UserError, match="data.divide=true: nothing to divide"):
        load_config(CONFIG, ["data.source=[]"])
