"""Scripts must not import unneeded packages, which cost every process up to several seconds."""

import pytest
from scripts import CONFIG, ROOT, run_python, sets_of

TRAINING = {"trl", "deepspeed", "datasets", "pandas", "pyarrow", "wandb"}
OTHERS = {
    "aiohttp", "matplotlib", "scipy.stats", "statsmodels", "networkx", "trafilatura", "sentence_transformers",
    "sklearn", "vllm",
}  # fmt: skip
MODELS = {"torch", "transformers", "accelerate", "peft"}


def run_and_loaded(folder, *command):
    """Run a script; return its result and the names of all packages and modules that it loaded."""
    done = run_python(folder, command, {"PYTHONPROFILEIMPORTTIME": "1"})
    assert "Traceback" not in done.stderr, done.stderr[-4000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    modules = [line.rpartition("|")[2].strip().split(".") for line in lines]
    return done, {".".join(names[:count]) for names in modules for count in range(1, len(names) + 1)}


@pytest.mark.parametrize(("command", "needed", "unneeded"), [
    ((str(ROOT / "data/prepare.py"), "--config", CONFIG, "--set", "data.sft_size=9",
      "--set", "data.rl_size=9", "--set", "data.test_per_subtask=2"),
     "arenarl.domains.travel.teacher", MODELS | TRAINING | OTHERS),
    (("-m", "arenarl.report", "none"), "arenarl.report.page", MODELS | TRAINING | OTHERS - {"matplotlib"}),
    (("-m", "arenarl.report.conclusion", "none"), "arenarl.system.errors",
     MODELS | TRAINING | OTHERS | {"numpy", "pydantic"}),
    (("-m", "arenarl.config", "--config", CONFIG), "arenarl.config.load", MODELS | TRAINING | OTHERS | {"numpy"}),
    (("-m", "arenarl.run.launch", "--help"), "torch.distributed.run", MODELS - {"torch"} | TRAINING | OTHERS),
    pytest.param((str(ROOT / "train_rl.py"), "--config", CONFIG, "--check"), "arenarl.judges.factory",
                 OTHERS | {"deepspeed"}, marks=pytest.mark.slow(seconds=8)),
], ids=["prepare", "report", "conclusion", "config", "launch", "rl"])  # fmt: skip
def test_scripts_do_not_load_unneeded_packages(command, needed, unneeded, tmp_path):
    _, modules = run_and_loaded(tmp_path, *command)
    assert needed in modules and not unneeded & modules


@pytest.mark.slow(seconds=8)
def test_evaluation_loads_no_training_package(policy_path, tmp_path):
    changes = {"evaluate.checkpoints": {"sft": policy_path}, "rollout.max_turns": 1, "rollout.max_turn_tokens": 2}
    words = "--config", CONFIG, "--query", "?", *sets_of(changes)
    done, modules = run_and_loaded(tmp_path, str(ROOT / "evaluate.py"), *words)
    assert "\nended: " in done.stdout and not (TRAINING | OTHERS | {"peft"}) & modules
