"""Measures, on a small random Qwen3 on the CPU, what `memory` computes: bytes of states, of tensors kept for the backward pass, of the cache.

    python -m arenarl.plan.memory_check

prints computed against measured, part by part. Activations are what autograd's saved-tensor hooks see, each storage once and without
the parameters; the states of parameters, gradients and optimizer are those of a real ZeRO-3 engine (one process, whose share is all).
"""

import json
import os

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from arenarl.judges.server import free_port
from arenarl.plan.memory import ADAM, BF16, FP32, Shape, activations, kv_bytes, layer_activations, rotations
from arenarl.report import markdown
from arenarl.run.zero3 import start_deepspeed
from arenarl.system.repository import CONFIGS

SMALL = Shape(layers=6, hidden=512, intermediate=1536, heads=8, kv_heads=2, head_dim=64, vocabulary=16_000)  # 34 million parameters
TOKENS = 192
ZERO3 = CONFIGS / "launch" / "zero3_gpu.json"
TOLERANCE = 0.02  # by which activations may differ; states may not differ at all


def build_model(shape: Shape) -> Qwen3ForCausalLM:
    """A random model in bfloat16."""
    config = Qwen3Config(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.intermediate, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim, tie_word_embeddings=shape.tied,
    )  # fmt: skip
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config).to(torch.bfloat16)


class SavedBytes(torch.autograd.graph.saved_tensors_hooks):
    """Adds up the storages that autograd keeps inside the block, each once, without those of `model`'s parameters."""

    def __init__(self, model: torch.nn.Module):
        known = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        self.storages: dict[int, int] = {}
        kept = []  # so that no storage is freed and its address used again while they are counted

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                self.storages[storage.data_ptr()] = storage.nbytes()
                kept.append(tensor)
            return tensor

        super().__init__(pack, lambda tensor: tensor)

    def __enter__(self) -> "SavedBytes":
        super().__enter__()
        return self

    @property
    def total(self) -> int:
        return sum(self.storages.values())


def measured_activations(shape: Shape, tokens: int, checkpointing: bool) -> int:
    """Bytes that autograd keeps for one trajectory; with checkpointing without the layer that is computed again, and the rotations."""
    model = build_model(shape).train()
    if checkpointing:  # the reentrant kind shows the hooks the layers' inputs; the other keeps the same tensors out of their sight
        model.gradient_checkpointing_enable({"use_reentrant": True})
    with SavedBytes(model) as saved:
        model(input_ids=torch.arange(tokens)[None] % shape.vocabulary, use_cache=False)
    return saved.total


def measured_loss(shape: Shape, tokens: int) -> int:
    """Bytes that a plain cross-entropy over whole logits keeps on top."""
    model = build_model(shape).train()
    input_ids = torch.arange(tokens)[None] % shape.vocabulary
    with SavedBytes(model) as decoder:
        model(input_ids=input_ids, use_cache=False)
    with SavedBytes(model) as whole:
        model(input_ids=input_ids, labels=input_ids, use_cache=False)
    return whole.total - decoder.total


def measured_cache(shape: Shape, tokens: int) -> int:
    """Bytes of the key-value cache."""
    with torch.no_grad():
        cache = build_model(shape).eval()(input_ids=torch.arange(tokens)[None] % shape.vocabulary, use_cache=True).past_key_values
    return sum(tensor.nbytes for layer in cache.layers for tensor in (layer.keys, layer.values))


def measured_states(shape: Shape) -> dict[str, int]:
    """Bytes of a ZeRO-3 engine of one process after one step, by configs/launch/zero3_gpu.json."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    import deepspeed

    start_deepspeed()
    model = build_model(shape)
    config = _without_auto(json.loads(ZERO3.read_text(encoding="utf-8"))) | {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-6), config=config)
    engine.backward(engine(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss)
    engine.step()
    zero = engine.optimizer
    moments = [tensor for state in zero.optimizer.state.values() for tensor in state.values() if torch.is_tensor(tensor) and tensor.numel() > 1]
    return {
        "parameters": sum(parameter.ds_tensor.nbytes for parameter in model.parameters()),
        "gradients": zero.grad_partitions_flat_buffer.nbytes,
        "float32 copy for the optimizer": sum(group.nbytes for group in zero.fp32_partitioned_groups_flat),
        "Adam's two moments": sum(tensor.nbytes for tensor in moments),
    }


def _without_auto(values: dict) -> dict:
    """A DeepSpeed config without what a trainer would fill in."""
    return {key: _without_auto(value) if isinstance(value, dict) else value for key, value in values.items() if value != "auto"}


def comparison(shape: Shape = SMALL, tokens: int = TOKENS) -> dict[str, tuple[int, int]]:
    """Part -> (computed, measured) bytes."""
    p, states = shape.parameters, measured_states(shape)
    computed = {"parameters": BF16 * p, "gradients": FP32 * p, "float32 copy for the optimizer": FP32 * p, "Adam's two moments": ADAM * FP32 * p}
    unseen = tokens * (layer_activations(shape) + rotations(shape))  # by autograd, where layers are checkpointed
    return {name: (computed[name], states[name]) for name in computed} | {
        "activations": (activations(shape, tokens, False), measured_activations(shape, tokens, False)),
        "activations, layer inputs only": (activations(shape, tokens, True) - unseen, measured_activations(shape, tokens, True)),
        "a plain loss over whole logits": (FP32 * shape.vocabulary * tokens, measured_loss(shape, tokens)),
        "key-value cache": (kv_bytes(shape) * tokens, measured_cache(shape, tokens)),
    }


def table(found: dict[str, tuple[int, int]]) -> str:
    """As Markdown."""
    rows = [[name, f"{computed:,}", f"{measured:,}", f"{measured / computed - 1:+.2%}"] for name, (computed, measured) in found.items()]
    return markdown.table(["bytes", "computed", "measured", "difference"], rows)


if __name__ == "__main__":
    print(table(comparison()))
