import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import pytest
from filelock import FileLock
from parts import training_queries_of
from scripts import CONFIG, ROOT, run_python, sets_of

from arenarl.config.load import load_config
from arenarl.domains.travel.domain import TravelDomain
from arenarl.system.atomic_files import hash_files
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, read_jsonl, read_queries, write_jsonl

SIZES = {"data.sft_size": 9, "data.rl_size": 11, "data.test_per_subtask": 2, "data.baseline_attempts": 3}


def overrides(folder, **more):
    values = SIZES | {"data.folder": folder} | more
    return [f"{key}={value}" for key, value in values.items()]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The folder that `python data/prepare.py` writes when run from another folder, and its output."""
    folder = tmp_path_factory.mktemp("elsewhere")
    sets = [word for override in overrides("travel") for word in ("--set", override)]
    command = [ROOT / "data" / "prepare.py", "travel", "--config", CONFIG, *sets]
    done = run_python(folder, command, {"PYTHONHASHSEED": "7"})
    assert done.returncode == 0, done.stderr
    return folder / "travel", done.stdout


@pytest.fixture
def prepare(prepare_script, monkeypatch, capsys):
    """`prepare(folder, **settings)` runs the script's main in this process and returns its output."""

    def run(folder, **more):
        sets = [word for override in overrides(folder, **more) for word in ("--set", override)]
        monkeypatch.setattr(sys, "argv", ["prepare.py", "travel", "--config", CONFIG, *sets])
        prepare_script.main()
        return capsys.readouterr().out

    run.module = prepare_script
    return run


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def test_the_script_writes_the_splits_and_a_manifest_with_their_counts_and_hashes(prepared, prepare):
    folder, output = prepared
    names = {"sft": 9, "rl_queries": 11, "test_queries": 10, "test_baselines": 10}
    assert {path.name for path in folder.iterdir()} == {f"{name}.jsonl" for name in names} | {"manifest.json", ".lock"}
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, count in names.items():
        assert len(list(read_jsonl(folder / f"{name}.jsonl"))) == count
        sha256 = prepare.module.hash_files([folder / f"{name}.jsonl"])
        assert manifest["splits"][name] == {"records": count, "sha256": sha256}
        assert manifest["splits"][name]["sha256"][:16] in output
    assert manifest["data"]["sft_size"] == 9 and manifest["environment"]["results"] == "compact"


def test_a_second_process_waits_and_uses_the_data_of_the_first(prepare, tmp_path, capsys):
    folder = tmp_path / "travel"
    prepare(folder)
    whole, written = bytes_of(folder), (folder / "sft.jsonl").stat().st_mtime_ns
    (folder / "manifest.json").write_text('{"splits": {}}')  # the first process is still writing
    with ThreadPoolExecutor() as pool, FileLock(folder / ".lock"):
        second = pool.submit(prepare, folder)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.5)
        assert (folder / "manifest.json").read_text() == '{"splits": {}}'
        (folder / "manifest.json").write_bytes(whole["manifest.json"])
    assert second.result() and bytes_of(folder) == whole and (folder / "sft.jsonl").stat().st_mtime_ns == written


def test_training_reads_the_subtasks_that_the_config_names(prepared):
    config = load_config(CONFIG, overrides(prepared[0]))
    assert {query.subtask for query in training_queries_of(config)} == {"Direction", "1-Day", "Compare", "Search"}
    for subtask, groups, problem in (
        ("M-Day", 2, None),
        ("M-Day", 3, "fewer than rl.groups=3"),
        ("Serch", 3, "rl_queries.jsonl has no query of Serch; choose from Direction,"),
    ):
        config.rl.subtasks, config.rl.groups = [subtask], groups
        if problem is None:
            assert {query.subtask for query in training_queries_of(config)} == {subtask}
            continue
        with pytest.raises(UserError, match=problem):
            training_queries_of(config)


def test_a_second_run_changes_nothing_unless_a_setting_or_the_code_changes_or_a_file_is_missing(prepare, tmp_path):
    """The duration, too, is written only when data is prepared."""
    folder, timing = tmp_path / "data", tmp_path / "runs" / "quickstart" / "data" / "timing.json"
    assert "up to date" not in prepare(folder)
    before, first = bytes_of(folder), json.loads(timing.read_text())
    assert first["stage"] == "data" and first["seconds"] > 0
    timing.write_text("{}")
    assert "up to date" in prepare(folder) and bytes_of(folder) == before and timing.read_text() == "{}"
    (folder / "rl_queries.jsonl").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="rl_queries.jsonl was changed after this script made it; delete it, or name"):
        prepare(folder)
    assert (folder / "rl_queries.jsonl").read_text() == "mine"
    for missing in ("rl_queries.jsonl", "sft.jsonl"):
        (folder / missing).unlink()
        assert "up to date" not in prepare(folder) and bytes_of(folder) == before
    manifest = json.loads(before["manifest.json"])
    assert manifest["code"] == hash_files(TravelDomain.sources)
    (folder / "manifest.json").write_text(json.dumps(manifest | {"code": "another"}))
    assert "up to date" not in prepare(folder) and bytes_of(folder) == before
    assert "up to date" not in prepare(folder, **{"data.seed": 1}) and bytes_of(folder) != before
    assert json.loads(timing.read_text())["stage"] == "data"


