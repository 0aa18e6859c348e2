"""Tables of the runs at the paper's scale, for docs/paper_scale.md and configs/launch/README.md: cost and results."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from arenarl.config.load import load_config
from arenarl.plan.estimate import judge_calls
from arenarl.plan.memory import FP32, activations, gb, head_memory, kv_bytes, memory_table, shape_of, vllm_cache
from arenarl.plan.stage import Hardware, Stage
from arenarl.report import markdown
from arenarl.report.summary import format_figure
from arenarl.system.atomic_files import read_json
from arenarl.system.repository import CONFIGS

H20 = Hardware(memory_gb=96.0)  # the paper's
GPUS = {"H800 or H100": 80, "H20 (the paper's)": 96, "H200": 141}  # GB
LONG = 32_768  # tokens
RL = "configs/travel/rl_arenarl_qwen3_8b.yaml"
CLOSED = "configs/travel/closed_models.yaml"


@dataclass(frozen=True)
class Row:
    title: str
    config: str
    stage: str  # sft, rl or evaluate: the stage whose hours the table shows
    gpus: int


ROWS = [
    Row("cold start, Qwen3-8B", "configs/travel/sft_qwen3_8b.yaml", "sft", 32),
    Row("ArenaRL, Qwen3-8B", RL, "rl", 8),
    Row("GRPO, Qwen3-8B", "configs/travel/rl_grpo_qwen3_8b.yaml", "rl", 8),
    Row("GSPO, Qwen3-8B", "configs/travel/rl_gspo_qwen3_8b.yaml", "rl", 8),
    Row("GRPO of the whole trajectory, Qwen3-8B", "configs/travel/rl_grpo_trajectory_qwen3_8b.yaml", "rl", 8),
    Row("cold start, one GPU, Qwen3-1.7B with LoRA", "configs/travel/rl_arenarl_one_gpu.yaml", "sft", 1),
    Row("ArenaRL, one GPU, Qwen3-1.7B with LoRA", "configs/travel/rl_arenarl_one_gpu.yaml", "rl", 1),
    Row("GPT-4o, Grok-4, Gemini-2.5-pro, Claude-3.7-Sonnet (Table 3)", CLOSED, "evaluate", 0),
]


def scale_table(results: Path) -> str:
    """Return the table of `ROWS`: figures, tokens, hours and judge calls."""
    head = ["run", "config", "win rate %", "quality 0-10", "valid %", "GPUs", "tokens, million", "hours", "judge calls"]
    return markdown.table(head, [_row(row, results) for row in ROWS])


def _row(row: Row, results: Path) -> list[str]:
    config, figures, cost, calls = load_config(row.config), ["-"] * 3, ["-"] * 3, {}
    if row.stage != "sft":
        summary = read_json(results / config.run_name / "summary.json")
        figures = ["not run"] * 3
        if summary:
            last = summary[summary["checkpoints"][-1]]["sampled"]
            figures = [format_figure(last[name]) for name in ("win_rate", "quality", "valid_rate")]
        calls = (judge_calls(config, "rl") if row.stage == "rl" else {}) | judge_calls(config, "evaluate")
    if row.gpus:
        stage = Stage(config, row.stage, row.gpus, H20)
        cost = [str(row.gpus), f"{stage.trajectories * stage.length / 1e6:,.0f}", f"{stage.hours:,.0f}"]
    return [row.title, f"`{row.config}`", *figures, *cost, " + ".join(f"{count:,}" for count in calls.values()) or "-"]


def named_gpus(config: Path) -> dict[str, int]:
    """Return stage → number of 80 GB GPUs, from the comment at the top of a YAML; empty if there is none."""
    named = re.search("^# GPUs of 80 GB: (.*)$", config.read_text(encoding="utf-8"), re.MULTILINE)
    return {stage: int(gpus) for stage, gpus in re.findall(r"(sft|rl|evaluate) (\d+)", named[1])} if named else {}


def fits_table() -> str:
    """Return the table of all YAMLs' stages: peak memory per GPU on the GPUs that a YAML names, and if it fits."""
    rows = []
    paths = (path for folder in ("travel", "research", "writing") for path in (CONFIGS / folder).glob("*.yaml"))
    for path in sorted(paths):
        for name, gpus in named_gpus(path).items():
            stage = Stage(load_config(path), name, gpus)
            most = max((sum(parts.values()) for parts in stage.phases.values()), default=0.0)
            config = f"`configs/{path.relative_to(CONFIGS)}`"
            rows.append([config, name, str(gpus), gb(most), "; ".join(stage.misfits) or "fits"])
    return markdown.table(["config", "stage", "GPUs", "GB at most of 80", "`arenarl.plan`"], rows)


def training_table() -> str:
    """Return the table of GB per GPU while the run `RL` trains on `LONG` tokens at once, with and without sharding."""
    full = replace(Stage(load_config(RL), "rl").training, tokens=LONG)
    columns = {f"full, ZeRO-3 over {gpus}": replace(full, gpus=gpus) for gpus in (8, 32)}
    columns |= {"full, not sharded": replace(full, zero=0), "LoRA 32, not sharded": replace(full, zero=0, lora_rank=32)}
    return memory_table({title: training.updating() for title, training in columns.items()})


def sequence_table() -> str:
    """Return the table of memory that grows with the length of a trajectory."""
    config = load_config(RL)
    shape, lengths = shape_of(config.policy), [config.rollout.max_tokens, LONG]
    sizes = {
        "activations, no checkpointing": lambda tokens: activations(shape, tokens, False),
        "activations, every layer checkpointed": lambda tokens: activations(shape, tokens, True),
        f"logits, whole: {shape.vocabulary:,} x tokens, bfloat16": lambda n: shape.width * shape.vocabulary * n,
        "logits in float32; a plain loss keeps one copy": lambda tokens: FP32 * shape.vocabulary * tokens,
        "output head in tiles, as TRL 1.16 does it": lambda tokens: head_memory(shape, tokens),
        "key-value cache of one trajectory": lambda tokens: kv_bytes(shape) * tokens,
    }
    rows = [[name, *(gb(size(length)) for length in lengths)] for name, size in sizes.items()]
    return markdown.table(["GB for one trajectory of", *(f"{length:,} tokens" for length in lengths)], rows)


def vllm_table() -> str:
    """Return the table of a colocated vLLM's memory at the configured share, and the trajectories that it serves."""
    config, rows = load_config(RL), []
    shape, length = shape_of(config.policy), config.rollout.max_tokens
    for name, memory in GPUS.items():
        share = config.rollout.vllm_memory * memory * 1e9
        weights, tokens = shape.width * shape.parameters, vllm_cache(shape, share)
        sizes = map(gb, (share, weights, tokens * kv_bytes(shape)))
        rows.append([f"{name}, {memory} GB", *sizes, f"{tokens:,}", str(tokens // length)])
    head = ["GPU", "vLLM's share, GB", "weights, GB", "left for the cache, GB", "tokens in it"]
    head.append(f"trajectories of {length:,} tokens at once")
    return f"A token of the cache is {kv_bytes(shape) // 1024} KiB.\n\n" + markdown.table(head, rows)
