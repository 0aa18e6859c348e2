"""Tokens, hours and judge calls of the runs at the paper's scale, estimated from their configs: what the README's table says.

    python -m arenarl.plan.scale [--share 0.3] [--utilisation 0.35] [--tflops 148] [--bandwidth 4.0]

Upper bounds by arithmetic, nothing of it measured: every trajectory takes its whole token budget. Training takes 6 FLOPs a parameter and
token, 2 more to recompute under gradient checkpointing, 2 for the reference policy, 2 for old logprobs where updates share rollouts, and
for attention what the length makes it, at an assumed utilisation. Rollouts are bound by memory: each decoding step reads the weights once
and every trajectory's cache, at an assumed share of the bandwidth; all of a GPU's trajectories decode at once. Judging is taken to be
hidden behind generation.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from arenarl.config.load import load_config
from arenarl.config.schema import Config
from arenarl.domains.domain import make_domain
from arenarl.plan.estimate import most_calls
from arenarl.plan.memory import BF16, Shape, kv_bytes, shape_of
from arenarl.report import markdown


@dataclass(frozen=True)
class Hardware:
    """One GPU. The defaults are an H20, the paper's: 148 TFLOPS in bfloat16 and 4 TB/s as its maker gives them; the shares are assumed."""

    tflops: float = 148.0
    bandwidth_tb_s: float = 4.0
    utilisation: float = 0.35  # of the TFLOPS, in training and forward passes. An assumption
    bandwidth_share: float = 0.5  # of the bandwidth, in decoding. An assumption


@dataclass(frozen=True)
class Row:
    title: str
    config: str
    stage: str  # sft, rl or evaluate: what the hours are of
    gpus: int


ROWS = [
    Row("cold start, Qwen3-8B", "configs/travel/sft_qwen3_8b.yaml", "sft", 32),
    Row("ArenaRL, Qwen3-8B", "configs/travel/rl_arenarl_qwen3_8b.yaml", "rl", 8),
    Row("GRPO, Qwen3-8B", "configs/travel/rl_grpo_qwen3_8b.yaml", "rl", 8),
    Row("GSPO, Qwen3-8B", "configs/travel/rl_gspo_qwen3_8b.yaml", "rl", 8),
    Row("GRPO of the whole trajectory, Qwen3-8B", "configs/travel/rl_grpo_trajectory_qwen3_8b.yaml", "rl", 8),
    Row("cold start, one GPU, Qwen3-1.7B with LoRA", "configs/travel/rl_arenarl_one_gpu.yaml", "sft", 1),
    Row("ArenaRL, one GPU, Qwen3-1.7B with LoRA", "configs/travel/rl_arenarl_one_gpu.yaml", "rl", 1),
    Row("GPT-4o, Grok-4, Gemini-2.5-pro, Claude-3.7-Sonnet (Table 3)", "configs/travel/closed_models.yaml", "evaluate", 0),
]


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
    return tokens * (BF16 * shape.parameters / at_once + kv_bytes(shape) * tokens / 2)


def trajectories_of(config: Config, stage: str) -> int:
    """That a stage trains on; several updates share a step's rollouts out among them."""
    return round(config.data.sft_size * config.sft.epochs) if stage == "sft" else config.rl.rollouts * config.rl.groups * config.rollout.group_size


def length_of(config: Config, stage: str) -> int:
    """Tokens that a trajectory takes at most."""
    return config.sft.max_length if stage == "sft" else config.rollout.max_tokens


def hours(config: Config, stage: str, gpus: int, hardware: Hardware, share: float = 1.0) -> float:
    """Of the stage on so many GPUs, if trajectories take `share` of their token budget; the curve's evaluations are not in it."""
    shape, tokens = shape_of(config.policy.model), round(share * length_of(config, stage))
    flops, read = training_flops(config, shape, tokens), 0.0
    if stage == "rl":
        old_logprobs = config.rl.updates_per_rollout > 1  # else they are those of the update itself
        flops += forward_flops(shape, tokens) * ((config.rl.beta > 0) + old_logprobs)
        read = decoding_bytes(shape, tokens, at_once=config.rl.groups * config.rollout.group_size // gpus)
    seconds = flops / (hardware.tflops * 1e12 * hardware.utilisation) + read / (hardware.bandwidth_tb_s * 1e12 * hardware.bandwidth_share)
    return trajectories_of(config, stage) * seconds / gpus / 3600


def judge_calls(config: Config) -> dict[str, int]:
    """Calls that a run makes at most: for rewards, for the curve, for the evaluation of its policies, by each of `judge.eval`."""
    both_orders = 2 * len(config.judge.eval)
    queries = config.data.test_per_subtask * len(make_domain(config.environment, config.data).subtasks)
    return {
        "rewards": config.rl.rollouts * config.rl.groups * most_calls(config),
        "curve": config.curve_cases * both_orders,
        "evaluation": queries * len(config.evaluate.attempts) * len(config.evaluated) * both_orders,
    }


def scale_table(results: Path, hardware: Hardware = Hardware(), share: float = 1.0) -> str:  # noqa: B008 - frozen
    """The README's table: figures where somebody ran it, and the estimates, as Markdown."""
    head = ["run", "config", "win rate %", "quality 0-10", "valid %", "GPUs", "tokens, million", "hours", "judge calls"]
    return markdown.table(head, [_row(row, results, hardware, share) for row in ROWS])


def _row(row: Row, results: Path, hardware: Hardware, share: float) -> list[str]:
    from arenarl.report.summary import format_figure

    config = load_config(row.config)
    path = results / config.run_name / "summary.json"
    figures = ["-"] * 3 if row.stage == "sft" else ["not run"] * 3
    if row.stage != "sft" and path.is_file():
        summary = json.loads(path.read_text(encoding="utf-8"))
        last = summary[summary["checkpoints"][-1]]["sampled"]
        figures = [format_figure(last[name]) for name in ("win_rate", "quality", "valid_rate")]
    calls = judge_calls(config)
    if row.stage == "evaluate":
        return [row.title, f"`{row.config}`", *figures, "-", "-", "-", f"{calls['evaluation']:,}"]
    tokens = share * trajectories_of(config, row.stage) * length_of(config, row.stage) / 1e6
    cost = [str(row.gpus), f"{tokens:,.0f}", f"{hours(config, row.stage, row.gpus, hardware, share):,.0f}"]
    return [row.title, f"`{row.config}`", *figures, *cost, " + ".join(f"{count:,}" for count in calls.values()) if row.stage == "rl" else "-"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--share", type=float, default=1.0, help="of its token budget that a trajectory takes")
    parser.add_argument("--tflops", type=float, default=Hardware.tflops, help="of one GPU in bfloat16")
    parser.add_argument("--bandwidth", type=float, default=Hardware.bandwidth_tb_s, help="of its memory in TB/s")
    parser.add_argument("--utilisation", type=float, default=Hardware.utilisation, help="share of the TFLOPS that training reaches")
    parser.add_argument("--bandwidth-share", type=float, default=Hardware.bandwidth_share, help="share of the bandwidth that decoding reaches")
    given = parser.parse_args()
    hardware = Hardware(given.tflops, given.bandwidth, given.utilisation, given.bandwidth_share)
    print(scale_table(Path("results"), hardware, given.share))


if __name__ == "__main__":
    from arenarl.system.errors import guarded

    guarded(main)
