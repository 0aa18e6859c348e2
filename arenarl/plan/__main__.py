"""Plan a run from its config alone: does it fit its GPUs, how long will it take, how many judge calls will it make?

    python -m arenarl.plan --config configs/travel/rl_arenarl_qwen3_8b.yaml --gpus 8 [--memory 80] [--stage rl]
        [--set key=value ...]

prints each stage's GPU memory by part, its tokens, hours and calls, the cost of its LLMs, and "fits", or "does not fit"
with the reason and changes that would make it fit. The column "with the best settings" has RL's hours with the fastest
values of `SETTINGS` that fit, such as vLLM's share of a GPU. The column "one step ahead" has the hours with
`rl.steps_ahead: 1` and a vLLM server. A line says if training would not start on GPUs. The exit code is 0 if everything
fits, 3 if not, and 2 for an invalid config. All numbers are upper bounds, except the typical cost.
"""

import argparse
import math
import sys
from copy import deepcopy
from dataclasses import replace
from itertools import chain, combinations, product
from operator import attrgetter
from typing import Any

from arenarl.config.checks import check
from arenarl.config.command_line import as_overrides, in_range, parse_arguments
from arenarl.plan.estimate import estimate_lines, judge_calls
from arenarl.plan.memory import memory_table
from arenarl.plan.stage import STAGES, Hardware, Stage
from arenarl.report import markdown
from arenarl.system.errors import UserError, run_cli
from arenarl.system.repository import CONFIGS
from arenarl.training.requirements import check_method

DOES_NOT_FIT = 3
HARDWARE_OPTIONS = {  # field of Hardware -> option, its minimum and maximum, help text
    "memory_gb": ("--memory", 1e-3, math.inf, "memory of one GPU, in GB"),
    "tflops": ("--tflops", 1e-3, math.inf, "bfloat16 TFLOPS of one GPU"),
    "bandwidth_tb_s": ("--bandwidth", 1e-3, math.inf, "memory bandwidth of one GPU, in TB/s"),
    "utilisation": ("--utilisation", 1e-3, 1, "share of the TFLOPS that training achieves"),
    "bandwidth_share": ("--bandwidth-share", 1e-3, 1, "share of the bandwidth that decoding achieves"),
    "layer_ms": ("--layer-ms", 0, math.inf, "milliseconds a layer and token without vLLM"),
}
ZERO3 = str(CONFIGS / "launch" / "zero3_gpu.json")
POWERS = [64, 32, 16, 8, 4, 2, 1]
SHARES = [step / 20 for step in range(1, 19)]
SETTINGS = {  # back end -> keys that change only speed and memory, with values to try; of equals, the first is taken
    "vllm": {"rollout.vllm_sleep": [False, True], "rollout.vllm_memory": SHARES},
    "transformers": {"rollout.batch_size": POWERS[::-1]},
}
COLUMNS = [
    "at most", "million tokens", "hours", "with the best settings", "one step ahead", "decoded at once on a GPU",
    "judge calls",
]  # fmt: skip
CHANGES = {  # key -> values to try; smallest changes of a run first, shares by distance; `gpus` is not a config key
    "policy.gradient_checkpointing": [True],
    "sft.batch_size": POWERS,
    "rl.micro_batch_size": POWERS,
    "rollout.batch_size": POWERS,
    "rollout.vllm_memory": SHARES,
    "rollout.vllm_sleep": [True],
    "sft.deepspeed": [ZERO3],
    "rl.deepspeed": [ZERO3],
    "gpus": POWERS[::-1],
    "rollout.backend": ["vllm_server"],
    "policy.lora_rank": [32],
    "sft.max_length": [16_384, 8192, 4096],
    "rollout.max_tokens": [16_384, 8192, 4096],
}


def main() -> None:
    config, arguments = parse_arguments(__doc__, add_options)
    check_method(config)
    gpu = Hardware(**{name: getattr(arguments, name) for name in HARDWARE_OPTIONS})
    stages = [Stage(config, name, arguments.gpus, gpu) for name in arguments.stage]

    sizes = {stage.model or "policy.scratch": stage.shape.parameters / 1e6 for stage in stages}
    models = "; ".join(f"{model}, {parameters:,.1f} million parameters" for model, parameters in sizes.items())
    print(f"{models}; GPUs: {arguments.gpus} of {gpu.memory_gb:g} GB\n")
    if columns := {f"{stage.name}: {phase}": parts for stage in stages for phase, parts in stage.phases.items()}:
        print(memory_table(columns), "\n")
    print(markdown.table(COLUMNS, [row_of(stage) for stage in stages]))
    speeds = f"{gpu.tflops:g} TFLOPS and {gpu.bandwidth_tb_s:g} TB/s per GPU"
    print(f"hours at {speeds} (--tflops and --bandwidth; default: an H20)\n")
    for line in chain.from_iterable(estimate_lines(config, stage.name) for stage in stages):
        print(line)
    for refusal in (stage.refusal for stage in stages if stage.refusal):
        print(f"starts only without GPUs: {refusal}")
    is_fitting = True
    for stage in stages:
        if misfits := stage.misfits:
            changes = ", or ".join(remedies(stage))
            advice = f"it would with {changes}" if changes else "no two changes are enough"
            print(f"does not fit: {stage.name}: {'; '.join(misfits)} ({advice})")
            is_fitting = False
    if not is_fitting:
        sys.exit(DOES_NOT_FIT)
    print("fits")


