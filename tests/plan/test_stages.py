"""Hours and judge calls at the paper's scale: each factor by hand."""

from pathlib import Path

import pytest

from arenarl.config.checks import check_groups
from arenarl.config.load import load_config
from arenarl.plan.estimate import most_calls
from arenarl.plan.memory import SHAPES
from arenarl.plan.scale import ROWS, Hardware, decoding_bytes, forward_flops, hours, judge_calls, training_flops

ROOT = Path(__file__).resolve().parents[2]
QWEN3_8B = SHAPES["Qwen/Qwen3-8B"]


def load(*overrides, path="configs/travel/rl_arenarl_qwen3_8b.yaml"):
    return load_config(ROOT / path, list(overrides))


@pytest.mark.parametrize(("overrides", "calls"), [
    ([], 60), (["tournament.bidirectional=false"], 30), (["tournament.topology=round_robin"], 240), (["tournament.topology=anchor"], 30),
    (["tournament.topology=swiss"], 64), (["tournament.topology=double_elimination"], 60), (["tournament.topology=balanced"], 60),
    (["tournament.topology=balanced", "tournament.matches=n"], 32),
    (["reward.name=pointwise_answer"], 16), (["reward.name=pointwise_trajectory"], 16),
    (["reward.name=win_rate"], 240), (["reward.name=pointwise_implicit"], 16), (["reward.name=pointwise_explicit"], 16 * 7),
    (["reward.name=tournament_grpo"], 56),
])  # fmt: skip
def test_most_calls_of_a_group_of_16(overrides, calls):
    assert most_calls(load(*overrides)) == calls


def test_the_judge_calls_of_a_run():
    """200 steps of 8 groups; a curve at steps 0, 20, …, 200 of 50 queries, 2 decodings, 2 orders; 250 test queries, 2 x 2, 2 policies."""
    assert judge_calls(load()) == {"rewards": 200 * 8 * 60, "curve": 11 * 50 * 2 * 2, "evaluation": 250 * 2 * 2 * 2}
    assert judge_calls(load("rl.eval_steps=0", "judge.eval=[{}, {}]"))["curve"] == 0
    assert judge_calls(load(path="configs/travel/closed_models.yaml"))["evaluation"] == 250 * 4 * 1 * 2


def test_flops_by_hand():
    matrices = QWEN3_8B.parameters - 151_936 * 4096
    assert forward_flops(QWEN3_8B, 1000) == 1000 * (2 * matrices + 2 * 36 * 4096 * 1000)
    assert training_flops(load(), QWEN3_8B, 1000) == 4 * forward_flops(QWEN3_8B, 1000)  # 6 + 2 for checkpointing, in twos
    assert training_flops(load("policy.gradient_checkpointing=false"), QWEN3_8B, 1000) == 3 * forward_flops(QWEN3_8B, 1000)
    assert training_flops(load("policy.lora_rank=8"), QWEN3_8B, 1000) == 3 * forward_flops(QWEN3_8B, 1000)
    assert decoding_bytes(QWEN3_8B, 1000, 16) == 1000 * (2 * QWEN3_8B.parameters / 16 + 147_456 * 500)


def test_hours_are_flops_and_bytes_over_what_the_gpus_do():
    hardware = Hardware(tflops=100.0, bandwidth_tb_s=4.0, utilisation=0.4, bandwidth_share=0.5)
    tokens, trajectories = 16_384, 200 * 8 * 16
    flops = (4 + 1) * forward_flops(QWEN3_8B, tokens)  # training and reference
    seconds = flops / 40e12 + decoding_bytes(QWEN3_8B, tokens, 16) / 2e12
    assert hours(load(), "rl", 8, hardware) == pytest.approx(trajectories * seconds / 8 / 3600)
    assert hours(load("rl.beta=0"), "rl", 8, hardware) < hours(load(), "rl", 8, hardware)
    assert hours(load("rl.steps=100"), "rl", 8, hardware) == pytest.approx(hours(load(), "rl", 8, hardware) / 2)
    shared = ["rl.updates_per_rollout=4", "rl.steps=800", "rl.save_steps=80", "rl.eval_steps=80"]  # as many rollouts, and old logprobs
    seconds += forward_flops(QWEN3_8B, tokens) / 40e12
    assert hours(load(*shared), "rl", 8, hardware) == pytest.approx(trajectories * seconds / 8 / 3600)
    assert judge_calls(load(*shared)) == judge_calls(load())
    sft = load(path="configs/travel/sft_qwen3_8b.yaml")
    assert hours(sft, "sft", 32, hardware) == pytest.approx(2600 * 3 * 4 * forward_flops(QWEN3_8B, tokens) / 40e12 / 32 / 3600)


def test_every_row_is_of_a_config_and_of_gpus_that_it_can_use():
    for row in ROWS:
        config = load(path=row.config)
        if row.stage == "rl":
            check_groups(config, row.gpus)
        assert row.stage in ("sft", "rl", "evaluate") and (row.gpus > 0) == (row.stage != "evaluate")
