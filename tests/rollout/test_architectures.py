"""Every causal architecture of transformers, in a tiny random config: right rollouts, or one line that refuses it.

Right means: batched, cached, left-padded turns have the tokens of plain passes over single rows.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import get_peft_model
from policies import generate
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from trl.trainer.utils import add_fused_lm_head

from arenarl.rollout.attention import prepare_attention
from arenarl.rollout.generation import TransformersGenerator, TurnRequest
from arenarl.rollout.kv_cache import TrajectoryCache
from arenarl.rollout.policy import lora_config, sequence_limit
from arenarl.system.errors import UserError
from arenarl.training.sft_internals import HeadTrial, prepare

SIZES = {  # sizes under the names that configs have for them
    32: "hidden_size d_model n_embd dim embedding_size emb_dim intermediate_size ffn_dim encoder_ffn_dim "
        "decoder_ffn_dim d_inner n_inner dff dim_ff input_embedding_size",
    16: "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size expert_ffn_hidden_size "
        "ffn_hidden_size moe_shared_expert_intermediate_size chunk_size mamba_chunk_size mamba_d_head mamba_head_dim "
        "q_lora_rank kv_lora_rank image_size index_head_dim",
    8: "head_dim d_kv qk_rope_head_dim qk_nope_head_dim v_head_dim sliding_window attention_window_size state_size "
       "mamba_d_state linear_key_head_dim linear_value_head_dim kv_channels hidden_size_per_layer_input",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads num_experts "
       "num_local_experts n_routed_experts moe_num_experts rotary_dim mamba_n_heads mamba_num_heads time_step_rank "
       "mamba_dt_rank patch_size index_n_heads",
    2: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers "
       "num_decoder_layers num_key_value_heads num_experts_per_tok moe_top_k moe_topk num_experts_per_token "
       "linear_num_value_heads linear_num_key_heads",
    1: "n_group topk_group first_k_dense_replace mamba_n_groups n_groups depth bos_token_id",
    64: "vocab_size prompt_vocab_size vocab_size_per_layer_input index_topk",
    128: "max_position_embeddings n_positions max_seq_len context_length max_target_positions",
    0: "pad_token_id",
    3: "eos_token_id",
}  # fmt: skip
TINY = {name: size for size, names in SIZES.items() for name in names.split()} | {"is_decoder": True}
LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"]}
LATENT = {"num_key_value_heads": 4}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
PART = {"text_config": LINEAR}
INDEXED = LINEAR | {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8,
                    "indexer_compress_ratio": 2}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {  # values that an architecture needs
    **dict.fromkeys(("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa",
                     "longcat_flash", "minicpm3", "youtu"), LATENT),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), LINEAR),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe"), PART),
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 64},
    "cohere_compass_text": WINDOWS | {"rope_parameters": {kind: ROPE for kind in WINDOWS["layer_types"]}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0}},
    "dots1": {"n_shared_experts": 1},
    "ernie4_5_moe": {"moe_k": 2},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma3n_text": WINDOWS | {"num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": LATENT | LINEAR | {"linear_head_dim": 8, "linear_num_heads": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8},
    "qwen4_exp": {"text_config": INDEXED}, "qwen4_exp_text": INDEXED,
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 16]},
    "roc_bert": {"pronunciation_vocab_size": 64, "shape_vocab_size": 64},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["mamba", "hybrid"] * 2, "num_hidden_layers": 4},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
# families that must not be refused
FAMILIES = set("llama qwen2 qwen3 qwen3_moe qwen3_next qwen3_5 gemma2 gemma3 mistral mixtral phi3 deepseek_v3 gpt_oss "
               "glm4_moe olmo2 falcon_h1 granitemoehybrid jamba bamba zamba2 lfm2 gpt2 bloom opt".split())  # fmt: skip
UNTRIED = {  # why no tiny config is built
    "gemma3n": "its images need the package timm; gemma3n_text is tried",
    "gemma4_assistant": "drafts tokens for another model, whose states it reads",
    "gemma4_unified_assistant": "drafts tokens for another model, whose states it reads",
    "got_ocr2": "its image encoder has fixed sizes of 470 million parameters; its text model, qwen2, is tried",
    "musicgen": "generates audio from the states of a text encoder",
    "musicgen_melody": "generates audio from the states of a text encoder",
}


def tiny(kind: type[PreTrainedConfig], values: dict[str, Any]) -> PreTrainedConfig:
    fields = {name for base in kind.__mro__ for name in getattr(base, "__annotations__", ())}
    parts = {name: part for name, part in kind.sub_configs.items() if part is not AutoConfig}
    values |= {name: tiny(part, dict(values.get(name, {}))) for name, part in parts.items()}
    return kind(**{name: size for name, size in TINY.items() if name in fields} | values)


def build(name: str) -> PreTrainedModel:
    """Return a tiny random model, with outputs that a checkpoint's config may ask for."""
    config = tiny(CONFIG_MAPPING[name], dict(OTHERS.get(name, {})))
    text = config.get_text_config()
    for key, value in {"output_router_logits": True, "use_cache": False}.items():
        if hasattr(text, key):
            setattr(text, key, value)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).float().eval()


