"""What would make a stage fit: every change that is named does, and nothing is changed that need not be."""

from pathlib import Path

import pytest

from arenarl.config.load import load_config
from arenarl.plan.__main__ import remedies
from arenarl.plan.stage import Hardware, Stage

ROOT = Path(__file__).resolve().parents[2]
QWEN3_8B = "configs/travel/rl_arenarl_qwen3_8b.yaml"
ONE_GPU = "configs/travel/rl_arenarl_one_gpu.yaml"


TEXTCRAFT = "configs/agentgym/textcraft_qwen3_8b.yaml"
# as methods that DeepSpeed has no part in
ALONE = ["rl.deepspeed=null", "rollout.backend=transformers", "rollout.batch_size=8"]


@pytest.mark.parametrize(("path", "override", "name", "gpus", "memory_gb"), [
    (QWEN3_8B, "rollout.vllm_memory=0.6", "rl", 8, 80), (QWEN3_8B, "rollout.vllm_memory=0.2", "rl", 8, 80),
    (QWEN3_8B, "seed=0", "rl", 8, 40), (QWEN3_8B, "policy.gradient_checkpointing=false", "sft", 8, 80),
    (QWEN3_8B, "rl.deepspeed=null", "rl", 8, 80), (QWEN3_8B, "seed=0", "sft", 1, 80),
    (ONE_GPU, "rollout.batch_size=256", "rl", 1, 80), (ONE_GPU, "seed=0", "evaluate", 1, 24),
    (QWEN3_8B, "seed=0", "rl", 32, 80), ("configs/quickstart.yaml", "rl.micro_batch_size=64", "rl", 2, 2.4),
    (TEXTCRAFT, [*ALONE, "rl.method=dpo", "reward.name=tournament"], "rl", 2, 80),
    (TEXTCRAFT, [*ALONE, "rl.method=agentevol"], "rl", 2, 80),
    (TEXTCRAFT, [*ALONE, "rl.advantage=gae", "rl.loss_type=dapo"], "rl", 2, 80),
])  # fmt: skip
def test_every_remedy_makes_it_fit_and_none_changes_more_than_it_must(
    path, override, name, gpus, memory_gb, monkeypatch
):
    monkeypatch.chdir(ROOT)  # where the configs' DeepSpeed JSONs are

    def with_changes(*changes):
        keys = dict(change.split("=", 1) for change in changes)
        count = int(keys.pop("gpus", gpus))
        overrides = [override] if isinstance(override, str) else override
        return Stage(
            load_config(path, [*overrides, *(f"{key}={value}" for key, value in keys.items())]),
            name,
            count,
            Hardware(memory_gb),
        )

    assert with_changes().misfits
    found = [remedy.split(" with ") for remedy in remedies(with_changes())]
    assert 1 <= len(found) <= 3
    for changes in found:
        assert not with_changes(*changes).misfits, changes
        assert len(changes) == 1 or all(with_changes(change).misfits for change in changes), changes


def test_remedies_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    full = load_config(
        ROOT / ONE_GPU, ["policy.model=Qwen/Qwen3-8B", "policy.lora_rank=0", "rollout.backend=vllm_server"]
    )
    assert any("zero3_gpu.json with gpus=4" in remedy for remedy in remedies(Stage(full, "rl", 1)))
