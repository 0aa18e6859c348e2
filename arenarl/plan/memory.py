"""Memory that a run at the paper's scale takes on each GPU, from the model's shape alone, before anything is started.

    python -m arenarl.plan.memory --config configs/travel/rl_arenarl_qwen3_8b.yaml --gpus 8

prints a table, part by part. `--readme` fills in configs/launch/README.md, between its markers. The arithmetic is for Qwen3 as
transformers and TRL 1.16 run it in bfloat16; `memory_check` measures its parts on a small model. Not counted: CUDA's own context and
libraries (1-2 GB), what the allocator cannot use, buffers of collectives.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

from arenarl.config.command_line import add_overrides, refuse_overrides_without_config
from arenarl.config.load import load_config
from arenarl.config.schema import Config
from arenarl.report import markdown
from arenarl.system.errors import UserError

GIB = 2**30
BF16, FP32, INDEX = 2, 4, 8  # bytes
ADAM = 2  # moments
LIVE_PARAMETERS = 1_000_000_000  # stage3_max_live_parameters of configs/launch/zero3_gpu.json, DeepSpeed's default
HEAD_TOKENS, HEAD_VOCABULARY = 4096, 32768  # of the tile in which TRL projects to the vocabulary (trl.kernels.chunked_logprob)
DOCUMENT = Path("configs/launch/README.md")


@dataclass(frozen=True)
class Shape:
    """A Qwen3's numbers; the defaults that all dense ones share."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int = 8
    head_dim: int = 128
    vocabulary: int = 151_936
    tied: bool = False

    @property
    def queries(self) -> int:
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Four attention and three MLP matrices, two norms, and the norms of queries and keys."""
        return self.linear_sizes(lambda inputs, outputs: inputs * outputs) + 2 * self.hidden + 2 * self.head_dim

    @property
    def table_parameters(self) -> int:
        """The embedding, and as many for an output head of its own."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.hidden + self.table_parameters * (1 if self.tied else 2)

    def lora_parameters(self, rank: int) -> int:
        """Both factors for every linear layer but the head, as `target_modules="all-linear"` takes them."""
        return self.layers * self.linear_sizes(lambda inputs, outputs: rank * (inputs + outputs))

    def linear_sizes(self, size) -> int:
        h, q, k, i = self.hidden, self.queries, self.keys, self.intermediate
        return size(h, q) + 2 * size(h, k) + size(q, h) + 2 * size(h, i) + size(i, h)


SHAPES = {  # as published in the models' config.json
    "Qwen/Qwen3-0.6B": Shape(28, 1024, 3072, 16, tied=True),
    "Qwen/Qwen3-1.7B": Shape(28, 2048, 6144, 16, tied=True),
    "Qwen/Qwen3-4B": Shape(36, 2560, 9728, 32, tied=True),
    "Qwen/Qwen3-8B": Shape(36, 4096, 12288, 32),
    "Qwen/Qwen3-14B": Shape(40, 5120, 17408, 40),
    "Qwen/Qwen3-32B": Shape(64, 5120, 25600, 64),
}


def shape_of(model: str) -> Shape:
    """By the model's name, or from the config.json of a local folder.

    Raises:
        UserError: neither known nor a folder with a Qwen3's config.
    """
    if known := SHAPES.get(model.removesuffix("-Base")):
        return known
    if not (Path(model) / "config.json").is_file():
        raise UserError(f"the shape of {model} is not known; name a local folder that holds it, or one of {', '.join(SHAPES)}")
    from transformers import AutoConfig

    return shape_from(AutoConfig.from_pretrained(model))


def shape_from(config) -> Shape:
    """Of a transformers config."""
    c = config
    sizes = (c.num_hidden_layers, c.hidden_size, c.intermediate_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim, c.vocab_size)
    return Shape(*sizes, tied=c.tie_word_embeddings)


