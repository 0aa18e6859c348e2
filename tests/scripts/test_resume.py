"""Every stage is killed for real, at random moments and while it saves;
the same command then ends with the files of an unbroken run.

ARENARL_KILL_SEED=<the seed that a failure prints> draws the same moments again,
ARENARL_KILLS=<number> more of them a stage.
"""

import math
import os
import random
import subprocess
import time

import psutil
import pytest
from scripts import ENVIRONMENT, assert_a_whole_checkpoint_is_left, command_of, read, run_well

from arenarl.run.timing import Stopwatch, timed
from arenarl.system.atomic_files import write_json

pytestmark = pytest.mark.slow(seconds=200)  # all of them

SEED = int(os.environ.get("ARENARL_KILL_SEED", random.SystemRandom().randrange(10**6)))
KILLS = int(os.environ.get("ARENARL_KILLS", 1))
SIZES = {
    "sft__epochs": 3, "sft__save_steps": 4, "rl__steps": 5, "rl__save_steps": 1, "rl__eval_steps": 2,
    "rollout__turn_schedule": [1, 2, 8], "rollout__turns_every": 2,
}  # fmt: skip
STAGES = {  # stage -> script, words, processes, where it writes
    "data": ("data/prepare.py", ("travel",), None, "data"),
    "sft": ("train_sft.py", (), 2, "runs/tiny/sft"),
    "rl": ("train_rl.py", (), 2, "runs/tiny/rl"),
    "evaluate": ("evaluate.py", (), None, "runs/tiny/evaluate"),
}
# num_tokens: SFTTrainer counts tokens from the last start
TIMES = ("time/", "step_time", "train_runtime", "train_samples_", "train_steps_", "train_tokens_", "num_tokens")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The folder of a run that nobody killed, and for each stage the seconds from its first file to its end."""
    folder = tmp_path_factory.mktemp("unbroken")
    seconds = {}
    for stage, (script, words, processes, _) in STAGES.items():
        run_well(folder, script, *words, processes=processes, **SIZES)
        seconds[stage] = read(folder / "runs" / "tiny" / stage / "timing.json")["seconds"]
    return folder, seconds


@pytest.fixture(scope="module")
def killed(unbroken, tmp_path_factory):
    """The folder of a run that was killed again and again in every stage, and a line for each kill."""
    _, seconds = unbroken
    folder, rng, log = tmp_path_factory.mktemp("killed"), random.Random(SEED), [f"ARENARL_KILL_SEED={SEED}"]
    for stage, (script, words, processes, place) in STAGES.items():
        moments = ["saving"] * bool(processes) + [
            rng.uniform(0, 0.8 * seconds[stage]) for _ in range(KILLS if processes else KILLS + 1)
        ]
        for moment in moments:
            log.append(f"{stage}, {kill(folder, script, words, processes, folder / place, moment)}")
            print(log[-1])
            if stage in ("sft", "rl"):
                assert_a_whole_checkpoint_is_left(folder / place)
        run_well(folder, script, *words, processes=processes, **SIZES)
    return folder, log


def kill(folder, script, words, processes, place, moment):
    """Start a stage and SIGKILL all its processes `moment` seconds after it began to write, or while it saves;
    says what was hit."""
    before = {path: path.stat().st_mtime_ns for path in place.glob("*")}
    with (folder / "killed.log").open("w") as output:
        command = command_of(script, *words, processes=processes, **SIZES)
        process = subprocess.Popen(command, cwd=folder, env=os.environ | ENVIRONMENT, stdout=output, stderr=output)
        wait_until(process, lambda: any(before.get(path) != modified(path) for path in place.glob("*")))
        deadline = math.inf if moment == "saving" else time.monotonic() + moment
        wait_until(process, lambda: time.monotonic() > deadline or (moment == "saving" and half_written(place)))
        ended = process.poll() is not None
        everyone = [] if ended else [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for one in everyone:
            one.kill()
        psutil.wait_procs(everyone)
        process.wait()
    left = sorted(path.name for path in place.glob("checkpoint-*"))
    half = [path.name for path in half_written(place)]
    when = "while saving" if moment == "saving" else f"{moment:.2f} s after its first file"
    return (
        f"{when}: {'had ended already' if ended else f'{len(everyone)} processes killed'}; "
        f"checkpoints {left}, half-written {half}"
    )


def wait_until(process, is_so):
    while process.poll() is None and not is_so():
        time.sleep(0.002)


def modified(path):
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def half_written(place):
    return [path for path in place.glob("checkpoint-*") if not (path / "whole.json").is_file()]


def content(path):
    """A file's content without the times in it."""
    if path.name == "summary.json":
        return {
            key: value for key, value in read(path).items() if key not in ("seconds", "peak_memory_gb", "provenance")
        }
    if path.name == "inspect.json":
        log, dated = read(path), ("created", "metadata")  # the latter is the provenance
        return log | {"eval": {key: value for key, value in log["eval"].items() if key not in dated}}
    if path.name == "trainer_state.json":
        return [
            {key: value for key, value in entry.items() if not key.startswith(TIMES)}
            for entry in read(path)["log_history"]
        ]
    return path.read_bytes()


def files(folder):
    """Relative path -> content of everything a run leaves, but for measured times, the commit,
    and what TRL writes differently every time."""
    unequal = ("timing.json", "provenance.json", "training_args.bin", "README.md", "killed.log")
    return {
        str(path.relative_to(folder)): content(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in unequal
    }


def test_a_run_killed_in_every_stage_ends_with_the_files_of_an_unbroken_one(unbroken, killed, capsys):
    (whole, _), (broken, log) = unbroken, killed
    expected, got = files(whole), files(broken)
    with capsys.disabled():
        print("", *log, f"compared {len(expected)} files", sep="\n")
    assert got.keys() == expected.keys(), log
    # by repr, because NaN is not NaN
    assert [name for name in expected if repr(got[name]) != repr(expected[name])] == [], log
    assert {
        "runs/tiny/rl/curve.jsonl",
        "runs/tiny/rl/model.safetensors",
        "runs/tiny/sft/model.safetensors",
    } < expected.keys()


def test_the_time_of_all_starts_is_counted(tmp_path):
    Stopwatch(tmp_path).lap()
    write_json(tmp_path / "elapsed.json", {"seconds": 100.0})  # up to the checkpoint that the killed run left
    with timed(tmp_path, "rl"):
        pass
    assert 100 <= read(tmp_path / "timing.json")["seconds"] < 200 and not (tmp_path / "elapsed.json").exists()
