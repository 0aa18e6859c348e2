"""A stage refuses data of another config, but only for settings that decide the content of its split."""

import json
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from arenarl.config.load import load_config
from arenarl.config.schema import Config, DataConfig, EnvironmentConfig
from arenarl.domains.domain import Domain
from arenarl.domains.prepared import refuse_other_data
from arenarl.system.errors import UserError
from arenarl.system.repository import CONFIGS, ROOT
from arenarl.tables.rows import LATER_TABLES, TABLES, read_table, runs_of
from arenarl.trajectory import Query, write_jsonl

WORLD = EnvironmentConfig()
# another value for a key, by the type of its default; the fixture sets the language to en
OTHER = {str: "zh", int: 7, float: 0.7, bool: True, list: ["x"], type(None): "x"}
SPLITS = ("sft", "rl", "test")
SPLITS_OF_KEY = {
    "sft_size": {"sft"}, "teacher_skill": {"sft"}, "careful_share": {"sft"}, "rl_size": {"rl"},
    "test_per_subtask": {"test"}, "baseline_attempts": {"test"}, "baseline_skill": {"test"}, "folder": set(),
}  # fmt: skip


def write_manifest(data, environment=WORLD, sources=()):
    manifest = {"data": asdict(data), "environment": asdict(environment), "splits": {}, "sources": list(sources)}
    Path(data.folder, "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def is_refused(data, split, environment=WORLD):
    try:
        refuse_other_data(data, environment, split)
    except UserError:
        return True
    return False


@pytest.fixture
def data(tmp_path):
    config = DataConfig(folder=str(tmp_path), language="en")
    write_manifest(config)
    return config


@pytest.mark.parametrize(
    "key", [field.name for field in fields(DataConfig) if field.name not in ("folder", "research", "divide")]
)
def test_every_key_counts_exactly_for_the_splits_that_it_decides(data, key):
    changed = replace(data, **{key: OTHER[type(getattr(data, key))]})
    assert not any(is_refused(data, split) for split in SPLITS)
    assert {split for split in SPLITS if is_refused(changed, split)} == SPLITS_OF_KEY.get(key, set(SPLITS))


def test_one_line_names_the_keys_both_values_and_the_fix(data):
    with pytest.raises(UserError) as error:
        refuse_other_data(replace(data, seed=5, test_per_subtask=1), EnvironmentConfig(world_seed=2), "test")
    changes = "data.seed 0 → 5, data.test_per_subtask 50 → 1, environment.world_seed 0 → 2"
    message = f"{data.folder} was prepared with other settings ({changes}); rerun python data/prepare.py"
    assert message in str(error.value) and "\n" not in str(error.value)


def test_the_keys_of_all_splits_that_a_stage_reads_are_in_one_line(data):
    with pytest.raises(UserError, match=r"settings \(data.rl_size 1626 → 7, data.test_per_subtask 50 → 1\)"):
        refuse_other_data(replace(data, rl_size=7, test_per_subtask=1, sft_size=9), EnvironmentConfig(), "rl", "test")


def test_the_world_counts_for_all_splits_the_form_of_results_for_sft_and_an_address_for_none(data):
    assert all(is_refused(data, split, EnvironmentConfig(world_seed=1)) for split in SPLITS)
    assert [split for split in SPLITS if is_refused(data, split, EnvironmentConfig(results="compact"))] == ["sft"]
    assert not is_refused(data, "rl", EnvironmentConfig(name="mcp"))
    server = EnvironmentConfig(domain="agentgym", name="webarena_server", server="http://a:1")
    write_manifest(data, server)
    for split in SPLITS:
        assert not is_refused(data, split, replace(server, server="http://b:2"))
        assert is_refused(data, split, replace(server, name="textcraft_server"))


def test_settings_of_calls_do_not_count_and_a_key_missing_in_the_manifest_has_its_default(data):
    rephraser = replace(data.research.rephraser, timeout_s=1.0, price_in=3.0)
    assert not is_refused(replace(data, research=replace(data.research, rephraser=rephraser)), "test")
    path = Path(data.folder, "manifest.json")
    manifest = json.loads(path.read_text(encoding="utf-8"))
    del manifest["data"]["careful_share"], manifest["data"]["research"]["max_clues"]
    path.write_text(json.dumps(manifest), encoding="utf-8")
    assert not is_refused(data, "sft") and is_refused(replace(data, careful_share=0.9), "sft")


def test_published_data_may_come_from_a_clone_and_the_seed_counts_only_if_divided(tmp_path):
    data = DataConfig(folder=str(tmp_path), source=["a/b"])
    write_manifest(data)
    clone = replace(data, source=[str(tmp_path)], seed=1, test_per_subtask=3)
    assert not is_refused(clone, "test", EnvironmentConfig(world_seed=1))
    assert is_refused(replace(data, source=["other/set"]), "test")
    assert is_refused(replace(data, source=["a/b", str(tmp_path)]), "test")
    write_manifest(replace(data, source=["/elsewhere/clone"]), sources=["a hash"])
    assert not is_refused(data, "test")
    write_manifest(data)
    with pytest.raises(UserError, match=r'settings \(data.source \["a/b"\] → \[\]\)'):
        refuse_other_data(replace(data, source=[], seed=4), WORLD, "test")
    write_manifest(replace(data, divide=True))
    assert not is_refused(replace(data, divide=True), "rl") and is_refused(replace(data, divide=True, seed=1), "rl")


def test_a_users_own_data_passes_and_unfinished_data_does_not(tmp_path):
    data = DataConfig(folder=str(tmp_path), seed=3)
    for foreign in ("[]", '{"name": "x"}', '{"splits": ["train"]}'):
        assert not any(is_refused(data, split) for split in SPLITS)
        (tmp_path / "manifest.json").write_text(foreign)
    assert not any(is_refused(data, split) for split in SPLITS)
    (tmp_path / "manifest.json").write_text('{"splits": {}}')  # left by a killed data/prepare.py
    with pytest.raises(UserError, match="did not finish; run it again"):
        refuse_other_data(data, WORLD, "rl")


def test_rl_and_evaluation_refuse_a_split_when_they_read_it_and_sft_before_loading(data, monkeypatch):
    for name in ("rl", "test"):
        write_jsonl(Path(data.folder, f"{name}_queries.jsonl"), [Query("1", "travel", "Search", "en", "Where to?")])
    Path(data.folder, "sft.jsonl").touch()
    same, other = (Domain(EnvironmentConfig(), config) for config in (data, replace(data, seed=1)))
    same.name = other.name = "travel"
    for name in ("rl", "test"):
        assert len(same.read_split(name)) == 1
        with pytest.raises(UserError, match="data.seed 0 → 1"):
            other.read_split(name)
    import train_sft

    words = ["--config", str(CONFIGS / "quickstart.yaml"), "--set", f"data.folder={data.folder}"]
    monkeypatch.setattr(sys, "argv", ["train_sft.py", *words])
    with pytest.raises(UserError, match="data.sft_size 2600 → 12000"):
        train_sft.main()


WITHOUT_SPLITS = "benchmarks judges policies prompts rubrics environments launch tables".split()


@pytest.mark.slow(seconds=8)
def test_shipped_configs_with_the_same_folder_prepare_the_same_data(tmp_path, monkeypatch):
    """The rows and the cold start of each table are included, in full and quick form."""
    monkeypatch.chdir(ROOT)
    paths = {str(path.relative_to(CONFIGS)): path for path in CONFIGS.rglob("*.yaml")}
    configs = {name: load_config(path) for name, path in paths.items() if name.split("/")[0] not in WITHOUT_SPLITS}
    for name in (*TABLES, *LATER_TABLES):
        table = read_table(name)
        for quick in (False, True):
            runs = runs_of(name, table, [], [0], quick=quick)
            configs |= {f"{name}/{run.row}/{quick}": run.loaded for run in runs}
            configs |= {f"{name}/cold/{quick}": run.start for run in runs}
    by_folder: dict[str, dict[str, Config]] = {}
    for name, config in configs.items():
        by_folder.setdefault(config.data.folder, {})[name] = config
    assert len(by_folder) > 15 and len(by_folder["data/quickstart"]) > 50
    for folder, sharing in by_folder.items():
        (first, manifest), *_ = sharing.items()
        write_manifest(replace(manifest.data, folder=str(tmp_path)), manifest.environment)
        different = {repr((config.data, config.environment)): (name, config) for name, config in sharing.items()}
        for name, config in different.values():
            for split in SPLITS:
                refused = is_refused(replace(config.data, folder=str(tmp_path)), split, config.environment)
                assert not refused, (folder, first, name, split)
