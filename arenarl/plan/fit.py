"""Whether a stage fits the GPUs that it is given, and which changes of its config would make it fit."""

from copy import deepcopy
from itertools import combinations, product
from typing import Any

from arenarl.config.checks import check_groups
from arenarl.config.schema import Config
from arenarl.plan.memory import ENGINE, gb, kv_bytes, vllm_cache
from arenarl.plan.stages import phases, shape_in, vllm_share
from arenarl.system.errors import UserError

ZERO3 = "configs/launch/zero3_gpu.json"
SHARES = [step / 20 for step in range(1, 19)]  # of a GPU for vLLM


def misfits(config: Config, stage: str, gpus: int, memory: float) -> list[str]:
    """Why the stage does not fit so many GPUs of `memory` bytes each; empty if it does."""
    sums = {title: sum(parts.values()) for title, parts in phases(config, stage, gpus, memory).items()}
    found = [f"{title}, takes {gb(size)} of {gb(memory)} GB" for title, size in sums.items() if size > memory]
    if share := vllm_share(config, stage, memory):
        shape = shape_in(config, stage)
        if vllm_cache(shape, share) < shape.positions:  # vLLM refuses to start
            least = ENGINE + shape.width * shape.parameters + kv_bytes(shape) * shape.positions
            found.append(f"{stage}, has {gb(share)} GB for vLLM, whose weights and cache of {shape.positions:,} tokens take {gb(least)}")
    if stage == "rl":
        try:
            check_groups(config, gpus)
        except UserError as error:
            found.append(f"rl, {error}")
    return found


def remedies(config: Config, stage: str, gpus: int, memory: float) -> list[str]:
    """At most three changes with each of which the stage fits, those first that change a run least; pairs if none is enough alone."""
    options = changes(config, gpus)
    for count in (1, 2):
        found = []
        for keys in combinations(options, count):
            for values in product(*(options[key] for key in keys)):
                change = dict(zip(keys, values, strict=True))
                if not misfits(*changed(config, stage, gpus, change), memory):
                    found.append(" with ".join(f"{key}={value}" for key, value in change.items()))
                    break
        if found:
            return found[:3]
    return []


def changes(config: Config, gpus: int) -> dict[str, list[Any]]:
    """Key → values to try in its place, the mildest first. `gpus` is no key of a config."""

    def halves(number: int) -> list[int]:
        return [number >> shift for shift in range(1, number.bit_length())]

    return {
        "policy.gradient_checkpointing": [True],
        "sft.batch_size": halves(config.sft.batch_size),
        "rl.micro_batch_size": halves(config.rl.micro_batch_size),
        "rollout.batch_size": halves(config.rollout.batch_size),
        "rollout.vllm_memory": sorted(SHARES, key=lambda share: abs(share - config.rollout.vllm_memory)),
        "sft.deepspeed": [ZERO3],
        "rl.deepspeed": [ZERO3],
        "gpus": [gpus * 2, gpus * 4, gpus // 2 or 1, gpus // 4 or 1],
        "rollout.backend": ["vllm_server"],
        "policy.lora_rank": [32],
        "sft.max_length": halves(config.sft.max_length)[:2],
        "rollout.max_tokens": halves(config.rollout.max_tokens)[:2],
    }


def changed(config: Config, stage: str, gpus: int, change: dict[str, Any]) -> tuple[Config, str, int]:
    """A copy in which keys have other values, as `misfits` takes it."""
    config = deepcopy(config)
    for key, value in change.items():
        section, _, name = key.partition(".")
        if name:
            setattr(getattr(config, section), name, value)
        else:
            gpus = value
    return config, stage, gpus
