"""What every script starts without: a package that a stage does not need costs each of its processes up to a second,
or several."""

import json
import os
import subprocess
import sys

import pytest
from scripts import CONFIG, ENVIRONMENT, ROOT

TRAINING = {"trl", "deepspeed", "datasets", "pandas", "pyarrow", "wandb"}
ELSEWHERE = {
    "openai", "aiohttp", "matplotlib", "scipy.stats", "statsmodels", "networkx", "trafilatura", "sentence_transformers",
    "sklearn", "vllm",
}  # fmt: skip
MODELS = {"torch", "transformers", "accelerate", "peft"}


def run_and_loaded(folder, *command):
    """How a script ended, on its own or for want of a policy, and the packages and modules that it loaded until
    then."""
    environment = os.environ | ENVIRONMENT | {"PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr[-4000:]
    parts = [
        line.rpartition("|")[2].strip().split(".")
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    ]
    # one loaded by its name leaves only its modules
    return done, {".".join(names[:count]) for names in parts for count in range(1, len(names) + 1)}


@pytest.mark.parametrize(("command", "worker", "needless"), [
    ((str(ROOT / "data/prepare.py"), "--config", CONFIG, "--set", "data.sft_size=9",
      "--set", "data.rl_size=9", "--set", "data.test_per_subtask=2"),
     "arenarl.domains.travel.teacher", MODELS | TRAINING | ELSEWHERE),
    (("-m", "arenarl.report", "none"), "arenarl.report.page", MODELS | TRAINING | ELSEWHERE - {"matplotlib"}),
    (("-m", "arenarl.report.conclusion", "none"), "arenarl.system.errors",
     MODELS | TRAINING | ELSEWHERE | {"numpy", "pydantic"}),
    (("-m", "arenarl.config", "--config", CONFIG), "arenarl.config.load", MODELS | TRAINING | ELSEWHERE | {"numpy"}),
    (("-m", "arenarl.run.launch", "--help"), "torch.distributed.run", MODELS - {"torch"} | TRAINING | ELSEWHERE),
    ((str(ROOT / "train_rl.py"), "--config", CONFIG, "--check"),
     "arenarl.judges.factory", ELSEWHERE | {"deepspeed"}),
], ids=["prepare", "report", "conclusion", "config", "launch", "rl"])  # fmt: skip
def test_a_script_loads_nothing_that_it_does_not_need(command, worker, needless, tmp_path):
    _, modules = run_and_loaded(tmp_path, *command)
    assert worker in modules and not needless & modules


def test_an_evaluation_loads_nothing_of_training(policy_path, tmp_path):
    changes = {"evaluate.checkpoints": {"sft": policy_path}, "rollout.max_turns": 1, "rollout.max_turn_tokens": 2}
    sets = [word for key, value in changes.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    done, modules = run_and_loaded(tmp_path, str(ROOT / "evaluate.py"), "--config", CONFIG, "--query", "?", *sets)
    assert "\nended: " in done.stdout and not (TRAINING | ELSEWHERE | {"peft"}) & modules
