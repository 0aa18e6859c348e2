"""Does a run fit its GPUs, how long will it take, how many judge calls will it make? From its config alone, before anything is started.

    python -m arenarl.plan --config configs/travel/rl_arenarl_qwen3_8b.yaml --gpus 8 [--memory 80] [--stage rl] [--set key=value ...]

prints what each stage takes of a GPU, part by part, its tokens, hours and calls, and ends in "fits", or in "does not fit", why, and what
would. Exit code 0 if all fits, 3 if not; 2 is a config that no run can use, as everywhere. What is printed are upper bounds.
"""

import argparse
import sys

from arenarl.config.command_line import parse_arguments
from arenarl.plan.estimate import judge_calls
from arenarl.plan.fit import misfits, remedies
from arenarl.plan.memory import memory_table
from arenarl.plan.stages import STAGES, Hardware, at_once, hours, length_of, phases, shape_in, trajectories_of
from arenarl.report import markdown
from arenarl.system.errors import UserError, guarded

DOES_NOT_FIT = 3


def main() -> None:
    config, given = parse_arguments(__doc__, add_options)
    if given.gpus < 1:
        raise UserError(f"--gpus {given.gpus}: must be 1 or more")
    hardware = Hardware(given.memory, given.tflops, given.bandwidth, given.utilisation, given.bandwidth_share)
    memory, stages, rows = given.memory * 1e9, given.stage, []
    for stage in stages:
        trajectories = trajectories_of(config, stage)
        tokens, calls = trajectories * length_of(config, stage) / 1e6, judge_calls(config, stage)
        decoded = str(at_once(config, stage, given.gpus, memory)) if stage != "sft" and trajectories else "-"
        made = ", ".join(f"{count:,} for {what}" for what, count in calls.items())
        rows.append([stage, f"{tokens:,.1f}", f"{hours(config, stage, given.gpus, hardware):,.1f}", decoded, made or "-"])
    columns = {f"{stage}: {phase}": parts for stage in stages for phase, parts in phases(config, stage, given.gpus, memory).items()}

    parameters = shape_in(config, stages[0]).parameters / 1e6
    print(f"{config.policy.model or 'policy.scratch'}, {parameters:,.1f} million parameters; GPUs: {given.gpus} of {given.memory:g} GB\n")
    if columns:
        print(memory_table(columns), "\n")
    print(markdown.table(["at most", "million tokens", "hours", "decoded at once on a GPU", "judge calls"], rows))
    print(f"hours by {hardware.tflops:g} TFLOPS and {hardware.bandwidth_tb_s:g} TB/s a GPU (an H20's unless --tflops and --bandwidth say otherwise)\n")
    reasons = {stage: misfits(config, stage, given.gpus, memory) for stage in stages}
    for stage, found in reasons.items():
        if found:
            would = remedies(config, stage, given.gpus, memory)
            print(f"does not fit: {stage}: {'; '.join(found)} (it would with {', or '.join(would) or 'more than two changes'})")
    if any(reasons.values()):
        sys.exit(DOES_NOT_FIT)
    print("fits")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=1, help="as many processes, each with one of its own")
    parser.add_argument("--stage", nargs="+", choices=STAGES, default=list(STAGES), help="which stages; else all")
    parser.add_argument("--memory", type=float, default=Hardware.memory_gb, help="of one GPU in GB")
    parser.add_argument("--tflops", type=float, default=Hardware.tflops, help="of one GPU in bfloat16")
    parser.add_argument("--bandwidth", type=float, default=Hardware.bandwidth_tb_s, help="of its memory in TB/s")
    parser.add_argument("--utilisation", type=float, default=Hardware.utilisation, help="share of the TFLOPS that training reaches")
    parser.add_argument("--bandwidth-share", type=float, default=Hardware.bandwidth_share, help="share of the bandwidth that decoding reaches")


if __name__ == "__main__":
    guarded(main)
