"""Arguments of all trainers: GPUs of a process, and refused launches, DeepSpeed JSONs and learning rates."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.state import AcceleratorState

from arenarl.config.load import load_config
from arenarl.config.schema import Config, PolicyConfig, RolloutConfig
from arenarl.run import processes
from arenarl.run.processes import join_processes
from arenarl.run.stage import start_stage
from arenarl.run.trainer_arguments import check_deepspeed, deepspeed_file, refuse_lost_updates
from arenarl.system.errors import UserError
from arenarl.training.trl_adapter import grpo_arguments
from train_sft import sft_arguments

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def two_gpus(monkeypatch):
    """Make torch report two GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)  # it stores the GPU


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_a_process_without_a_launcher_trains_the_whole_policy_on_the_first_gpu(two_gpus, tmp_path, stage):
    config = load_config(ROOT / "configs" / "quickstart.yaml", ["wandb.mode=disabled", "sft.deepspeed=null"])
    is_sft = stage == "sft"
    arguments = sft_arguments(config, tmp_path) if is_sft else grpo_arguments(config, tmp_path, 1)
    assert str(arguments.device) == "cuda:0" and arguments.n_gpu == 1
    assert arguments.train_batch_size == arguments.per_device_train_batch_size
    assert arguments.model_init_kwargs["device_map"] is None


JOIN = [join_processes, lambda config: start_stage(config, "rl", lambda *_: {})]


@pytest.mark.parametrize("join", JOIN)
@pytest.mark.parametrize("variables", [{"WORLD_SIZE": "2"}, {"WORLD_SIZE": "2", "RANK": "1"}])
def test_several_processes_without_a_launcher_are_refused_at_once(tmp_path, monkeypatch, join, variables):
    """Accelerate would treat each process as the only one, and all would write the same checkpoints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="WORLD_SIZE=2 is set, but not LOCAL_RANK"):
        join(Config())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("join", JOIN)
def test_a_launchers_variable_that_is_not_a_number_is_named(tmp_path, monkeypatch, join):
    """A container file may pass a variable on without a value."""
    monkeypatch.chdir(tmp_path)
    for name, least in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}.items():
        for text in ("", " ", "x", "1.5", "-1", str(least - 1)):
            with monkeypatch.context() as patch:
                patch.setenv(name, text)
                with pytest.raises(UserError, match=f"^{name}=.* is set, but is not a number from {least}; unset it"):
                    join(Config())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("join", JOIN)
def test_processes_that_cannot_share_gpus_or_a_vllm_server_are_refused(two_gpus, tmp_path, monkeypatch, join):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    too_many = r"3 processes cannot share 2 GPUs; start 2 \(--nproc_per_node 2, .*PROCESSES=2"
    with pytest.raises(UserError, match=too_many):
        join(Config())
    assert not list(tmp_path.iterdir())
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    monkeypatch.setattr(processes, "PartialState", lambda **_: SimpleNamespace(num_processes=2))
    with pytest.raises(UserError, match="rollout.backend=vllm_server is for one process"):
        join_processes(Config(rollout=RolloutConfig(backend="vllm_server")))


STAGES = ('"3"', "null", "4", "-1", "[3]", "{}")
WRONG = (
    "{", '{"bf16": {}}', "[]", "7", '{"zero_optimization": 3}', '{"zero_optimization": null}', "[" * 100_000,
    *(f'{{"zero_optimization": {{"stage": {stage}}}}}' for stage in STAGES),
    '{"zero_optimization": {}, "optimizer": null}', '{"zero_optimization": {}, "optimizer": "Muon"}',
)  # fmt: skip


@pytest.mark.parametrize(("text", "part"), [
    (None, "rl.deepspeed={path} does not exist"), *((text, "not a DeepSpeed JSON") for text in WRONG),
    ('{"zero_optimization": {"stage": 3}}', "set stage3_gather_16bit_weights_on_model_save to true"),
    ((ROOT / "ds_config.json").read_text(), "torchrun --nproc_per_node 2 train_rl.py"),
])  # fmt: skip
def test_an_unusable_deepspeed_json_is_refused_with_what_to_change(tmp_path, monkeypatch, text, part):
    monkeypatch.delenv("RANK", raising=False)
    path = tmp_path / "zero.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError) as caught:
        check_deepspeed("rl.deepspeed", str(path), "train_rl.py", is_check=False)
    assert part.format(path=path) in str(caught.value) and "\n" not in str(caught.value)


def test_the_repositorys_json_is_found_from_any_folder_unless_the_folder_has_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_deepspeed("rl.deepspeed", None, "train_rl.py", is_check=False)
    assert deepspeed_file("ds_config.json") == str(ROOT / "ds_config.json") and deepspeed_file(None) is None
    check_deepspeed("sft.deepspeed", "ds_config.json", "train_sft.py", is_check=True)
    (tmp_path / "ds_config.json").write_text("{}")
    assert deepspeed_file("ds_config.json") == "ds_config.json"


@pytest.mark.parametrize(("rate", "is_refused"), [(1e-6, True), (2e-5, True), (1e-4, False)])
def test_a_learning_rate_that_bfloat16_rounds_away_is_refused_without_deepspeed(rate, is_refused):
    """Compares AdamW's updates of typical weights in bfloat16 and in float32."""
    torch.manual_seed(0)
    start, gradient = torch.randn(10_000).mul(0.02).bfloat16(), torch.randn(10_000)
    moved = []
    for dtype in (torch.bfloat16, torch.float32):
        weights = torch.nn.Parameter(start.to(dtype, copy=True))
        optimizer = torch.optim.AdamW([weights], lr=rate, weight_decay=0.0)
        for _ in range(20):
            weights.grad = gradient.to(dtype)
            optimizer.step()
        moved.append(weights.detach().float() - start.float())
    assert (torch.cosine_similarity(*moved, dim=0) < 0.7) == is_refused
    for policy in (PolicyConfig(lora_rank=8), PolicyConfig(dtype="float32")):
        refuse_lost_updates(policy, "rl.learning_rate", rate, None)
    refuse_lost_updates(PolicyConfig(), "rl.learning_rate", rate, "ds_config.json")
    how = "set policy.dtype=float32, policy.lora_rank=32 or, .*, rl.deepspeed=ds_config.json"
    with pytest.raises(UserError, match=how) if is_refused else nullcontext():
        refuse_lost_updates(PolicyConfig(), "rl.learning_rate", rate, None)
