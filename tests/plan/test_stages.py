"""What each stage takes by its config: memory of every back end, hours by hand."""

import json
from pathlib import Path

import pytest

from arenarl.config.load import load_config
from arenarl.plan.estimate import judge_calls
from arenarl.plan.memory import SHAPES, Training, generation
from arenarl.plan.stages import (
    RESERVE,
    Hardware,
    at_once,
    decoding_bytes,
    forward_flops,
    hours,
    phases,
    shape_in,
    training_flops,
    training_of,
    trajectories_of,
)
from arenarl.system.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
QWEN3_8B = SHAPES["Qwen/Qwen3-8B"]


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)  # where the configs' DeepSpeed JSONs are


def load(*overrides, path="configs/travel/rl_arenarl_qwen3_8b.yaml"):
    return load_config(ROOT / path, list(overrides))


def test_training_follows_the_config(tmp_path):
    assert training_of(load(), "rl", 8) == Training(QWEN3_8B, 16_384, gpus=8, zero=3, reference=True)
    assert training_of(load("sft.max_length=100", "sft.batch_size=3"), "sft", 8) == Training(QWEN3_8B, 300, gpus=8, zero=3)
    changed = load("rl.deepspeed=null", "rl.beta=0", "policy.lora_rank=16", "policy.gradient_checkpointing=false", "rl.micro_batch_size=2")
    assert training_of(changed, "rl", 1) == Training(QWEN3_8B, 32_768, lora_rank=16, checkpointing=False)
    (tmp_path / "zero2.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    assert training_of(load(f"rl.deepspeed={tmp_path}/zero2.json"), "rl", 8).zero == 2
    with pytest.raises(UserError, match="sft.deepspeed=nowhere.json does not exist"):
        training_of(load("sft.deepspeed=nowhere.json"), "sft", 8)


def test_rl_and_what_follows_it_have_the_shape_of_what_it_starts_from():
    config = load("rl.init=Qwen/Qwen3-4B-Base")
    assert [shape_in(config, stage) for stage in ("sft", "rl", "evaluate")] == [QWEN3_8B, SHAPES["Qwen/Qwen3-4B"], SHAPES["Qwen/Qwen3-4B"]]


def test_vllm_in_the_process_adds_its_share_to_the_trainers_and_a_server_adds_nothing():
    for overrides, share in (([], 0.3), (["rollout.vllm_memory=0.5"], 0.5), (["rollout.backend=vllm_server"], 0.0)):
        (training,) = phases(load(*overrides), "rl", 8, 80e9).values()
        assert training == RESERVE | {"vLLM's share": share * 80e9} | training_of(load(), "rl", 8).updating()
    assert phases(load(), "evaluate", 8, 80e9) == {"generating": RESERVE | {"vLLM's share": 68e9}}
    assert phases(load("rollout.backend=vllm_server"), "evaluate", 8, 80e9) == {}
    assert phases(load(path="configs/travel/closed_models.yaml"), "evaluate", 8, 80e9) == {}  # all behind APIs


def test_the_trainers_own_model_generates_in_turn_with_training():
    config = load("rollout.backend=transformers")
    found, training = phases(config, "rl", 8, 80e9), training_of(config, "rl", 8)
    assert list(found) == ["generating", "training"] and found["training"]["vLLM's share"] == 0
    assert found["generating"] == RESERVE | training.generating(16, 16_384)  # 8 groups of 16 on 8 GPUs
    assert phases(load("rollout.backend=transformers", "rl.eval_queries=400"), "rl", 8, 80e9)["generating"] == RESERVE | training.generating(50, 16_384)
    fewer = load("rollout.backend=transformers", "rollout.batch_size=5")
    assert phases(fewer, "rl", 8, 80e9)["generating"] == RESERVE | training.generating(5, 16_384)
    alone = RESERVE | {"parameters": 2 * QWEN3_8B.parameters} | generation(QWEN3_8B, 32, 16_384)  # 250 test queries on 8 GPUs
    assert phases(config, "evaluate", 8, 80e9) == {"generating": alone}


def test_a_gpu_decodes_what_is_under_way_or_what_vllms_cache_holds_half_full():
    assert at_once(load(), "rl", 8, 160e9) == 16
    assert at_once(load(), "rl", 8, 80e9) == 44_884 * 2 // 16_384 == 5
    assert at_once(load("rollout.vllm_memory=0.1"), "rl", 8, 80e9) == 1  # it would not start
    assert at_once(load("rollout.backend=transformers", "rollout.batch_size=7"), "rl", 8, 80e9) == 7


def test_flops_by_hand():
    matrices = QWEN3_8B.parameters - 151_936 * 4096
    assert forward_flops(QWEN3_8B, 1000) == 1000 * (2 * matrices + 2 * 36 * 4096 * 1000)
    assert training_flops(load(), QWEN3_8B, 1000) == 4 * forward_flops(QWEN3_8B, 1000)  # 6 + 2 for checkpointing, in twos
    assert training_flops(load("policy.gradient_checkpointing=false"), QWEN3_8B, 1000) == 3 * forward_flops(QWEN3_8B, 1000)
    assert training_flops(load("policy.lora_rank=8"), QWEN3_8B, 1000) == 3 * forward_flops(QWEN3_8B, 1000)
    assert decoding_bytes(QWEN3_8B, 1000, 16) == 1000 * (2 * QWEN3_8B.parameters / 16 + 147_456 * 500)


def test_hours_are_flops_and_bytes_over_what_the_gpus_do():
    hardware = Hardware(memory_gb=160.0, tflops=100.0, bandwidth_tb_s=4.0, utilisation=0.4, bandwidth_share=0.5)
    tokens, trajectories = 16_384, 200 * 8 * 16
    flops = (4 + 1) * forward_flops(QWEN3_8B, tokens)  # training and reference
    seconds = flops / 40e12 + decoding_bytes(QWEN3_8B, tokens, 16) / 2e12  # 8 groups of 16 on 8 GPUs
    assert hours(load(), "rl", 8, hardware) == pytest.approx(trajectories * seconds / 8 / 3600)
    assert hours(load("rl.beta=0"), "rl", 8, hardware) < hours(load(), "rl", 8, hardware)
    assert hours(load("rl.steps=100"), "rl", 8, hardware) == pytest.approx(hours(load(), "rl", 8, hardware) / 2)
    shared = ["rl.updates_per_rollout=4", "rl.steps=800", "rl.save_steps=80", "rl.eval_steps=80"]  # as many rollouts, and old logprobs
    seconds += forward_flops(QWEN3_8B, tokens) / 40e12
    assert hours(load(*shared), "rl", 8, hardware) == pytest.approx(trajectories * seconds / 8 / 3600)
    assert judge_calls(load(*shared), "rl") == judge_calls(load(), "rl")
    sft = load(path="configs/travel/sft_qwen3_8b.yaml")
    assert hours(sft, "sft", 32, hardware) == pytest.approx(2600 * 3 * 4 * forward_flops(QWEN3_8B, tokens) / 40e12 / 32 / 3600)


def test_evaluation_decodes_every_attempt_of_every_policy_and_nothing_else():
    hardware = Hardware(memory_gb=160.0)
    assert trajectories_of(load(), "evaluate") == 250 * 2 * 2  # test queries, decodings, policies
    seconds = 1000 * decoding_bytes(QWEN3_8B, 16_384, 32) / (4e12 * 0.5)
    assert hours(load(), "evaluate", 8, hardware) == pytest.approx(seconds / 8 / 3600)
    assert hours(load(path="configs/travel/closed_models.yaml"), "evaluate", 1, hardware) == 0
