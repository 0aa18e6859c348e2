"""Bytes of a policy on each GPU, part by part, from its shape alone.

The formulas describe Qwen3 in transformers and TRL 1.16; they nearly hold for other dense decoders with gated MLPs.
tests/plan/test_memory.py measures its parts on a small model. GB are 1e9 bytes. Not counted: a prompt with its tools
(below 1,000 tokens), the allocator's fragmentation, and states that DeepSpeed offloads.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from arenarl.config.schema import PolicyConfig
from arenarl.report import markdown
from arenarl.system.errors import UserError, one_line

BF16, FP32, INDEX = 2, 4, 8  # bytes
ADAM = 2  # moments
LIVE_PARAMETERS = 1_000_000_000  # stage3_max_live_parameters of configs/launch/zero3_gpu.json, DeepSpeed's default
# tile of TRL's projection to the vocabulary (trl.kernels.chunked_logprob)
HEAD_TOKENS, HEAD_VOCABULARY = 4096, 32768
ENCODED_AT_ONCE = 2048  # tokens that the transformers back end encodes at once (arenarl.rollout.kv_cache)
ENGINE = 1e9  # bytes of vLLM's buffers and CUDA graphs, part of its share. An assumption


@dataclass(frozen=True)
class Shape:
    """Sizes of a Qwen model; the defaults hold for all dense Qwen3 models."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int = 8
    head_dim: int = 128
    vocabulary: int = 151_936
    tied: bool = False
    positions: int = 32_768  # longest sequence
    width: int = BF16  # bytes of a weight or activation

    @property
    def queries(self) -> int:
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer: four attention and three MLP matrices, and four norms."""
        return self.linear_sizes(lambda inputs, outputs: inputs * outputs) + 2 * self.hidden + 2 * self.head_dim

    @property
    def table_parameters(self) -> int:
        """Parameters of the embedding; an untied output head has the same number."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.hidden + self.table_parameters * (1 if self.tied else 2)

    def lora_parameters(self, rank: int) -> int:
        """Return the parameters of both factors for every linear layer but the head (`target_modules="all-linear"`)."""
        return self.layers * self.linear_sizes(lambda inputs, outputs: rank * (inputs + outputs))

    def linear_sizes(self, size) -> int:
        h, q, k, i = self.hidden, self.queries, self.keys, self.intermediate
        return size(h, q) + 2 * size(h, k) + size(q, h) + 2 * size(h, i) + size(i, h)


SHAPES = {  # as published in the models' config.json
    "smollm2-135m-instruct": Shape(30, 576, 1536, 9, 3, 64, 49_152, tied=True, positions=8192),
    "Qwen/Qwen2.5-7B-Instruct": Shape(28, 3584, 18_944, 28, 4, vocabulary=152_064),
    "Qwen/Qwen3-0.6B": Shape(28, 1024, 3072, 16, tied=True),
    "Qwen/Qwen3-1.7B": Shape(28, 2048, 6144, 16, tied=True),
    "Qwen/Qwen3-4B": Shape(36, 2560, 9728, 32, tied=True),
    "Qwen/Qwen3-8B": Shape(36, 4096, 12288, 32),
    "Qwen/Qwen3-14B": Shape(40, 5120, 17408, 40),
    "Qwen/Qwen3-32B": Shape(64, 5120, 25600, 64),
}


def shape_of(policy: PolicyConfig) -> Shape:
    """Return the shape of `policy.model`, by its name or its config.json (local or in the hub's cache), or of
    `policy.scratch` with its maximum vocabulary. Raises UserError if it is unknown, or not of a dense decoder."""
    model, scratch = policy.model, policy.scratch
    if model is None:
        heads = (scratch.num_heads, scratch.num_kv_heads, scratch.head_dim)
        sizes = (scratch.num_layers, scratch.hidden_size, scratch.intermediate_size, *heads, scratch.vocab_size)
        shape = Shape(*sizes, tied=True, positions=scratch.max_positions)
    else:
        shape = known_shape(model) or _shape_in(model)
    return replace(shape, width=FP32 if policy.dtype == "float32" else BF16)


def known_shape(model: str) -> Shape | None:
    """Return the shape of a model in `SHAPES`, or of a folder with a config.json; None for any other path or hub id."""
    shape = SHAPES.get(model.removesuffix("-Base"))
    if shape and model.startswith("Qwen/Qwen3-") and not model.endswith("-Base"):
        return replace(shape, positions=40_960)
    return shape or (_shape_in(model) if Path(model, "config.json").is_file() else None)