def test_an_edit_of_the_users_domain_or_of_the_prompts_for_the_data_prepares_again(prepare, own_modules, tmp_path):
    domain = "from arenarl.domains.travel.domain import TravelDomain\n\n\nclass Mine(TravelDomain):\n    sources = ()\n"
    prompts = tmp_path / "prompts" / "synthesis_en.yaml"
    prompts.parent.mkdir()
    prompts.write_text("system: Reword.\n")
    own_modules({"own.py": domain})
    settings = {"environment.domain": "own:Mine", "prompts.folder": prompts.parent}

    def is_kept(**changes):
        return "up to date" in prepare(tmp_path / "data", **settings | changes)

    assert [is_kept(), is_kept()] == [False, True]
    prompts.write_text("system: Reword it.\n")
    assert [is_kept(), is_kept()] == [False, True]
    assert [is_kept(**{"prompts.folder": "null"}) for _ in range(2)] == [False, True]
    own_modules({"own.py": f"{domain}    edited = True\n"})
    assert [is_kept(**{"prompts.folder": "null"}) for _ in range(2)] == [False, True]


def test_a_user_s_files_are_never_overwritten(prepare, tmp_path, monkeypatch):
    """Covers other settings, published data, and a folder with only the user's trajectories."""
    edited, own, taught, added, other = (tmp_path / name for name in ("edited", "own", "taught", "added", "other"))
    prepare(edited)
    prepare(added)
    manifest = json.loads((added / "manifest.json").read_text(encoding="utf-8"))
    del manifest["splits"]["sft"]  # published queries, to which a user adds trajectories
    (added / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    other.mkdir()
    (other / "manifest.json").write_text("[]", encoding="utf-8")
    with (edited / "rl_queries.jsonl").open("a", encoding="utf-8") as file:
        file.write("\n")
    for folder, name in ((own, "rl_queries.jsonl"), (own, "test_queries.jsonl"), (taught, "sft.jsonl")):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text("mine", encoding="utf-8")
    write_jsonl(tmp_path / "train.jsonl", [{"query": "r"}])
    write_jsonl(tmp_path / "test.jsonl", [{"query": "t", "reference": "a"}])
    published = {"data.source": f"[{tmp_path / 'train.jsonl'}, {tmp_path / 'test.jsonl'}]"}
    cases = [(edited, {"data.seed": 1}), (edited, published), (own, published), (taught, {}), (taught, published)]
    cases += [(added, {"data.seed": 1}), (added, published), (other, {})]
    for folder, settings in cases:
        before = bytes_of(folder)
        with pytest.raises(UserError, match="was changed after|was not made by this script"):
            prepare(folder, **settings)
        assert bytes_of(folder) == before
    before = bytes_of(own)
    assert "nothing is prepared" in prepare(own) and bytes_of(own) == before


def test_a_query_in_two_splits_is_refused_whatever_its_case_and_spacing(prepare, tmp_path):
    prepare(tmp_path)
    test, rl = read_queries(tmp_path / "test_queries.jsonl"), read_queries(tmp_path / "rl_queries.jsonl")
    shared = Query(**asdict(rl[0]) | {"query": "  " + test[0].query.upper().replace(" ", "  ")})
    write_jsonl(tmp_path / "rl_queries.jsonl", [shared, *rl[1:]])
    with pytest.raises(UserError, match="test and RL share 1 queries"):
        prepare.module.check_disjoint(tmp_path)
    write_jsonl(tmp_path / "rl_queries.jsonl", rl)
    chat = [("system", "Be brief."), ("user", test[0].query), ("assistant", "<answer>\nx\n</answer>")]
    messages = [{"role": role, "content": text} for role, text in chat]
    write_jsonl(tmp_path / "sft.jsonl", [{"messages": messages}])
    with pytest.raises(UserError, match="test and SFT share 1 queries"):
        prepare.module.check_disjoint(tmp_path)


def test_items_of_an_environment_may_have_the_same_text(prepare_script, monkeypatch, capsys, tmp_path):
    sizes = {"data.sft_size": 1, "data.rl_size": 2, "data.test_per_subtask": 1, "data.baseline_attempts": 1}
    sets = sets_of(sizes | {"data.folder": str(tmp_path)})
    babyai = str(ROOT / "configs" / "agentgym" / "babyai.yaml")
    monkeypatch.setattr(sys, "argv", ["prepare.py", "--config", babyai, *sets])
    prepare_script.main()
    assert "1 test, 2 RL and 1 SFT items: no item is in two splits" in capsys.readouterr().out
    test, rl = read_queries(tmp_path / "test_queries.jsonl"), read_queries(tmp_path / "rl_queries.jsonl")
    assert test[0].query in {query.query for query in rl} and test[0].task not in {query.task for query in rl}


@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize(
    ("title", "config"), [("the paper's numbers", "travel/sft_qwen3_8b.yaml"), ("quickstart", "quickstart.yaml")]
)
def test_the_readme_gives_the_hashes_of_the_data(title, config, tmp_path):
    command = [sys.executable, str(ROOT / "data" / "prepare.py"), "travel", "--config", str(ROOT / "configs" / config)]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    manifest = next((tmp_path / "data").glob("*/manifest.json"))
    readme = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
    for name, split in json.loads(manifest.read_text())["splits"].items():
        row = f"| {title} | `{name}.jsonl` | {split['records']} | `{split['sha256'][:16]}` |"
        assert row in readme, "run data/prepare.py and copy what it prints"
