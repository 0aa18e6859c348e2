"""Memory at the paper's scale: the arithmetic by hand, and against what a small model really takes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from arenarl.config.load import load_config
from arenarl.plan import memory_check
from arenarl.plan.memory import (
    BF16,
    DOCUMENT,
    LIVE_PARAMETERS,
    SHAPES,
    Plan,
    Shape,
    activations,
    document_tables,
    head_memory,
    kv_bytes,
    layer_activations,
    plans_of,
    shape_from,
    shape_of,
)
from arenarl.plan.memory_check import SMALL, TOLERANCE
from arenarl.rollout.policy import lora_config
from arenarl.system.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
QWEN3_8B = SHAPES["Qwen/Qwen3-8B"]


def section(marker):
    return (ROOT / DOCUMENT).read_text(encoding="utf-8").split(f"<!-- {marker} -->\n")[1].split(f"<!-- /{marker} -->")[0]


@pytest.mark.parametrize(("model", "billions"), [
    ("0.6B", 0.596), ("1.7B", 1.721), ("4B", 4.022), ("8B", 8.191), ("14B", 14.768), ("32B", 32.762),
])  # fmt: skip
def test_the_known_shapes_have_the_published_number_of_parameters(model, billions):
    assert shape_of(f"Qwen/Qwen3-{model}-Base").parameters / 1e9 == pytest.approx(billions, abs=0.0006)


def test_parameters_are_counted_as_transformers_builds_them():
    for tied in (True, False):
        shape = Shape(layers=2, hidden=48, intermediate=80, heads=4, kv_heads=2, head_dim=16, vocabulary=100, tied=tied)
        model = memory_check.build_model(shape)
        assert sum(parameter.numel() for parameter in model.parameters()) == shape.parameters and shape_from(model.config) == shape


def test_lora_is_counted_as_peft_builds_it():
    from peft import get_peft_model


    shape = Shape(layers=2, hidden=48, intermediate=80, heads=4, kv_heads=2, head_dim=16, vocabulary=100)
    model = get_peft_model(memory_check.build_model(shape), lora_config(3))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert sum(parameter.numel() for parameter in trained) == shape.lora_parameters(3)
    assert {parameter.element_size() for parameter in trained} == {4}  # adapters are float32


def test_qwen3_8b_by_hand():
    """36 layers, 4096 wide, 32 query and 8 key-value heads of 128, 12,288 in the MLP, 151,936 tokens."""
    layer = 4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 12288 + 2 * 4096 + 2 * 128
    assert QWEN3_8B.parameters == 36 * layer + 2 * 151_936 * 4096 + 4096 == 8_190_735_360
    assert kv_bytes(QWEN3_8B) == 2 * 36 * 8 * 128 * 2 == 144 * 1024
    # two norms of 4096 at 4+2+2 bytes, queries and keys likewise, output and values at 2, the MLP's four at 2; 4 bytes a norm or head
    assert layer_activations(QWEN3_8B) == 2 * 4096 * 8 + (4096 + 1024) * 8 + (4096 + 1024) * 2 + 4 * 2 * 12288 + 4 * (2 + 32 + 8 + 32)
    assert head_memory(QWEN3_8B, 32_768) == 2 * 4096 * 32_768 + 4 * 151_936 * 4096 + 4 * 32_768 * 4096
    parts = Plan(QWEN3_8B, 1000, gpus=8, zero=True, reference=True).training()
    p = QWEN3_8B.parameters
    assert [parts[name] for name in list(parts)[:6]] == [2 * p // 8, 4 * p // 8, 4 * p // 8, 8 * p // 8, 2 * p // 8, BF16 * LIVE_PARAMETERS]


def test_checkpointing_keeps_layer_inputs_and_one_layer():
    saved = activations(QWEN3_8B, 100, False) - activations(QWEN3_8B, 100, True)
    assert saved == 100 * (35 * layer_activations(QWEN3_8B) - 36 * 2 * 4096)


def test_more_gpus_share_the_states_and_nothing_else():
    few, many = (Plan(QWEN3_8B, 1000, gpus=gpus, zero=True).training() for gpus in (8, 32))
    for part in few:
        is_shared = part in ("parameters", "gradients", "float32 copy for the optimizer", "Adam's two moments")
        assert many[part] == (pytest.approx(few[part] / 4, abs=1) if is_shared else few[part])


@pytest.fixture(scope="module")
def measured():
    """What the check prints; in a process of its own, because DeepSpeed leaves its marks on one."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "arenarl.plan.memory_check"], env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout[done.stdout.index("| bytes") :]


def test_a_small_model_takes_what_is_computed(measured):
    assert SMALL.parameters == 34_479_360
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in measured.splitlines()[2:]]
    assert len(rows) == 8
    for part, computed, found, _ in rows:
        computed, found = int(computed.replace(",", "")), int(found.replace(",", ""))
        is_state = part in ("parameters", "gradients", "float32 copy for the optimizer", "Adam's two moments", "key-value cache")
        assert found == computed if is_state else found == pytest.approx(computed, rel=TOLERANCE), part


def test_the_documents_tables_are_what_the_command_writes(measured, monkeypatch):
    monkeypatch.chdir(ROOT)
    for marker, table in (document_tables() | {"check": measured.strip()}).items():
        assert section(marker) == table + "\n", f"run python -m arenarl.plan.memory --readme ({marker})"


def test_a_local_folder_has_its_own_shape(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    Qwen3ForCausalLM(Qwen3Config(vocab_size=50, tie_word_embeddings=True, **sizes)).save_pretrained(tmp_path)
    assert shape_of(str(tmp_path)) == Shape(1, 32, 40, 2, 1, 16, 50, tied=True)
    with pytest.raises(UserError, match=r"the shape of here is not known; .*Qwen/Qwen3-8B"):
        shape_of("here")


def test_the_plans_follow_the_config():
    config = load_config(ROOT / "configs/travel/rl_arenarl_one_gpu.yaml", ["rl.beta=0", "policy.lora_rank=16"])
    plans = plans_of(config, [2, 4], 100)
    assert list(plans) == ["full, ZeRO-3 over 2", "full, ZeRO-3 over 4", "full, not sharded", "LoRA 16, not sharded"]
    assert {plan.shape for plan in plans.values()} == {SHAPES["Qwen/Qwen3-1.7B"]} and not any(plan.reference for plan in plans.values())


def test_the_gpu_json_says_what_the_arithmetic_assumes():
    zero = json.loads((ROOT / "configs/launch/zero3_gpu.json").read_text())
    assert zero["zero_optimization"]["stage"] == 3 and zero["zero_optimization"]["stage3_max_live_parameters"] == LIVE_PARAMETERS
    assert zero["data_types"] == {"grad_accum_dtype": "fp32"}
