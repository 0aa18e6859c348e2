"""Memory at the paper's scale: the arithmetic by hand, and against measurements of a small model."""

import json
from dataclasses import replace

import pytest
import small_qwen3
from peft import get_peft_model
from scripts import ROOT, run_python
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config

from arenarl.config.schema import PolicyConfig
from arenarl.plan import memory
from arenarl.plan.memory import BF16, FP32, SHAPES, Shape, Training, shape_of
from arenarl.rollout import kv_cache
from arenarl.rollout.policy import lora_config
from arenarl.system.errors import UserError

QWEN3_8B = SHAPES["Qwen/Qwen3-8B"]
TINY = Shape(layers=2, hidden=48, intermediate=80, heads=4, kv_heads=2, head_dim=16, vocabulary=100)


@pytest.mark.parametrize(("model", "billions"), [
    ("0.6B", 0.596), ("1.7B", 1.721), ("4B", 4.022), ("8B", 8.191), ("14B", 14.768), ("32B", 32.762),
])  # fmt: skip
def test_the_known_shapes_have_the_published_number_of_parameters(model, billions):
    base, later = (shape_of(PolicyConfig(model=f"Qwen/Qwen3-{model}{suffix}")) for suffix in ("-Base", ""))
    assert base.parameters / 1e9 == pytest.approx(billions, abs=0.0006)
    assert base == replace(later, positions=32_768) and later.positions == 40_960


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_as_transformers_builds_them(tied):
    shape = replace(TINY, tied=tied)
    model = small_qwen3.build_model(shape)
    assert sum(parameter.numel() for parameter in model.parameters()) == shape.parameters
    assert memory.shape_from(model.config) == shape


def test_lora_is_counted_as_peft_builds_it():
    parameters = get_peft_model(small_qwen3.build_model(TINY), lora_config(3)).parameters()
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    assert sum(parameter.numel() for parameter in trained) == TINY.lora_parameters(3)
    assert {parameter.element_size() for parameter in trained} == {FP32}


