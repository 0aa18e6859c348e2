"""Start the scripts as a user does: real subprocesses in a separate folder, with a tiny run."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import psutil
import pytest

from arenarl.system.repository import ROOT

CONFIG = str(ROOT / "configs" / "quickstart.yaml")
TINY = {
    "name": "tiny", "data.folder": "data", "data.sft_size": 200, "data.rl_size": 20, "data.test_per_subtask": 4,
    "policy.scratch.hidden_size": 96, "sft.epochs": 8, "sft.batch_size": 8, "sft.learning_rate": 5e-3,
    "sft.save_steps": 100, "sft.deepspeed": str(ROOT / "ds_config.json"), "rollout.group_size": 8,
    "rollout.max_tokens": 256, "rl.steps": 2, "rl.groups": 2, "rl.micro_batch_size": 8, "rl.save_steps": 1,
    "rl.eval_steps": 2, "rl.eval_queries": 5, "evaluate.bootstrap": 100,
}  # fmt: skip
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "disabled", "TRL_EXPERIMENTAL_SILENCE": "1",
}  # fmt: skip


def sets_of(keys):
    """Return `--set key=value` for every key."""
    return [word for key, value in keys.items() for word in ("--set", f"{key}={json.dumps(value)}")]


def command_of(script, *words, processes=None, config=CONFIG, **overrides):
    """Return the command line of a script; `overrides` are keys with `__` for the dot."""
    keys = TINY | {key.replace("__", "."): value for key, value in overrides.items()}
    launcher = ["-m", "arenarl.run.launch", "--nproc_per_node", str(processes)] if processes else []
    return [sys.executable, *launcher, str(ROOT / script), *words, "--config", config, *sets_of(keys)]


def run_python(folder, words, extra_environment=None, **options):
    """Run Python with these words in a folder; return the finished process. `options` are those of `subprocess.run`."""
    environment = os.environ | ENVIRONMENT | (extra_environment or {})
    options = {"capture_output": True, "text": True, "timeout": 900} | options
    return subprocess.run([sys.executable, *map(str, words)], cwd=folder, env=environment, check=False, **options)


def run(folder, script, *words, extra_environment=None, **options):
    return run_python(folder, command_of(script, *words, **options)[1:], extra_environment)


def run_well(folder, script, *words, **options):
    done = run(folder, script, *words, **options)
    assert done.returncode == 0, f"{script}: {done.stderr[-4000:]}"
    return done.stdout


def zero_3(folder):
    """Write ds_config.json for tiny models: shard every weight, not only tensors above a million numbers."""
    settings = read(ROOT / "ds_config.json")
    settings["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    (folder / "zero_3.json").write_text(json.dumps(settings))
    return str(folder / "zero_3.json")


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def differ(one, other):
    assert one.keys() == other.keys()
    return [name for name in one if not one[name].equal(other[name])]


def start(folder, script, until, **options):
    """Start a run in its own session, as a terminal does; return its process once the file `until` exists."""
    with (folder / "stderr.txt").open("w") as output:
        outputs = {"stdout": subprocess.DEVNULL, "stderr": output}
        command, environment = command_of(script, **options), os.environ | ENVIRONMENT
        process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **outputs)
    while not (folder / until).is_file():
        assert process.poll() is None, (folder / "stderr.txt").read_text()[-4000:]
        time.sleep(0.02)
    return process


def ends(process, folder):
    """Wait for a run; return its exit code and its last line on stderr, which must not have a traceback."""
    code = process.wait(timeout=300)
    text = (folder / "stderr.txt").read_text()
    assert "Traceback" not in text, text[-4000:]
    return code, text.strip().splitlines()[-1]


def wait_until(condition):
    """Wait until `condition()` is true; for ten minutes at most, because a loaded machine is slow."""
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_running(pid):
    """Return False also for an ended process that stays in the process table, as in a container without an init."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill_all(process):
    """Kill a process and its descendants; return their number once all have ended."""
    everyone = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for one in everyone:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    wait_until(lambda: not any(is_running(one.pid) for one in everyone))
    process.wait()
    return len(everyone)


def assert_a_whole_checkpoint_is_left(place):
    """Once a checkpoint was completed (elapsed.json exists), a complete one must exist at any time."""
    if (place / "elapsed.json").is_file():
        steps = [int(path.parent.name.split("-")[1]) for path in place.glob("checkpoint-*/whole.json")]
        assert read(place / f"checkpoint-{max(steps)}" / "trainer_state.json")["global_step"] == max(steps)


BEING_WRITTEN = "is being written by another run; wait until it ends, or stop it"


@contextmanager
def locked_by_another(folder):
    """Lock a stage's folder as another process does."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def without_rights(*rights):
    """Return the words before a command that take these rights from root; skip the test where that is impossible."""
    if os.getuid() != 0:
        return []
    if not shutil.which("setpriv"):
        pytest.skip("without setpriv root cannot give up its rights")
    return ["setpriv", "--bounding-set", ",".join(f"-{right}" for right in rights)]


def printed_in_two_processes(code: str) -> list[str]:
    """Run `code` in two processes with different hash seeds, and so different orders of sets; return the outputs."""
    environments = [os.environ | {"PYTHONHASHSEED": seed} for seed in ("1", "2")]
    options = {"capture_output": True, "text": True, "check": True}
    return [subprocess.run([sys.executable, "-c", code], env=variables, **options).stdout for variables in environments]
