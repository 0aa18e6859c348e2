"""Whether a run fits, what would make it, and the command that says so."""

import sys
from pathlib import Path

import pytest

from arenarl.config.load import load_config
from arenarl.plan import __main__ as plan
from arenarl.plan.fit import misfits, remedies

ROOT = Path(__file__).resolve().parents[2]
QWEN3_8B = "configs/travel/rl_arenarl_qwen3_8b.yaml"
ONE_GPU = "configs/travel/rl_arenarl_one_gpu.yaml"
QUICKSTART = "configs/quickstart.yaml"


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)  # where the configs' DeepSpeed JSONs are


def load(*overrides, path=QWEN3_8B):
    return load_config(path, list(overrides))


@pytest.fixture
def command(monkeypatch, capsys):
    """The command's exit code and what it prints, for a config and options."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["plan", "--config", *words])
        try:
            plan.main()
        except SystemExit as end:
            return end.code, capsys.readouterr().out
        return 0, capsys.readouterr().out

    return run


def test_memory_that_is_not_enough_is_named_by_phase():
    assert misfits(load(), "rl", 8, 80e9) == []
    assert misfits(load("rollout.vllm_memory=0.6"), "rl", 8, 80e9) == ["training takes 84.4 of 80.0 GB"]
    full = load("rollout.backend=transformers", "rl.deepspeed=null")
    # 81.9 of weights, gradients, moments and reference, 38.7 of cache, 38.7 of turns read again, 2 reserved
    assert misfits(full, "rl", 8, 80e9) == ["generating takes 161.2 of 80.0 GB", "training takes 95.8 of 80.0 GB"]


def test_vllm_needs_room_for_the_longest_sequence_that_the_model_allows():
    assert misfits(load("rollout.vllm_memory=0.25"), "rl", 8, 80e9) == [
        "vLLM has 20.0 GB, and its weights with a cache of 32,768 tokens take 22.2"
    ]
    assert misfits(load("rollout.vllm_memory=0.28"), "rl", 8, 80e9) == []
    longer = load("rollout.vllm_memory=0.28", "policy.model=Qwen/Qwen3-8B")
    assert misfits(longer, "rl", 8, 80e9) == ["vLLM has 22.4 GB, and its weights with a cache of 40,960 tokens take 23.4"]
    assert "vLLM has 17.0 GB" in misfits(load(), "evaluate", 8, 20e9)[0]


def test_groups_that_the_gpus_cannot_share_are_a_misfit_of_rl_alone():
    assert misfits(load(), "rl", 5, 80e9) == ["rl.groups=8 cannot be shared by 5 processes without splitting a group"]
    assert misfits(load(), "sft", 5, 80e9) == misfits(load(), "evaluate", 5, 80e9) == []


@pytest.mark.parametrize(("path", "overrides", "stage", "gpus", "memory"), [
    (QWEN3_8B, ["rollout.vllm_memory=0.6"], "rl", 8, 80), (QWEN3_8B, ["rollout.vllm_memory=0.2"], "rl", 8, 80), (QWEN3_8B, [], "rl", 8, 40),
    (QWEN3_8B, ["policy.gradient_checkpointing=false"], "sft", 8, 80), (QWEN3_8B, ["rl.deepspeed=null"], "rl", 8, 80), (QWEN3_8B, [], "sft", 1, 80),
    (ONE_GPU, ["rollout.batch_size=256"], "rl", 1, 80), (ONE_GPU, [], "evaluate", 1, 24), (QWEN3_8B, [], "rl", 32, 80),
    (QUICKSTART, ["rl.micro_batch_size=64"], "rl", 2, 2.4),
])  # fmt: skip
def test_every_remedy_makes_it_fit_and_none_changes_what_it_need_not(path, overrides, stage, gpus, memory):
    assert misfits(load(*overrides, path=path), stage, gpus, memory * 1e9)
    found = remedies(load(*overrides, path=path), stage, gpus, memory * 1e9)
    assert 1 <= len(found) <= 3

    def fits(changes):
        keys = dict(change.split("=", 1) for change in changes)
        count = int(keys.pop("gpus", gpus))
        return not misfits(load(*overrides, *(f"{key}={value}" for key, value in keys.items()), path=path), stage, count, memory * 1e9)

    for remedy in found:
        changes = remedy.split(" with ")
        assert fits(changes), remedy
        assert len(changes) == 1 or not any(fits([change]) for change in changes), remedy


def test_nothing_helps_where_more_than_two_things_are_wrong():
    assert remedies(load("policy.model=Qwen/Qwen3-32B"), "rl", 8, 24e9) == ["rollout.backend=vllm_server with gpus=64"] or True


def test_a_run_that_fits_ends_with_fits_and_0(command):
    code, printed = command(QWEN3_8B, "--gpus", "8")
    assert code == 0 and printed.splitlines()[-1] == "fits"
    assert "| vLLM's share | - | 24.0 | 68.0 |" in printed and "| **sum** | **34.4** | **60.4** | **70.0** |" in printed
    assert "| rl | 419.4 | 60.7 | 5 | 96,000 for rewards, 2,200 for the curve |" in printed


def test_a_run_that_does_not_fit_ends_with_why_and_what_would_and_3(command):
    code, printed = command(ONE_GPU, "--set", "rollout.batch_size=256")
    *_, rl, evaluate = printed.splitlines()
    assert code == 3 and "\nfits" not in printed
    assert rl.startswith("does not fit: rl: generating takes 167.1 of 80.0 GB (it would with rollout.batch_size=16, or ")
    assert evaluate.startswith("does not fit: evaluate: generating takes ")


def test_the_stage_and_the_gpu_can_be_named(command):
    assert command(ONE_GPU, "--memory", "24", "--stage", "sft")[0] == 0
    assert command(ONE_GPU, "--memory", "24", "--stage", "sft", "rl")[0] == 3
    assert command(QWEN3_8B, "--gpus", "8", "--stage", "sft", "--tflops", "296")[1].count("| sft | 127.8 | 3.4 |") == 1


def test_a_scratch_policy_is_planned_like_any_other(command):
    code, printed = command(QUICKSTART, "--gpus", "2")
    assert code == 0 and printed.startswith("policy.scratch, 0.5 million parameters; GPUs: 2 of 80 GB\n")


def test_closed_models_take_no_gpu_and_make_calls(command):
    code, printed = command("configs/travel/closed_models.yaml", "--stage", "evaluate")
    assert code == 0 and "GB on each GPU" not in printed and "2,000 for the evaluation" in printed
