"""Kill every stage at random moments and while it saves; the same command then ends with the files of an unbroken run.

ARENARL_KILL_SEED=<the seed that a failure prints> repeats the moments, ARENARL_KILLS=<number> sets how many per stage.
"""

import math
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from scripts import (
    ENVIRONMENT,
    assert_a_whole_checkpoint_is_left,
    command_of,
    differ,
    is_running,
    kill_all,
    read,
    run_well,
    start,
    wait_until,
    weights,
)

from arenarl.run.timing import Stopwatch, timed
from arenarl.system.atomic_files import write_json
from arenarl.system.errors import UserError

SEED = int(os.environ.get("ARENARL_KILL_SEED", random.SystemRandom().randrange(10**6)))
KILLS = int(os.environ.get("ARENARL_KILLS", 1))
STAGES = {  # stage -> script, arguments, processes, folder, number of kills while saving and at random moments
    "data": ("data/prepare.py", ("travel",), None, "data", 0, KILLS),
    "sft": ("train_sft.py", (), 2, "runs/tiny/sft", 1, KILLS - 1),
    "rl": ("train_rl.py", (), 2, "runs/tiny/rl", 1, KILLS),
    "evaluate": ("evaluate.py", (), None, "runs/tiny/evaluate", 0, KILLS),
}
# num_tokens: SFTTrainer counts tokens from the last start
VARYING = ("timing.json", "provenance.json", "training_args.bin", "README.md", "killed.log")
STATE = "trainer_state.json"
TIMES = ("time/", "step_time", "train_runtime", "train_samples_", "train_steps_", "train_tokens_", "num_tokens")


@pytest.fixture(scope="module")
def unbroken(folder):
    return Path(f"{folder}-unbroken")


@pytest.fixture(scope="module")
def killed(unbroken, tmp_path_factory):
    """The folder of a run with kills in every stage, and a line for each kill."""
    folder, rng, log = tmp_path_factory.mktemp("killed"), random.Random(SEED), [f"ARENARL_KILL_SEED={SEED}"]
    for stage, (script, words, processes, place, saving, at_random) in STAGES.items():
        seconds = read(unbroken / "runs" / "tiny" / stage / "timing.json")["seconds"]
        for moment in ["saving"] * saving + [rng.uniform(0, 0.8 * seconds) for _ in range(at_random)]:
            log.append(f"{stage}, {kill(folder, script, words, processes, folder / place, moment)}")
            print(log[-1])
            if stage in ("sft", "rl"):
                assert_a_whole_checkpoint_is_left(folder / place)
        run_well(folder, script, *words, processes=processes)
    return folder, log


def kill(folder, script, words, processes, place, moment):
    """Start a stage and SIGKILL all its processes `moment` seconds after its first file, or while it saves.

    Returns a description of the kill.
    """
    before = {path: path.stat().st_mtime_ns for path in place.glob("*")}
    with (folder / "killed.log").open("w") as output:
        command = command_of(script, *words, processes=processes)
        process = subprocess.Popen(command, cwd=folder, env=os.environ | ENVIRONMENT, stdout=output, stderr=output)
        wait_while_running(process, lambda: any(before.get(path) != modified(path) for path in place.glob("*")))
        deadline = math.inf if moment == "saving" else time.monotonic() + moment
        wait_while_running(process, lambda: time.monotonic() > deadline or (moment == "saving" and half_written(place)))
        ended = process.poll() is not None
        killed = 0 if ended else kill_all(process)
    left = sorted(path.name for path in place.glob("checkpoint-*"))
    half = [path.name for path in half_written(place)]
    when = "while saving" if moment == "saving" else f"{moment:.2f} s after its first file"
    event = "had already ended" if ended else f"{killed} processes killed"
    return f"{when}: {event}; checkpoints {left}, half-written {half}"


def wait_while_running(process, condition):
    while process.poll() is None and not condition():
        time.sleep(0.002)


def modified(path):
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def half_written(place):
    return [path for path in place.glob("checkpoint-*") if not (path / "whole.json").is_file()]