def layer_activations(shape: Shape) -> int:
    """Bytes a token that a decoder layer keeps for its backward pass in bfloat16, without checkpointing.

    A norm keeps its input in float32, the inverse deviation, the normed value and its product with the weight; attention keeps
    rotated queries and keys, values, its output and a float32 number a head; the MLP keeps both projections, the activation and the
    product. With transformers' sdpa attention and no fused kernels.
    """
    norm = FP32 + BF16 + BF16  # a number
    norms = 2 * (shape.hidden * norm + FP32)
    queries = shape.queries * norm + shape.heads * FP32
    keys = shape.keys * norm + shape.kv_heads * FP32
    attention = BF16 * (shape.queries + shape.keys) + FP32 * shape.heads  # output and values; queries and keys are counted above
    return norms + queries + keys + attention + 4 * BF16 * shape.intermediate


def rotations(shape: Shape) -> int:
    """Bytes of a token's rotary embedding, which all layers share."""
    return 2 * BF16 * shape.head_dim


def activations(shape: Shape, tokens: int, checkpointing: bool) -> int:
    """Bytes that the decoder keeps for its backward pass, up to the output head's input.

    With checkpointing every layer keeps its input only, and one layer at a time is computed again.
    """
    final_norm = shape.hidden * (FP32 + BF16 + BF16) + FP32
    per_token = INDEX + final_norm + rotations(shape)
    if checkpointing:
        return tokens * (per_token + shape.layers * BF16 * shape.hidden + layer_activations(shape))
    return tokens * (per_token + shape.layers * layer_activations(shape))


def head_memory(shape: Shape, tokens: int) -> int:
    """TRL's fused output head: one tile of logits, and float32 gradients of the head's weights and of its input."""
    tile = BF16 * min(tokens, HEAD_TOKENS) * min(shape.vocabulary, HEAD_VOCABULARY)
    return tile + FP32 * shape.table_parameters + FP32 * tokens * shape.hidden


def kv_bytes(shape: Shape) -> int:
    """Of a token in the key-value cache, bfloat16."""
    return 2 * BF16 * shape.layers * shape.keys


