"""On which GPUs a process trains. There is none here: torch is made to say that there are two."""

from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState

from arenarl.config.load import load_config
from arenarl.config.schema import Config
from arenarl.run.processes import join_processes
from arenarl.run.stage import start_stage
from arenarl.system.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def two_gpus(monkeypatch):
    """As far as the trainers' arguments ask."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)  # which noted a GPU


def grpo(config, folder):
    from arenarl.training.trl_adapter import grpo_arguments

    return grpo_arguments(config, folder, processes=1, use_cpu=False)


def sft(config, folder):
    from train_sft import sft_arguments

    config.sft.deepspeed = None  # which needs a launcher, and then a process sees its own GPU only
    return sft_arguments(config, folder)


@pytest.mark.parametrize("make", [sft, grpo])
def test_a_process_that_no_launcher_started_trains_the_whole_policy_on_the_first_gpu(two_gpus, tmp_path, make):
    arguments = make(load_config(ROOT / "configs" / "quickstart.yaml", ["wandb.mode=disabled"]), tmp_path)
    assert (
        str(arguments.device) == "cuda:0"
        and arguments.n_gpu == 1
        and arguments.train_batch_size == arguments.per_device_train_batch_size
    )
    assert arguments.model_init_kwargs["device_map"] is None


@pytest.mark.parametrize("join", [join_processes, lambda config: start_stage(config, "rl", lambda *_: {})])
@pytest.mark.parametrize("variables", [{"WORLD_SIZE": "2"}, {"WORLD_SIZE": "2", "RANK": "1"}])
def test_several_processes_that_no_launcher_started_are_refused_at_once(tmp_path, monkeypatch, join, variables):
    """Accelerate would take each for the only one, and all would write the same checkpoints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="WORLD_SIZE=2 is set, but not LOCAL_RANK"):
        join(Config())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("join", [join_processes, lambda config: start_stage(config, "rl", lambda *_: {})])
def test_more_processes_than_gpus_are_refused_before_they_meet(two_gpus, tmp_path, monkeypatch, join):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(
        UserError, match=r"3 processes cannot share 2 GPUs; start 2 \(--nproc_per_node 2, .*PROCESSES=2"
    ):
        join(Config())
    assert not list(tmp_path.iterdir())
