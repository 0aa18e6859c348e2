"""Which changes of a config would make a stage fit its GPUs: found by trying them."""

from copy import deepcopy
from dataclasses import replace
from itertools import chain, combinations, product
from typing import Any

from arenarl.config.checks import check
from arenarl.config.command_line import as_overrides
from arenarl.plan.stage import Stage
from arenarl.system.errors import UserError
from arenarl.system.repository import CONFIGS

ZERO3 = str(CONFIGS / "launch" / "zero3_gpu.json")
POWERS = [64, 32, 16, 8, 4, 2, 1]
CHANGES = {  # key -> values to try in its place, what changes a run least first; `gpus` is no key of a config
    "policy.gradient_checkpointing": [True],
    "sft.batch_size": POWERS,
    "rl.micro_batch_size": POWERS,
    "rollout.batch_size": POWERS,
    "rollout.vllm_memory": [step / 20 for step in range(1, 19)],
    "rollout.vllm_sleep": [True],
    "sft.deepspeed": [ZERO3],
    "rl.deepspeed": [ZERO3],
    "gpus": POWERS[::-1],
    "rollout.backend": ["vllm_server"],
    "policy.lora_rank": [32],
    "sft.max_length": [16_384, 8192, 4096],
    "rollout.max_tokens": [16_384, 8192, 4096],
}


def remedies(stage: Stage) -> list[str]:
    """At most three: of one key, or of two where one is not enough."""
    found: dict[tuple[str, ...], str] = {}
    for keys in chain(combinations(CHANGES, 1), combinations(CHANGES, 2)):
        if len(found) < 3 and not any(set(enough) <= set(keys) for enough in found):
            tries = (dict(zip(keys, values, strict=True)) for values in product(*(CHANGES[key] for key in keys)))
            if change := next((one for one in tries if _mends(stage, one)), None):
                found[keys] = " with ".join(as_overrides(change))
    return list(found.values())


def _mends(stage: Stage, change: dict[str, Any]) -> bool:
    """It fits by the change, and no other key of the config forbids that."""
    other = changed(stage, change)
    try:
        check(other.config)
    except UserError:
        return False
    return not other.misfits


def changed(stage: Stage, change: dict[str, Any]) -> Stage:
    """The stage by a copy of its config in which these keys have other values."""
    config = deepcopy(stage.config)
    for section, name in (key.split(".") for key in change if key != "gpus"):
        setattr(getattr(config, section), name, change[f"{section}.{name}"])
    return replace(stage, config=config, gpus=change.get("gpus", stage.gpus))
