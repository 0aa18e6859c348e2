"""Configs of tiny random models: the parts that several kinds share, and models of images too,
whose text's part is a config within theirs."""

import transformers
from transformers import Gemma3Config, PreTrainedModel, Qwen3_5Config

SMALL = {
    "vocab_size": 700, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512, "eos_token_id": 3, "pad_token_id": 0,
    "bos_token_id": 1,
}  # fmt: skip
LINEAR = {
    "linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
WINDOWS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
_SEES = {"hidden_size": 16, "intermediate_size": 16, "patch_size": 4}


def qwen3_5(**of_text) -> Qwen3_5Config:
    """AutoModelForCausalLM makes another class of it than its architecture."""
    seen = _SEES | {"depth": 1, "num_heads": 2, "out_hidden_size": 32, "num_position_embeddings": 16}
    return Qwen3_5Config(
        text_config=SMALL | LINEAR | of_text, vision_config=seen, architectures=["Qwen3_5ForConditionalGeneration"]
    )


def gemma3(**of_text) -> Gemma3Config:
    seen = _SEES | {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16}
    text = SMALL | WINDOWS | of_text
    return Gemma3Config(
        text_config=text, vision_config=seen, mm_tokens_per_image=4, architectures=["Gemma3ForConditionalGeneration"]
    )


def build(config) -> PreTrainedModel:
    """In float32, for reading; of the class that the config names."""
    return getattr(transformers, config.architectures[0])(config).float().eval()