def content(path):
    """A file's content without times."""
    if path.name == "summary.json":
        varying = ("seconds", "peak_memory_gb", "provenance")
        return {key: value for key, value in read(path).items() if key not in varying}
    if path.name == "inspect.json":
        log, varying = read(path), ("created", "metadata")  # metadata contains the provenance
        return log | {"eval": {key: value for key, value in log["eval"].items() if key not in varying}}
    if path.name == STATE:
        entries = read(path)["log_history"]
        return [{key: value for key, value in entry.items() if not key.startswith(TIMES)} for entry in entries]
    if path.name == "whole.json":  # without hashes of files that vary
        mark = read(path) | {"sha256": None}
        return mark | {"files": {name: of for name, of in mark["files"].items() if name not in (*VARYING, STATE)}}
    return path.read_bytes()


def files(folder):
    """Relative path -> content of a run's files, without measured times, the commit, and TRL's varying files."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in VARYING)
    return {str(path.relative_to(folder)): content(path) for path in paths}


@pytest.mark.slow(seconds=95)
def test_a_run_killed_in_every_stage_ends_with_the_files_of_an_unbroken_run(unbroken, killed, capsys):
    broken, log = killed
    expected, actual = files(unbroken), files(broken)
    with capsys.disabled():
        print("", *log, f"compared {len(expected)} files", sep="\n")
    assert actual.keys() == expected.keys(), log
    # compare by repr, because NaN does not equal NaN
    assert [name for name in expected if repr(actual[name]) != repr(expected[name])] == [], log
    names = ("rl/curve.jsonl", "rl/model.safetensors", "sft/model.safetensors")
    assert {f"runs/tiny/{name}" for name in names} < expected.keys()


def test_the_time_of_all_starts_is_counted(tmp_path):
    Stopwatch(tmp_path).lap()
    write_json(tmp_path / "elapsed.json", {"seconds": 100.0})  # up to the checkpoint that the killed run left
    with timed(tmp_path, "rl"):
        pass
    assert 100 <= read(tmp_path / "timing.json")["seconds"] < 200 and not (tmp_path / "elapsed.json").exists()
    for seconds in ("NaN", "1e999", "-1", '"1"'):
        (tmp_path / "elapsed.json").write_text(f'{{"seconds": {seconds}}}')
        with pytest.raises(UserError, match="elapsed.json is damaged .*; restore it, or delete it"):
            Stopwatch(tmp_path)


@pytest.mark.slow(seconds=60)
def test_a_killed_run_one_step_ahead_ends_with_the_weights_of_an_unbroken_run(folder, tmp_path):
    """Killed while the second process generates the groups of a later step than the checkpoint's."""
    keys = {
        "rl__init": str(folder / "runs" / "tiny" / "sft"), "data__folder": str(folder / "data"), "rl__steps_ahead": 1,
        "rl__steps": 4, "rl__save_steps": 2, "rl__eval_steps": 0,
    }  # fmt: skip
    whole, place = tmp_path / "runs" / "whole" / "rl", tmp_path / "runs" / "killed" / "rl"
    output = run_well(tmp_path, "train_rl.py", name="whole", **keys)
    assert "one step ahead (rl.steps_ahead=1)" in output
    checkpoint = "runs/killed/rl/checkpoint-2"
    process = start(tmp_path, "train_rl.py", f"{checkpoint}/whole.json", name="killed", **keys)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    assert process.wait() == -signal.SIGKILL and children
    wait_until(lambda: not any(is_running(child.pid) for child in children))  # the second process ends by itself
    assert "pending.jsonl" in read(tmp_path / checkpoint / "whole.json")["files"]
    assert not (place / "model.safetensors").exists()
    run_well(tmp_path, "train_rl.py", name="killed", **keys)
    assert differ(weights(whole), weights(place)) == []
    for run in (whole, place):
        history = read(run / "checkpoint-4" / STATE)["log_history"][:4]
        assert [entry["rollout/staleness"] for entry in history] == [0, 1, 1, 1]
        assert max(entry["grad_norm"] for entry in history) > 0
