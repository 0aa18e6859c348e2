"""Configs of tiny random models: common parts, and vision models, whose text config is nested in theirs."""

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
_VISION = {"hidden_size": 16, "intermediate_size": 16, "patch_size": 4}


def qwen3_5(**changes) -> Qwen3_5Config:
    """Return a config for which AutoModelForCausalLM builds another class than its architecture."""
    vision = _VISION | {"depth": 1, "num_heads": 2, "out_hidden_size": 32, "num_position_embeddings": 16}
    architectures = ["Qwen3_5ForConditionalGeneration"]
    return Qwen3_5Config(text_config=SMALL | LINEAR | changes, vision_config=vision, architectures=architectures)


def gemma3(**changes) -> Gemma3Config:
    vision = _VISION | {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16}
    other = {"mm_tokens_per_image": 4, "architectures": ["Gemma3ForConditionalGeneration"]}
    return Gemma3Config(text_config=SMALL | WINDOWS | changes, vision_config=vision, **other)


def build(config) -> PreTrainedModel:
    """Build the class that the config names, in float32 and evaluation mode."""
    return getattr(transformers, config.architectures[0])(config).float().eval()
