"""What can be said of the vLLM back end where vLLM is not installed; tests/rollout/test_vllm.py has the rest."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
import tiny_models
import torch
from transformers import LlamaConfig, Qwen3Config

from arenarl.config.load import load_config
from arenarl.config.schema import Config, RolloutConfig
from arenarl.rollout.backends import require_backend, require_sync
from arenarl.rollout.generation import TurnRequest
from arenarl.rollout.vllm_generation import open_engine, other_shape, sampling_of
from arenarl.system.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_a_run_ends_before_any_work_with_the_way_to_get_it():
    config = Config()
    config.rollout.backend = "vllm"
    with pytest.raises(
        UserError,
        match="rollout.backend=vllm: vLLM is not installed; pip install vllm==.*or set rollout.backend=transformers",
    ):
        require_backend(config.rollout, "anywhere", config.policy.dtype)


def test_without_a_server_a_run_ends_before_any_work():
    config = Config()
    config.rollout.backend, config.rollout.server_url = "vllm_server", "http://127.0.0.1:1"
    with pytest.raises(UserError, match="cannot be reached"):
        require_backend(config.rollout, "anywhere", config.policy.dtype)


@pytest.fixture
def opened(monkeypatch):
    """With what arguments vLLM's `LLM` was asked for; a stand-in that keeps them and starts nothing."""
    calls, modules = [], {name: ModuleType(name) for name in ("vllm", "vllm._custom_ops")}
    for name, module in modules.items():
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    modules["vllm"].__path__, modules["vllm"]._custom_ops = [], modules["vllm._custom_ops"]
    modules["vllm"].LLM = lambda **arguments: calls.append(arguments)
    return calls


@pytest.mark.parametrize(("processes", "beside_trainer", "launcher"), [
    ("1", False, None), ("8", False, "external_launcher"), ("1", True, "external_launcher"),
    ("8", True, "external_launcher"),
])  # fmt: skip
def test_each_process_has_its_engine_on_a_gpu_of_its_own(
    policy_path, opened, monkeypatch, processes, beside_trainer, launcher
):
    """By LOCAL_RANK, which vLLM reads where another has started its processes.
    By itself every engine would take the first GPU."""
    monkeypatch.setenv("WORLD_SIZE", processes)
    open_engine(policy_path, Config(), rows=2, beside_trainer=beside_trainer)
    assert opened[0]["distributed_executor_backend"] == launcher


@pytest.mark.parametrize(("beside_trainer", "sleeps"), [(True, True), (False, False)])
def test_an_engine_is_split_as_the_config_says_and_sleeps_only_beside_a_trainer(
    policy_path, opened, beside_trainer, sleeps
):
    config = Config(rollout=RolloutConfig(vllm_sleep=True, vllm_tensor_parallel=4))
    open_engine(policy_path, config, rows=2, beside_trainer=beside_trainer)
    assert opened[0]["tensor_parallel_size"] == 4 and opened[0]["max_num_seqs"] == 8  # the four processes' requests
    assert opened[0]["enable_sleep_mode"] == sleeps


def test_processes_that_engines_cannot_be_shared_by_are_refused_and_by_a_check_left_aside(monkeypatch, opened):
    rollout = RolloutConfig(backend="vllm", vllm_tensor_parallel=4)
    monkeypatch.setenv("WORLD_SIZE", "6")
    with pytest.raises(
        UserError,
        match=(
            "rollout.vllm_tensor_parallel=4 does not divide 6 processes into engines of equal size; change one of them"
        ),
    ):
        require_backend(rollout, "anywhere", "bfloat16")
    require_backend(rollout, "anywhere", "bfloat16", is_check=True)
    monkeypatch.setenv("WORLD_SIZE", "8")
    require_backend(rollout, "anywhere", "bfloat16")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("setting", ["vllm_sleep=true", "server_sync=nccl"])
