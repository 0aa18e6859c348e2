"""What each stage of a run takes by its config: bytes of a GPU, tokens, hours.

Upper bounds by arithmetic, nothing of it measured: every trajectory takes its whole token budget. Training takes 6 FLOPs a parameter and
token, 2 more to recompute under gradient checkpointing, 2 for the reference policy, 2 for old logprobs where updates share rollouts, and
for attention what the length makes it, at an assumed utilisation. Rollouts are bound by memory: each decoding step reads the weights once
and every trajectory's cache, at an assumed share of the bandwidth; as many decode at once as `rollout.batch_size` or vLLM's cache lets.
Judging is taken to be hidden behind generation, and a vLLM server to generate as one on every training GPU would.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from arenarl.config.schema import VLLM_ALONE, Config
from arenarl.plan.estimate import count_test_queries
from arenarl.plan.memory import Shape, Training, generation, kv_bytes, shape_of, vllm_cache
from arenarl.run.zero3 import check_deepspeed

STAGES = ("sft", "rl", "evaluate")
RESERVE = {"CUDA, libraries, collectives": 2e9}  # An assumption


@dataclass(frozen=True)
class Hardware:
    """One GPU. Speeds are an H20's, the paper's: 148 TFLOPS in bfloat16 and 4 TB/s as its maker gives them; the shares are assumed."""

    memory_gb: float = 80.0
    tflops: float = 148.0
    bandwidth_tb_s: float = 4.0
    utilisation: float = 0.35  # of the TFLOPS, in training and forward passes. An assumption
    bandwidth_share: float = 0.5  # of the bandwidth, in decoding. An assumption


def shape_in(config: Config, stage: str) -> Shape:
    """Of the stage's policy: RL and what follows start from `rl.init`, if it is set."""
    return shape_of(replace(config.policy, model=(config.rl.init if stage != "sft" else None) or config.policy.model))


def length_of(config: Config, stage: str) -> int:
    """Tokens that a trajectory takes at most."""
    return config.sft.max_length if stage == "sft" else config.rollout.max_tokens


def trajectories_of(config: Config, stage: str) -> int:
    """That a stage trains on or evaluates; several updates share a step's rollouts out among them."""
    if stage == "sft":
        return round(config.data.sft_size * config.sft.epochs)
    if stage == "rl":
        return config.rl.rollouts * config.rl.groups * config.rollout.group_size
    return count_test_queries(config) * len(config.evaluate.attempts) * len(own_policies(config))


def own_policies(config: Config) -> list[str]:
    """Those evaluated that are not behind an API."""
    return [policy for policy in config.evaluated.values() if isinstance(policy, str)]


def rows_of(config: Config, stage: str, gpus: int) -> int:
    """Trajectories that a GPU has under way at once: a step's, or its share of the test queries."""
    rollout = config.rollout
    under_way = config.rl.groups * rollout.group_size // gpus if stage == "rl" else -(-count_test_queries(config) // gpus)
    return max(1, min(under_way, rollout.batch_size) if rollout.backend == "transformers" else under_way)


def vllm_share(config: Config, stage: str, memory: float) -> float:
    """Bytes of a GPU's memory that are given to vLLM in this process."""
    shares = {"rl": config.rollout.vllm_memory, "evaluate": VLLM_ALONE}
    return memory * shares.get(stage, 0.0) if config.rollout.backend == "vllm" else 0.0


def training_of(config: Config, stage: str, gpus: int) -> Training:
    """How SFT or RL trains. Raises UserError for a DeepSpeed JSON that cannot be used."""
    section = config.sft if stage == "sft" else config.rl
    check_deepspeed(f"{stage}.deepspeed", section.deepspeed, f"train_{stage}.py", True)
    zero = json.loads(Path(section.deepspeed).read_text(encoding="utf-8"))["zero_optimization"].get("stage", 0) if section.deepspeed else 0
    batch, reference = (config.sft.batch_size, False) if stage == "sft" else (config.rl.micro_batch_size, config.rl.beta > 0)
    tokens, policy = batch * length_of(config, stage), config.policy
    return Training(shape_in(config, stage), tokens, gpus, zero, policy.lora_rank, policy.gradient_checkpointing, reference)


def phases(config: Config, stage: str, gpus: int, memory: float) -> dict[str, dict[str, float]]:
    """What a stage takes of each GPU, of `memory` bytes: phase → part → bytes. A policy behind an API or on vLLM's server takes nothing here."""
    rollout, found = config.rollout, {}
    engine = RESERVE | {"vLLM's share": vllm_share(config, stage, memory)}
    if stage == "evaluate":
        shape = shape_in(config, stage)
        own = RESERVE | {"parameters": shape.width * shape.parameters} | generation(shape, rows_of(config, stage, gpus), rollout.max_tokens)
        return {"generating": {"vllm": engine, "transformers": own}[rollout.backend]} if own_policies(config) and rollout.backend != "vllm_server" else {}
    training = training_of(config, stage, gpus)
    if stage == "rl" and rollout.backend == "transformers":
        curve = min(-(-config.rl.eval_queries // gpus), rollout.batch_size) if config.rl.eval_steps else 0
        found["generating"] = RESERVE | training.generating(max(rows_of(config, stage, gpus), curve), rollout.max_tokens)
    return found | {"training": engine | training.updating()}


def forward_flops(shape: Shape, tokens: int) -> float:
    """Of one trajectory: 2 a parameter that multiplies and token, and attention, in which a token sees half of them on average."""
    multiplying = shape.parameters - (0 if shape.tied else shape.table_parameters)  # looking up an embedding multiplies nothing
    return tokens * (2.0 * multiplying + 2.0 * shape.layers * shape.queries * tokens)


def training_flops(config: Config, shape: Shape, tokens: int) -> float:
    """Of one trajectory. LoRA needs no gradients of the weights that it leaves alone, which saves half of the backward pass."""
    passes = 1 + (1 if config.policy.lora_rank else 2) + config.policy.gradient_checkpointing
    return passes * forward_flops(shape, tokens)


def decoding_bytes(shape: Shape, tokens: int, at_once: int) -> float:
    """Read for one trajectory: its share of the weights at every step, and its own cache, half full on average."""
    return tokens * (shape.width * shape.parameters / at_once + kv_bytes(shape) * tokens / 2)


def at_once(config: Config, stage: str, gpus: int, memory: float) -> int:
    """Trajectories that a GPU decodes at once, each half its length on average."""
    rows, share = rows_of(config, stage, gpus), vllm_share(config, stage, memory)
    room = vllm_cache(shape_in(config, stage), share) * 2 // length_of(config, stage) if share else rows
    return max(1, min(rows, room))


def hours(config: Config, stage: str, gpus: int, hardware: Hardware) -> float:
    """Of the stage on so many GPUs; the curve's evaluations are not in it."""
    shape, tokens = shape_in(config, stage), length_of(config, stage)
    flops = training_flops(config, shape, tokens) if stage != "evaluate" else 0.0
    if stage == "rl":
        old_logprobs = config.rl.updates_per_rollout > 1  # else they are those of the update itself
        flops += forward_flops(shape, tokens) * ((config.rl.beta > 0) + old_logprobs)
    read = decoding_bytes(shape, tokens, at_once(config, stage, gpus, hardware.memory_gb * 1e9)) if stage != "sft" else 0.0
    seconds = flops / (hardware.tflops * 1e12 * hardware.utilisation) + read / (hardware.bandwidth_tb_s * 1e12 * hardware.bandwidth_share)
    return trajectories_of(config, stage) * seconds / gpus / 3600
