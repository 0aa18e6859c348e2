"""Two trees beside each other: the order, the arithmetic, the other tree's coming and going;
and once for real, tiny."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from arenarl.studies import bench_speed as bench
from arenarl.system.errors import UserError
from arenarl.system.repository import ROOT

TINY = [
    word
    for key in ("hidden_size=32", "intermediate_size=32", "num_heads=2", "num_kv_heads=1")
    for word in ("--set", f"policy.scratch.{key}")
]
TREES = {"this": Path("this"), "other": Path("other")}


def is_repository():
    return bench._git("rev-parse", "HEAD").returncode == 0


def test_pairs_are_begun_in_turn_each_in_a_folder_of_its_own_and_medians_are_compared():
    seconds, begun, folders = iter([1.0, 8.0, 4.0, 3.0, 5.0, 2.0]), [], set()

    def measure(runner, tree, folder):
        begun.append(tree.name)
        folders.add(folder)
        return {"seconds": next(seconds), "none": 0.0}

    figures = bench.compare(measure, None, TREES, pairs=3)
    assert begun == ["this", "other", "other", "this", "this", "other"]
    assert len(folders) == 6 and not any(folder.exists() for folder in folders)
    assert figures["seconds"] == {
        "values": {"this": [1.0, 3.0, 5.0], "other": [8.0, 4.0, 2.0]},
        "median": {"this": 3.0, "other": 4.0},
        "ratio": 0.75,
    }
    assert figures["none"]["ratio"] is None


def test_a_step_of_rl_is_the_median_of_the_log_without_the_first_steps(tmp_path):
    def log(seconds):
        return {"step_time": seconds} | {
            f"time/{part}_s": seconds / 4 for part in ("rollout", "forward", "judge", "update")
        }

    class Stub(bench.Runner):
        def train(self, tree, folder, script, **keys):
            assert (script, keys["rl__steps"], keys["rl__init"]) == ("train_rl.py", 5, "policy")
            place = folder / "runs" / "speed" / "rl" / "checkpoint-5"
            place.mkdir(parents=True)
            steps = [log(seconds) for seconds in (90.0, 80.0, 8.0, 4.0, 12.0)]
            (place / "trainer_state.json").write_text(json.dumps({"log_history": [*steps, {"train_runtime": 1.0}]}))

    assert bench.measure_rl_step(Stub("", [], "policy", 3), ROOT, tmp_path) == {
        "step_s": 8.0, "rollout_s": 2.0, "forward_s": 2.0, "judge_s": 2.0, "update_s": 2.0
    }  # fmt: skip


@pytest.mark.parametrize(("words", "line"), [
    (["--pairs", "0"], "--pairs and --steps must be at least 1"),
    (["--measure", "rl_step", "--policy", "nowhere"], "--policy nowhere is no finished SFT policy"),
    (["--measure", "decode", "--set", "data.folder=nowhere"], "nowhere holds no data; ./reproduce.sh data writes it"),
])  # fmt: skip
def test_what_cannot_be_measured_is_refused_in_one_line(words, line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["bench_speed", "--against", "HEAD", "--config", str(ROOT / "configs/quickstart.yaml"), *words]
    )
    with pytest.raises(UserError, match=line):
        bench.main()


@pytest.mark.skipif(not is_repository(), reason="outside git")
def test_another_commit_is_there_as_long_as_it_is_needed():
    with bench.checked_out("HEAD") as tree:
        assert (tree / "train_rl.py").is_file() and str(tree) in bench._git("worktree", "list").stdout
    assert not tree.exists() and str(tree) not in bench._git("worktree", "list").stdout
    with pytest.raises(UserError, match="^--against no-such-commit: .*; name a commit of this repository$"):
        with bench.checked_out("no-such-commit"):
            pass


@pytest.mark.slow(seconds=50)
@pytest.mark.skipif(not is_repository(), reason="outside git")
def test_rollouts_and_start_up_of_two_trees_are_written_with_where_they_come_from(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "manifest.json").write_text("{}")
    command = [
        sys.executable, "-m", "arenarl.studies.bench_speed", "--against", "HEAD", "--measure", "decode", "start",
        "--pairs", "1",
    ]  # fmt: skip
    done = subprocess.run(
        [*command, *TINY, "--set", f"data.folder={data}"],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "results" / "speed.json").read_text())
    assert rows.keys() == {"decode", "start"} and done.stdout.endswith("written: results/speed.json\n")
    for row in rows.values():
        assert row["against"] in row["commit"] and row["cpu"] and row["load"] >= 0
        for figure in row["figures"].values():
            this, other = (figure["values"][name] for name in ("this", "other"))
            assert len(this) == len(other) == 1 and figure["ratio"] == pytest.approx(this[0] / other[0], abs=1e-3)
    assert rows["decode"]["figures"]["tokens"]["ratio"] == 1