@dataclass(frozen=True)
class Plan:
    """How a shape is trained. `gpus` share what ZeRO-3 shards; without `zero` each holds all."""

    shape: Shape
    tokens: int  # that go through the model at once, on one GPU
    gpus: int = 1
    zero: bool = False
    lora_rank: int = 0
    checkpointing: bool = True
    reference: bool = False  # a frozen copy for the KL term; with LoRA it is the base without the adapter

    def training(self) -> dict[str, int]:
        """Bytes on each GPU, part by part. They are all there during the backward pass."""
        shape, shards = self.shape, self.gpus if self.zero else 1
        frozen = shape.parameters if self.lora_rank else 0
        trained = shape.lora_parameters(self.lora_rank) if self.lora_rank else shape.parameters
        weights = FP32 if self.lora_rank else BF16  # PEFT keeps an adapter in float32
        master = FP32 if self.zero else 0
        state = FP32 if self.zero or self.lora_rank else BF16  # AdamW's moments have the dtype of what it trains
        parts = {
            "parameters": BF16 * frozen + weights * trained,
            "gradients": (FP32 if self.zero else weights) * trained,
            "float32 copy for the optimizer": master * trained,
            "Adam's two moments": ADAM * state * trained,
            "reference policy": BF16 * shape.parameters if self.reference and not self.lora_rank else 0,
        }
        parts = {name: size // shards for name, size in parts.items()}
        parts["parameters gathered while in use"] = BF16 * min(LIVE_PARAMETERS, shape.parameters) if self.zero else 0
        parts["activations"] = activations(shape, self.tokens, self.checkpointing)
        parts["output head"] = head_memory(shape, self.tokens) - (FP32 * shape.table_parameters if self.lora_rank else 0)  # the head is frozen
        return parts


def plans_of(config: Config, gpus: list[int], tokens: int) -> dict[str, Plan]:
    """Full fine-tuning under ZeRO-3 over so many GPUs each, then LoRA, which shards nothing."""
    shape = shape_of(config.policy.model or "")
    how = {"tokens": tokens, "checkpointing": True, "reference": config.rl.beta > 0}
    full = {f"full, ZeRO-3 over {count}": Plan(shape, gpus=count, zero=True, **how) for count in gpus}
    rank = config.policy.lora_rank or 32
    return full | {"full, not sharded": Plan(shape, **how), f"LoRA {rank}, not sharded": Plan(shape, lora_rank=rank, **how)}


def gib(size: float) -> str:
    return f"{size / GIB:,.1f}" if size else "-"


def training_table(plans: dict[str, Plan]) -> str:
    """GiB on each GPU while training, as Markdown."""
    columns = [plan.training() for plan in plans.values()]
    rows = [[name, *(gib(column[name]) for column in columns)] for name in columns[0]]
    rows.append(["**sum**", *(f"**{gib(sum(column.values()))}**" for column in columns)])
    return markdown.table(["GiB on each GPU", *plans], rows)


def sequence_table(shape: Shape, lengths: list[int]) -> str:
    """What grows with the length of a trajectory, as Markdown."""
    rows = [
        ["activations, no checkpointing", *(gib(activations(shape, length, False)) for length in lengths)],
        ["activations, every layer checkpointed", *(gib(activations(shape, length, True)) for length in lengths)],
        [f"logits, whole: {shape.vocabulary:,} x tokens, bfloat16", *(gib(BF16 * shape.vocabulary * length) for length in lengths)],
        ["the same in float32, of which a plain loss keeps one", *(gib(FP32 * shape.vocabulary * length) for length in lengths)],
        ["output head in tiles, as TRL 1.16 does it", *(gib(head_memory(shape, length)) for length in lengths)],
        ["key-value cache of one trajectory", *(gib(kv_bytes(shape) * length) for length in lengths)],
    ]
    return markdown.table(["GiB for one trajectory of", *(f"{length:,} tokens" for length in lengths)], rows)


def vllm_table(shape: Shape, memories: dict[str, int], share: float, length: int) -> str:
    """What a colocated vLLM holds while awake, at a share of the GPU's memory, and how many trajectories that serves, as Markdown."""
    rows = []
    for name, memory in memories.items():
        cache = share * memory * 1e9 - BF16 * shape.parameters
        tokens = int(cache / kv_bytes(shape))
        rows.append([f"{name}, {memory} GB", gib(BF16 * shape.parameters), gib(cache), f"{tokens:,}", str(tokens // length)])
    return markdown.table(["GPU", "weights, GiB", "left for the cache, GiB", "tokens in it", f"trajectories of {length:,} tokens at once"], rows)


GPUS = {"H800 or H100": 80, "H20 (the paper's)": 96, "H200": 141}
LONG = 32_768


def document_tables() -> dict[str, str]:
    """Marker in configs/launch/README.md -> what stands between it and its end."""
    config = load_config("configs/travel/rl_arenarl_qwen3_8b.yaml")
    shape = shape_of(config.policy.model)
    return {
        "training": training_table(plans_of(config, [8, 32], LONG)),
        "sequence": sequence_table(shape, [config.rollout.max_tokens, LONG]),
        "vllm": f"A token of the cache is {kv_bytes(shape) // 1024} KiB.\n\n" + vllm_table(shape, GPUS, 0.5, LONG),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", help="a run's YAML")
    what.add_argument("--readme", action="store_true", help=f"write the tables of {DOCUMENT}")
    add_overrides(parser)
    parser.add_argument("--gpus", type=int, nargs="+", default=[8], help="over how many to shard; several make several columns")
    parser.add_argument("--tokens", type=int, help="of a trajectory, prompt included; else the longest that the config allows after its prompt")
    arguments = parser.parse_args()
    refuse_overrides_without_config(parser, arguments)
    if arguments.readme:
        from arenarl.plan.memory_check import comparison, table

        markdown.fill_in(DOCUMENT, document_tables() | {"check": table(comparison())})
        return
    config = load_config(arguments.config, arguments.overrides)
    if config.policy.model is None:
        raise UserError(f"{arguments.config} builds its policy from policy.scratch; name a config with a policy.model")
    tokens = arguments.tokens or max(config.rollout.max_tokens, config.sft.max_length)
    shape = shape_of(config.policy.model)
    print(f"{config.policy.model}: {shape.parameters / 1e9:.2f} billion parameters; one trajectory of {tokens:,} tokens at once\n")
    print(training_table(plans_of(config, arguments.gpus, tokens * config.rl.micro_batch_size)), "\n")
    print(sequence_table(shape, sorted({tokens, LONG})), "\n")
    print(vllm_table(shape, GPUS, 0.5, tokens))


if __name__ == "__main__":
    from arenarl.system.errors import guarded

    guarded(main)