def test_what_needs_gpus_is_refused_without_one_before_any_work(setting):
    backend = "vllm" if setting.startswith("vllm") else "vllm_server"
    config = load_config(ROOT / "configs" / "quickstart.yaml", [f"rollout.backend={backend}", f"rollout.{setting}"])
    with pytest.raises(
        UserError, match=f"rollout.{setting} needs GPUs, and there is none here; set rollout.{setting.split('=')[0]}="
    ):
        require_sync(config.rollout)
    require_sync(RolloutConfig(backend=backend))


def test_an_engine_hears_nothing_of_the_models_own_generation_config(policy_path, opened):
    open_engine(policy_path, Config(), rows=2, beside_trainer=False)
    asked = sampling_of(TurnRequest([1], 7, 0.8, 5), eos_id=2)
    assert opened[0]["generation_config"] == "vllm"
    # all that a server's defaults have
    assert {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens"} < asked.keys()


@pytest.mark.parametrize(("max_tokens", "room"), [(100, 4196), (28_671, 32_767), (28_672, None), (90_000, None)])
def test_vllm_keeps_room_for_a_prompt_and_a_trajectory_or_for_what_the_model_reads(
    policy_path, opened, tmp_path, max_tokens, room
):
    shape = json.loads((Path(policy_path) / "config.json").read_text()) | {"max_position_embeddings": 32_768}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    config = Config()
    config.rollout.max_tokens = max_tokens
    open_engine(str(tmp_path), config, rows=2, beside_trainer=True)
    assert opened[0]["max_model_len"] == room


@pytest.mark.parametrize(
    "make", [tiny_models.qwen3_5, tiny_models.gemma3, lambda **other: Qwen3Config(**tiny_models.SMALL | other)]
)
def test_another_model_is_told_by_the_shape_of_its_text_whatever_else_it_reads(make, tmp_path):
    make().save_pretrained(tmp_path)
    assert other_shape(str(tmp_path), make()) == []
    assert other_shape(str(tmp_path), make(vocab_size=900, hidden_size=64)) == [
        "vocab_size 900 instead of 700",
        "hidden_size 64 instead of 32",
    ]
    assert other_shape(str(tmp_path), LlamaConfig(**tiny_models.SMALL))[0].startswith("model_type llama instead of ")


def test_every_request_has_a_sampling_of_its_own_and_only_its_own_end():
    greedy, sampled = (sampling_of(TurnRequest([1], 7, temperature, 5), eos_id=2) for temperature in (0.0, 0.8))
    assert greedy["temperature"] == 0 and sampled["temperature"] == 0.8
    assert (
        sampled["seed"] == 5
        and sampled["max_tokens"] == 7
        and sampled["stop_token_ids"] == [2]
        and sampled["ignore_eos"]
    )


@pytest.mark.parametrize(("setting", "message"), [
    ("rollout.server_url=localhost:8000", "must be an http.s. address"),
    ("rollout.parity_bound=0", "must be above 0"),
    ("rollout.vllm_memory=1.5", "must not be above 1"),
    ("rollout.vllm_sleep=true", "rollout.vllm_sleep=true is of rollout.backend=vllm, not of vllm_server; leave it out"),
    ("rollout.vllm_tensor_parallel=2", "is of rollout.backend=vllm, not of vllm_server; leave it out"),
])  # fmt: skip
def test_settings_that_cannot_work_are_refused(setting, message):
    with pytest.raises(UserError, match=message):
        load_config(ROOT / "configs" / "quickstart.yaml", ["rollout.backend=vllm_server", setting])


def test_where_vllm_is_not_to_be_had_its_tests_are_skipped_and_say_so(tmp_path):
    for name in ("reproduce.sh", "requirements.txt"):
        shutil.copy(ROOT / name, tmp_path)
    environment = os.environ | {"PYTHON": "/bin/false"}  # cannot set up an environment
    done = subprocess.run(
        ["./reproduce.sh", "test_vllm"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout.splitlines()[-1].startswith(
        "skipped: vLLM 0.31.0 is not available for this machine"
    )
