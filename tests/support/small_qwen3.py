"""Measure the bytes that `arenarl.plan.memory` computes, on a small random Qwen3 on the CPU.

Measured are states, tensors saved for the backward pass, and generation. As a script it prints the states of a real
ZeRO-3 engine with one process; a separate process, because DeepSpeed changes global state.
"""

import json
import os
import weakref
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from transformers import Qwen3Config, Qwen3ForCausalLM

from arenarl.judges.local_server import free_port
from arenarl.plan.memory import BF16, Shape
from arenarl.rollout.generation import TransformersGenerator, TurnRequest
from arenarl.rollout.kv_cache import TrajectoryCache
from arenarl.run.trainer_arguments import start_deepspeed
from arenarl.system.repository import CONFIGS

# 34 million parameters
SMALL = Shape(layers=6, hidden=512, intermediate=1536, heads=8, kv_heads=2, head_dim=64, vocabulary=16_000)
TOKENS = 192


def build_model(shape: Shape) -> Qwen3ForCausalLM:
    """Return a random model, in bfloat16 or float32 by the shape's width."""
    config = Qwen3Config(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim, tie_word_embeddings=shape.tied, max_position_embeddings=shape.positions,
    )  # fmt: skip
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config).to(torch.bfloat16 if shape.width == BF16 else torch.float32)


def token_ids(shape: Shape, rows: int = 1, tokens: int = TOKENS) -> torch.Tensor:
    return torch.arange(tokens).repeat(rows, 1) % shape.vocabulary


class SavedBytes(torch.autograd.graph.saved_tensors_hooks):
    """Sum the storages that autograd saves inside the block, each once, without the parameters of `model`."""

    def __init__(self, model: torch.nn.Module):
        known = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        self.storages: dict[int, int] = {}
        kept = []  # prevents that a storage is freed and its address reused

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


class PeakBytes(TorchDispatchMode):
    """Record the peak bytes of tensors created inside the block, without the parameters of `model`."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.live = dict.fromkeys((parameter.untyped_storage()._cdata for parameter in model.parameters()), 0)
        self.now = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_flatten(result)[0]:
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage())._cdata not in self.live:
                self.live[storage._cdata] = storage.nbytes()
                self.now += storage.nbytes()
                weakref.finalize(storage, self._free, storage._cdata)
        self.peak = max(self.peak, self.now)
        return result

    def _free(self, key: int) -> None:
        self.now -= self.live.pop(key)


def measured_activations(shape: Shape, checkpointing: bool) -> int:
    """Return the bytes that autograd saves for one trajectory; with checkpointing, without the recomputed layer."""
    model = build_model(shape).train()
    # only reentrant checkpointing saves the layers' inputs through these hooks
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": True})
    with SavedBytes(model) as saved:
        model(input_ids=token_ids(shape), use_cache=False)
    return saved.total


def measured_loss(shape: Shape) -> int:
    """Return the additional bytes that a plain cross-entropy over all logits saves."""
    model, input_ids = build_model(shape).train(), token_ids(shape)
    with SavedBytes(model) as decoder:
        model(input_ids=input_ids, use_cache=False)
    with SavedBytes(model) as whole:
        model(input_ids=input_ids, labels=input_ids, use_cache=False)
    return whole.total - decoder.total


def measured_cache(shape: Shape) -> int:
    """Return the bytes of one trajectory's key-value cache."""
    with torch.no_grad():
        cache = build_model(shape).eval()(input_ids=token_ids(shape), use_cache=True).past_key_values
    return sum(tensor.nbytes for layer in cache.layers for tensor in (layer.keys, layer.values))


def measured_generation(shape: Shape, rows: int, tokens: int) -> int:
    """Return the peak bytes beside the weights while the transformers back end generates.

    Rows of different lengths are read in two turns, with one new token each.
    """
    model, tokenizer = build_model(shape).eval(), SimpleNamespace(eos_token_id=-1)
    generator, caches = TransformersGenerator(model, tokenizer, rows), [TrajectoryCache() for _ in range(rows)]
    prompts = [[row + 1] * (tokens - row) for row in range(rows)]
    with PeakBytes(model) as peak:
        for share in (8, 1):
            begun = [prompt[: len(prompt) // share] for prompt in prompts]
            generator._generate_all(
                [TurnRequest(prompt, 2, 0.0, 0, cache) for prompt, cache in zip(begun, caches, strict=True)]
            )
    return peak.peak


def measured_states(shape: Shape) -> dict[str, int]:
    """Return the bytes of a ZeRO-3 engine with one process after one step of configs/launch/zero3_gpu.json."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    import deepspeed

    start_deepspeed()
    model = build_model(shape)
    config = _without_auto(json.loads((CONFIGS / "launch" / "zero3_gpu.json").read_text(encoding="utf-8")))
    config |= {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": shape.width == BF16}}
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-6), config=config
    )
    engine.backward(engine(input_ids=token_ids(shape), labels=token_ids(shape)).loss)
    engine.step()
    zero = engine.optimizer
    states = [tensor for state in zero.optimizer.state.values() for tensor in state.values()]
    return {
        "parameters": sum(parameter.ds_tensor.nbytes for parameter in model.parameters()),
        "gradients": zero.grad_partitions_flat_buffer.nbytes,
        "float32 copy for the optimizer": sum(group.nbytes for group in zero.fp32_partitioned_groups_flat),
        "Adam's two moments": sum(one.nbytes for one in states if torch.is_tensor(one) and one.numel() > 1),
    }


def _without_auto(values: dict) -> dict:
    """Remove the values that a trainer would fill in from a DeepSpeed config."""
    known = {key: value for key, value in values.items() if value != "auto"}
    return {key: _without_auto(value) if isinstance(value, dict) else value for key, value in known.items()}


if __name__ == "__main__":
    print(json.dumps(measured_states(SMALL)))