@lru_cache
def _shape_in(model: str) -> Shape:
    from transformers import AutoConfig  # only here: it takes seconds

    try:
        config = AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False).get_text_config()
    except Exception as error:  # transformers raises many types for a damaged config.json
        if Path(model, "config.json").is_file():
            raise UserError(f"{model}/config.json cannot be used ({one_line(error)}); restore it") from error
        raise UserError(
            f"the shape of {model} is not known; name a folder with its config.json, or one of {', '.join(SHAPES)}"
        ) from error
    if any(hasattr(config, name) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise UserError(f"{model} has experts; the plan is for dense models only")
    kinds = getattr(config, "layer_types", None) or ()
    others = {kind for kind in kinds if not kind.endswith("attention") or kind.startswith("linear")}
    unsuited = f"{model} is of a kind that the plan does not cover"
    if others:
        raise UserError(f"{unsuited}: it has layers of {', '.join(sorted(others))}")
    try:
        return shape_from(config)
    except AttributeError as error:
        raise UserError(f"{unsuited}: {error}") from error


def shape_from(config) -> Shape:
    """Return the shape in a transformers config, which may omit the head size and the number of key-value heads."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    layers = config.num_hidden_layers, config.hidden_size, config.intermediate_size
    positions = config.max_position_embeddings
    return Shape(*layers, heads, kv_heads, head_dim, config.vocab_size, config.tie_word_embeddings, positions)


def layer_activations(shape: Shape) -> int:
    """Return the bytes per token that a decoder layer keeps for its backward pass, without checkpointing.

    A norm keeps its input in float32, the inverse deviation, the normed value and its product with the weight.
    Attention keeps rotated queries and keys, values, its output and one float32 number per head. The MLP keeps both
    projections, the activation and the product. For transformers' sdpa attention without fused kernels.
    """
    norm = FP32 + 2 * shape.width  # per number
    norms = 2 * (shape.hidden * norm + FP32)
    queries = shape.queries * norm + shape.heads * FP32
    keys = shape.keys * norm + shape.kv_heads * FP32
    # output and values; `queries` and `keys` are separate
    attention = shape.width * (shape.queries + shape.keys) + FP32 * shape.heads
    return norms + queries + keys + attention + 4 * shape.width * shape.intermediate


def rotations(shape: Shape) -> int:
    """Return the bytes per token of the rotary embedding, which all layers share."""
    return 2 * shape.width * shape.head_dim


def activations(shape: Shape, tokens: int, checkpointing: bool) -> int:
    """Return the bytes that the decoder keeps for its backward pass, up to the output head's input.
    With checkpointing each layer keeps only its input, and one layer at a time is recomputed."""
    final_norm = shape.hidden * (FP32 + 2 * shape.width) + FP32
    per_token = INDEX + final_norm + rotations(shape)
    if checkpointing:
        return tokens * (per_token + shape.layers * shape.width * shape.hidden + layer_activations(shape))
    return tokens * (per_token + shape.layers * layer_activations(shape))


def head_memory(shape: Shape, tokens: int) -> int:
    """Return the bytes of TRL's fused output head: one tile of logits, float32 gradients of its weights and input."""
    tile = shape.width * min(tokens, HEAD_TOKENS) * min(shape.vocabulary, HEAD_VOCABULARY)
    return tile + FP32 * shape.table_parameters + FP32 * tokens * shape.hidden


def kv_bytes(shape: Shape) -> int:
    """Return the bytes per token in the key-value cache."""
    return 2 * shape.width * shape.layers * shape.keys


def generation(shape: Shape, rows: int, tokens: int) -> dict[str, int]:
    """Return the bytes of the transformers back end, beside the weights, while it generates `rows` trajectories.

    The key-value caches are kept from turn to turn and copied into a batch. New tokens are encoded at most
    `ENCODED_AT_ONCE` at a time, or one row alone if it has more. Encoding needs a mask over all pairs of tokens, which
    attention converts to the weights' type, and the widest part of one layer, attention or MLP.
    """
    attention, mlp = shape.width * (tokens + 4 * shape.queries), 4 * shape.width * shape.intermediate
    read = tokens + 4 * shape.width * shape.hidden + max(attention, mlp)
    kept = rows * tokens * kv_bytes(shape)
    return {
        "key-value caches": kept,
        "their copies in a batch": kept,
        "encoding new tokens": max(min(rows * tokens, ENCODED_AT_ONCE), tokens) * read,
    }


def vllm_part(shape: Shape, gpus: int, tokens: int) -> float:
    """Return vLLM's bytes per GPU, with a cache for `tokens` tokens; `gpus` share it, but never split a head."""
    return ENGINE + shape.width * shape.parameters / gpus + tokens * kv_bytes(shape) / min(gpus, shape.kv_heads)


def vllm_cache(shape: Shape, share: float, gpus: int = 1) -> int:
    """Return the tokens in vLLM's cache with `share` bytes per GPU; negative if the weights do not fit."""
    return int((share - vllm_part(shape, gpus, 0)) * min(gpus, shape.kv_heads) // kv_bytes(shape))


@dataclass(frozen=True)
class Training:
    """Training of a shape. DeepSpeed's stage `zero` shards states over `gpus`; at 0 each GPU holds everything."""

    shape: Shape
    tokens: int  # in one forward pass on one GPU
    gpus: int = 1
    zero: int = 0
    lora_rank: int = 0
    checkpointing: bool = True
    reference: bool = False  # frozen copy for the KL term; with LoRA the base model serves
    critic: bool = False  # PPO's critic: a second policy, never sharded

    def states(self) -> dict[str, int]:
        """Return the bytes on each GPU of weights and optimizer states, by part."""
        shape, rank = self.shape, self.lora_rank
        frozen, trained = (shape.parameters, shape.lora_parameters(rank)) if rank else (0, shape.parameters)
        weight = FP32 if rank else shape.width  # PEFT keeps an adapter in float32
        state = FP32 if self.zero else weight  # AdamW's moments have the dtype of the trained weights
        parts = {  # part -> (bytes, the stage of ZeRO that shards it)
            "parameters": (shape.width * frozen + weight * trained, 3),
            "gradients": (state * trained, 2),
            "float32 copy for the optimizer": (FP32 * trained if self.zero else 0, 1),
            "Adam's two moments": (ADAM * state * trained, 1),
            "reference policy": (shape.width * shape.parameters if self.reference and not rank else 0, 3),
        }
        critic = {"critic": shape.width * frozen + (2 + ADAM) * weight * trained} if self.critic else {}
        shared = {name: size // (self.gpus if self.zero >= stage else 1) for name, (size, stage) in parts.items()}
        return shared | critic

    def gathered(self, parameters: int) -> dict[str, int]:
        size = self.shape.width * min(parameters, self.shape.parameters) if self.zero == 3 else 0
        return {"parameters gathered while in use": size}

    def updating(self) -> dict[str, int]:
        """Return the bytes on each GPU during the backward pass, by part."""
        shape = self.shape
        # LoRA does not train the head
        head = head_memory(shape, self.tokens) - (FP32 * shape.table_parameters if self.lora_rank else 0)
        passes = {"activations": activations(shape, self.tokens, self.checkpointing), "output head": head}
        return self.states() | self.gathered(LIVE_PARAMETERS) | passes

    def waiting(self) -> dict[str, int]:
        """Return the bytes while vLLM generates; one parameter at a time is gathered and sent to it."""
        return self.states() | self.gathered(self.shape.table_parameters)

    def generating(self, rows: int, tokens: int) -> dict[str, int]:
        """Return the bytes while the trainer's own model, gathered whole, generates `rows` trajectories at once."""
        return self.states() | self.gathered(self.shape.parameters) | generation(self.shape, rows, tokens)


def gb(size: float) -> str:
    return f"{size / 1e9:,.1f}" if size else "-"


def memory_table(columns: dict[str, dict[str, float]]) -> str:
    """Return a Markdown table of bytes by part, one column per entry, with sums."""
    parts = dict.fromkeys(part for column in columns.values() for part in column)
    rows = [[part, *(gb(column.get(part, 0)) for column in columns.values())] for part in parts]
    rows = [row for row in rows if set(row[1:]) != {"-"}]
    rows.append(["**sum**", *(f"**{gb(sum(column.values()))}**" for column in columns.values())])
    return markdown.table(["GB on each GPU", *columns], rows)