def differing_row(model: PreTrainedModel, tokenizer: Any) -> int | None:
    """Return a row with a token of two turns that is not the most likely one of a plain pass over this row alone."""
    generator = TransformersGenerator(model, tokenizer, 4)
    generator.eos_id = -1
    prompts, caches = [[11, 12, 13], list(range(20, 45)), [5]], [TrajectoryCache() for _ in range(3)]
    own: list[list[int]] = [[], [], []]  # places of the generated tokens
    for _ in range(2):
        rows = zip(prompts, (3, 6, 5), caches, strict=True)
        turns = generate(generator, [TurnRequest(prompt, budget, 0.0, 0, cache) for prompt, budget, cache in rows])
        for row, turn in enumerate(turns):
            own[row] += range(len(prompts[row]), len(prompts[row]) + len(turn.token_ids))
            prompts[row] = [*prompts[row], *turn.token_ids, *range(50, 51 + 4 * row)]
    for row, (ids, places) in enumerate(zip(prompts, own, strict=True)):
        with torch.no_grad():
            likely = model(torch.tensor([ids]), output_router_logits=False).logits[0].argmax(dim=-1)
        if [ids[place] for place in places] != [int(likely[place - 1]) for place in places]:
            return row
    return None


def try_head(model: PreTrainedModel) -> None:
    """Try TRL's head, as before training, without the loss of router logits, which fails for some experts."""
    model.config.get_text_config().output_router_logits = False
    with torch.no_grad():
        model.get_output_embeddings().weight.normal_()
    add_fused_lm_head(model)
    HeadTrial(SimpleNamespace(model=model)).on_train_begin(None, None, None)


@pytest.mark.parametrize("name", ["falcon_h1", "jamba", "llama4_text", "mamba", "nemotron_h", "phimoe"])
def test_lora_adapts_exactly_the_layers_that_give_it_a_gradient(name):
    """PEFT refuses some layers of Mamba models and routers; kernels read others without the adapter."""
    model = build(name)
    model.config.output_router_logits = False
    model, ids = get_peft_model(model, lora_config(2)), torch.arange(5, 25)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    trained = {layer: weights for layer, weights in model.named_parameters() if weights.requires_grad}
    assert trained and all(weights.grad is not None for weights in trained.values())


@pytest.mark.slow(seconds=40)
def test_every_causal_architecture_is_right_or_refused_in_one_line(tokenizer, tmp_path):
    prepare_attention()
    prepare()
    refused, wrong, untrainable = {}, {}, {}
    for name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - UNTRIED.keys()):
        model = build(name)
        try:
            if (row := differing_row(model, tokenizer)) is not None:
                wrong[name] = row
        except UserError as error:
            refused[name] = str(error)
            continue
        model.config.save_pretrained(tmp_path)
        try:
            try_head(model)
        except UserError as error:
            untrainable[name] = str(error)
        assert not (limit := sequence_limit(str(tmp_path))) or limit.tokens >= 8, name
    assert not wrong and not refused.keys() & FAMILIES and not untrainable.keys() & FAMILIES, refused | untrainable
    assert all("\n" not in line and "rollout.backend=vllm" in line for line in refused.values())
