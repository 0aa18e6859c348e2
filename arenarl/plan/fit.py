"""Whether a stage fits the GPUs that it is given, and which changes of its config would make it fit."""

from copy import deepcopy
from itertools import chain, combinations, product
from typing import Any

from arenarl.config.checks import check_groups
from arenarl.config.command_line import as_overrides
from arenarl.config.schema import Config
from arenarl.plan.memory import ENGINE, gb, kv_bytes, vllm_cache
from arenarl.plan.stages import phases, shape_in, vllm_share
from arenarl.system.errors import UserError

ZERO3 = "configs/launch/zero3_gpu.json"
SHARES = [step / 20 for step in range(1, 19)]  # of a GPU for vLLM


def misfits(config: Config, stage: str, gpus: int, memory: float) -> list[str]:
    """Why the stage does not fit so many GPUs of `memory` bytes each; empty if it does."""
    sums = {phase: sum(parts.values()) for phase, parts in phases(config, stage, gpus, memory).items()}
    found = [f"{phase} takes {gb(size)} of {gb(memory)} GB" for phase, size in sums.items() if size > memory]
    if share := vllm_share(config, stage, memory):
        shape = shape_in(config, stage)
        if vllm_cache(shape, share) < shape.positions:  # vLLM refuses to start
            least = ENGINE + shape.width * shape.parameters + kv_bytes(shape) * shape.positions
            found.append(f"vLLM has {gb(share)} GB, and its weights with a cache of {shape.positions:,} tokens take {gb(least)}")
    if stage == "rl":
        try:
            check_groups(config, gpus)
        except UserError as error:
            found.append(str(error).split(";")[0])
    return found


def remedies(config: Config, stage: str, gpus: int, memory: float) -> list[str]:
    """At most three changes with each of which the stage fits: of one key, or of two where one is not enough; what changes a run least is first."""
    options, found = changes(config, stage, gpus), {}
    for keys in chain(combinations(options, 1), combinations(options, 2)):
        if len(found) < 3 and not any(set(enough) <= set(keys) for enough in found):
            tries = (dict(zip(keys, values, strict=True)) for values in product(*(options[key] for key in keys)))
            if change := next((one for one in tries if not misfits(*changed(config, stage, gpus, one), memory)), None):
                found[keys] = " with ".join(as_overrides(change))
    return list(found.values())


def changes(config: Config, stage: str, gpus: int) -> dict[str, list[Any]]:
    """Key → values to try in its place, the mildest first. `gpus` is no key of a config."""

    def halves(number: int) -> list[int]:
        return [number >> shift for shift in range(1, number.bit_length())]

    options = {
        "policy.gradient_checkpointing": [True],
        "sft.batch_size": halves(config.sft.batch_size),
        "rl.micro_batch_size": halves(config.rl.micro_batch_size),
        "rollout.batch_size": halves(config.rollout.batch_size),
        "rollout.vllm_memory": sorted(SHARES, key=lambda share: abs(share - config.rollout.vllm_memory)),
        f"{stage}.deepspeed": [ZERO3],
        "gpus": [gpus * 2, gpus * 4, gpus * 8, gpus // 2 or 1, gpus // 4 or 1],
        "rollout.backend": ["vllm_server"],
        "policy.lora_rank": [32],
        "sft.max_length": halves(config.sft.max_length)[:2],
        "rollout.max_tokens": halves(config.rollout.max_tokens)[:2],
    }
    parts = {"sft": ("policy", "sft", "gpus"), "rl": ("policy", "rl", "rollout", "gpus"), "evaluate": ("rollout", "gpus")}[stage]
    return {key: values for key, values in options.items() if key.startswith(parts)}


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