def test_qwen3_8b_worked_by_hand():
    """36 layers, 4096 wide, 32 query and 8 key-value heads of 128, 12,288 in the MLP, 151,936 tokens."""
    layer = 4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 12288 + 2 * 4096 + 2 * 128
    assert QWEN3_8B.parameters == 36 * layer + 2 * 151_936 * 4096 + 4096 == 8_190_735_360
    assert memory.kv_bytes(QWEN3_8B) == 2 * 36 * 8 * 128 * 2 == 144 * 1024
    # two norms of 4096 at 4+2+2 bytes, queries and keys likewise, output and values at 2, the MLP's four at 2;
    # 4 bytes per norm or head
    attention = (4096 + 1024) * 8 + (4096 + 1024) * 2
    assert memory.layer_activations(QWEN3_8B) == 2 * 4096 * 8 + attention + 4 * 2 * 12288 + 4 * (2 + 32 + 8 + 32)
    assert memory.head_memory(QWEN3_8B, 32_768) == 2 * 4096 * 32_768 + 4 * 151_936 * 4096 + 4 * 32_768 * 4096
    assert memory.vllm_cache(QWEN3_8B, 24e9) == int((24e9 - 1e9 - 2 * 8_190_735_360) / (144 * 1024)) == 44_884
    # mask, four times the width, MLP or attention
    read = 16_384 + 4 * 2 * 4096 + max(2 * (16_384 + 4 * 4096), 4 * 2 * 12288)
    cache = 144 * 1024 * 16_384
    assert list(memory.generation(QWEN3_8B, 40, 16_384).values()) == [40 * cache, 40 * cache, 16_384 * read]
    assert memory.ENCODED_AT_ONCE == kv_cache.ENCODED_AT_ONCE
    training, p = Training(QWEN3_8B, 1000, gpus=8, zero=3, reference=True), QWEN3_8B.parameters
    states = [2 * p // 8, 4 * p // 8, 4 * p // 8, 8 * p // 8, 2 * p // 8]
    assert list(training.updating().values())[:6] == [*states, BF16 * memory.LIVE_PARAMETERS]
    assert list(training.generating(3, 16_384).values())[:6] == [*states, 2 * p]  # gathered whole


def test_checkpointing_keeps_layer_inputs_and_gpus_share_the_states_that_zeros_stage_shards():
    saved = memory.activations(QWEN3_8B, 100, False) - memory.activations(QWEN3_8B, 100, True)
    assert saved == 100 * (35 * memory.layer_activations(QWEN3_8B) - 36 * 2 * 4096)
    of_optimizer = ["float32 copy for the optimizer", "Adam's two moments"]
    by_stage = {3: ["parameters", "reference policy"], 2: ["gradients"], 1: of_optimizer}
    for zero in range(4):
        few, many = (Training(QWEN3_8B, 1000, gpus, zero, reference=True).updating() for gpus in (8, 32))
        shared = [part for stage, parts in by_stage.items() if stage <= zero for part in parts]
        assert many == {part: pytest.approx(size / 4 if part in shared else size, abs=1) for part, size in few.items()}


@pytest.mark.parametrize("width", [BF16, FP32])
def test_a_small_model_takes_the_calculated_bytes_and_generating_60_to_100_percent_of_them(width):
    shape = replace(small_qwen3.SMALL, width=width)
    assert shape.parameters == 34_479_360
    unseen = small_qwen3.TOKENS * (
        memory.layer_activations(shape) + memory.rotations(shape)
    )  # autograd does not show checkpointed layers
    assert small_qwen3.measured_activations(shape, False) == pytest.approx(
        memory.activations(shape, small_qwen3.TOKENS, False), rel=0.02
    )
    assert small_qwen3.measured_activations(shape, True) == pytest.approx(
        memory.activations(shape, small_qwen3.TOKENS, True) - unseen, rel=0.02
    )
    assert small_qwen3.measured_loss(shape) == pytest.approx(FP32 * shape.vocabulary * small_qwen3.TOKENS, rel=0.02)
    assert small_qwen3.measured_cache(shape) == memory.kv_bytes(shape) * small_qwen3.TOKENS
    assert 0.6 < small_qwen3.measured_generation(shape, 4, 256) / sum(memory.generation(shape, 4, 256).values()) < 1


@pytest.mark.slow(seconds=14)
def test_the_states_of_zero3_are_the_calculated_bytes():
    """Runs in its own process; small_qwen3.py says why."""
    done = run_python(ROOT, ["tests/support/small_qwen3.py"])
    assert done.returncode == 0, done.stderr[-2000:]
    assert (
        json.loads(done.stdout.splitlines()[-1]).items()
        <= Training(small_qwen3.SMALL, small_qwen3.TOKENS, zero=3).states().items()
    )


def test_the_shape_of_a_local_folder_is_read_if_it_is_a_dense_decoder(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "head_dim": 16}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    Qwen3Config(vocab_size=50, tie_word_embeddings=True, max_position_embeddings=99, **sizes).save_pretrained(tmp_path)
    assert shape_of(PolicyConfig(model=str(tmp_path))) == Shape(1, 32, 40, 2, 1, 16, 50, tied=True, positions=99)
    with pytest.raises(UserError, match=r"the shape of here is not known; .*Qwen/Qwen3-8B"):
        shape_of(PolicyConfig(model="here"))
    kinds = {"qwen3_moe": "has experts", "gpt2": "of a kind that", "qwen3_5_text": "layers of linear_attention"}
    for name, message in kinds.items():
        config = {"model_type": name} | ({"head_dim": 128} if name == "qwen3_moe" else {})
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
        with pytest.raises(UserError, match=message):
            shape_of(PolicyConfig(model=str(tmp_path / name)))


@pytest.mark.parametrize("text", [
    "{", "[]", '{"model_type": "qwen3", "num_hidden_layers": "4"}', '{"model_type": "qwen3", "dtype": "float7"}',
    '{"model_type": "mine", "auto_map": {"AutoConfig": "configuration.Mine"}}',
])  # fmt: skip
def test_a_config_that_cannot_be_used_is_named_with_the_reason(tmp_path, text):
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=rf"{tmp_path}/config.json cannot be used \(.+\); restore it"):
        shape_of(PolicyConfig(model=str(tmp_path)))


@pytest.mark.parametrize("kind", [(Qwen2Config, Qwen2ForCausalLM), (LlamaConfig, LlamaForCausalLM)])
def test_other_dense_decoders_are_counted_up_to_biases_and_norms(tmp_path, kind):
    config, model = kind
    sizes = {"hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    made = model(config(vocab_size=50, tie_word_embeddings=False, **sizes))
    made.save_pretrained(tmp_path)
    shape = shape_of(PolicyConfig(model=str(tmp_path)))
    assert (shape.head_dim, shape.kv_heads, shape.tied) == (16, 2, False)
    assert shape.parameters == pytest.approx(made.num_parameters(), rel=0.01)


def test_the_gpu_json_matches_the_arithmetics_assumptions():
    zero = json.loads((ROOT / "configs/launch/zero3_gpu.json").read_text())
    assert zero["zero_optimization"]["stage"] == 3
    assert zero["zero_optimization"]["stage3_max_live_parameters"] == memory.LIVE_PARAMETERS
    assert zero["data_types"] == {"grad_accum_dtype": "fp32"}


def test_the_table_omits_empty_parts_and_sums_the_columns():
    rows = memory.memory_table({"a": {"x": 1e9, "y": 0, "z": 0}, "b": {"x": 2e9, "y": 5e8}}).splitlines()[2:]
    assert rows == ["| x | 1.0 | 2.0 |", "| y | - | 0.5 |", "| **sum** | **1.0** | **2.5** |"]