def row_of(stage: Stage) -> list[str]:
    """Return the stage's row of the second table."""
    decoded = str(stage.at_once) if stage.name != "sft" and stage.trajectories else "-"
    calls = ", ".join(f"{count:,} for {use}" for use, count in judge_calls(stage.config, stage.name).items())
    change, hours = best_settings(stage)
    best = f"{hours:,.1f}" + (f" ({' '.join(as_overrides(change))})" if change else "")
    is_served = stage.name == "rl" and stage.config.rollout.backend == "vllm_server"
    changed = _changed(stage, {"rl.steps_ahead": 1}) if is_served else None
    ahead = f"{changed.hours:,.1f}" if changed else "-"
    tokens = f"{stage.trajectories * stage.length / 1e6:,.1f}"
    return [stage.name, tokens, f"{stage.hours:,.1f}", best, ahead, decoded, calls or "-"]


def best_settings(stage: Stage) -> tuple[dict[str, Any], float]:
    """Return the changes of `SETTINGS` that make RL fastest, and its hours with them. Return no change and the stage's
    hours if no change fits and is faster, and for other stages."""
    settings = SETTINGS.get(stage.config.rollout.backend, {}) if stage.name == "rl" else {}
    changes = (dict(zip(settings, values, strict=True)) for values in product(*settings.values()))
    hours_of = [(change, changed.hours) for change in changes if settings and (changed := _changed(stage, change))]
    change, hours = min(hours_of, key=lambda pair: round(pair[1], 6), default=({}, math.inf))
    if hours >= stage.hours and not stage.misfits or not change:
        return {}, stage.hours
    return {key: value for key, value in change.items() if value != attrgetter(key)(stage.config)}, hours


def remedies(stage: Stage) -> list[str]:
    """Return at most three changes that make the stage fit: of one key, or of two keys if no single key is enough."""
    found: dict[tuple[str, ...], str] = {}
    for keys in chain(combinations(CHANGES, 1), combinations(CHANGES, 2)):
        if len(found) < 3 and not any(set(enough) <= set(keys) for enough in found):
            values_to_try = product(*(_values(stage, key) for key in keys))
            changes = (dict(zip(keys, values, strict=True)) for values in values_to_try)
            if change := next((change for change in changes if _changed(stage, change)), None):
                found[keys] = " with ".join(as_overrides(change))
    return list(found.values())


def _values(stage: Stage, key: str) -> list[Any]:
    """Return the values of `CHANGES` to try for a key. vLLM's share changes as little as possible: with less memory it
    decodes fewer trajectories at once."""
    if key != "rollout.vllm_memory":
        return CHANGES[key]
    return sorted(SHARES, key=lambda share: abs(share - stage.config.rollout.vllm_memory))


def _changed(stage: Stage, change: dict[str, Any]) -> Stage | None:
    """Return the stage with the change; None if it does not fit, or the changed config is not valid."""
    config = deepcopy(stage.config)
    for section, name in (key.split(".") for key in change if key != "gpus"):
        setattr(getattr(config, section), name, change[f"{section}.{name}"])
    try:
        check(config)
        check_method(config)
        changed = replace(stage, config=config, gpus=change.get("gpus", stage.gpus))
        return None if changed.misfits else changed
    except UserError:
        return None


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=in_range(int, 1), default=1, help="number of GPUs, with one process each")
    several = {"nargs": "+", "choices": STAGES, "default": list(STAGES)}
    parser.add_argument("--stage", help="stages to plan (default: all)", **several)
    for name, (flag, least, most, about) in HARDWARE_OPTIONS.items():
        kind = in_range(float, least, most)
        parser.add_argument(flag, dest=name, metavar="N", type=kind, default=getattr(Hardware, name), help=about)


if __name__ == "__main__":
    run_cli(main)
