"""Does `arenarl.plan` say what RL takes? A step of the longest trajectories on this machine's GPU,
beside the plan's figures.

    python -m arenarl.studies.bench_plan --config configs/travel/rl_arenarl_one_gpu.yaml [--set key=value ...]

One process, a policy of the config's shape with random weights, nothing downloaded. Two phases, as the plan names them:

generating  the transformers back end takes up as many trajectories as the config has under way at once, each as long as
            it may be but for `NEW` tokens, and generates those
training    steps on a group, or as many as a forward pass takes, of trajectories that are as long as they may be:
            made up, not generated

Memory is the most that torch allocated, without the plan's allowance for CUDA and libraries. It also says what
`arenarl.plan` takes in place of its assumptions: of training, how many floating-point operations a second the plan's
arithmetic makes of it (`--tflops ... --utilisation 1`); of as many short trajectories, milliseconds a layer and
decoding step (`--layer-ms`). The last line is JSON.
"""

import asyncio
import json
import math
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from arenarl.config.command_line import parse_arguments
from arenarl.config.schema import Config, EnvironmentConfig
from arenarl.plan.memory import gb
from arenarl.plan.stage import Stage
from arenarl.report import markdown
from arenarl.rollout.generation import GeneratedTurn, TransformersGenerator, TurnRequest
from arenarl.run.stage import fix_randomness
from arenarl.studies.bench_parts import Generate, build_shape
from arenarl.studies.bench_training import Bench, InstantJudge, Taken, begin, taken_since
from arenarl.system.errors import UserError, guarded

NEW = 32  # tokens
STEPS = 3  # the last one counts: the first finds its kernels and makes the optimizer's states


class Steps(TrainerCallback):
    """Measures a trainer's steps; `last` is the last one's."""

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.start = begin()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.last = taken_since(self.start)


class PlanBench(Bench):
    """`Bench` for the config's own shape, with trajectories that nobody generates."""

    def __init__(self, config: Config, stage: Stage, folder: Path):
        super().__init__(config, "tiny", folder)  # for its tokenizer
        self.stage = stage
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # made where it will run
            self.policy = build_shape(
                stage.shape, self.tokenizer, config.policy.dtype, tie_word_embeddings=stage.shape.tied
            )

    def scripted(self, generate: Generate, turns: int) -> Generate:
        filler, end = self.tokenizer.encode(" cafe")[0], self.tokenizer.eos_token_id

        async def made_up(request: TurnRequest) -> GeneratedTurn:
            return GeneratedTurn([filler] * (request.max_tokens - 1) + [end])

        return made_up

    def generating(self, length: int) -> Taken:
        """`NEW` tokens of trajectories that are so long then."""
        rows = self.stage.rows_at_most
        generator = TransformersGenerator(self.policy.eval(), self.tokenizer, rows)
        prompts_RT = torch.randint(len(self.tokenizer), (rows, length - NEW)).tolist()

        async def generate() -> None:
            await asyncio.gather(
                *(generator.generate(TurnRequest(prompt, NEW, 1.0, row)) for row, prompt in enumerate(prompts_RT))
            )

        start = begin()
        asyncio.run(generate())
        return taken_since(start)

    def training(self) -> Taken:
        if not self.config.policy.lora_rank:  # TRL reads the reference policy from where the policy lies
            self.policy.save_pretrained(self.folder / "policy")
            self.policy = str(self.folder / "policy")
        steps = Steps()
        prompts = [query.query_id for query in self.queries[: STEPS * self.config.rl.groups]]
        self.trainer(InstantJudge(), prompts, STEPS, 1, self.stage.length, [steps]).train()
        return steps.last


def check(config: Config) -> None:
    """Raises UserError for steps that one process with one policy does not take."""
    rl = config.rl
    for key, is_fine, value in (
        ("method", rl.method == "online", "online"),
        ("deepspeed", rl.deepspeed is None, "null"),
        ("advantage", rl.advantage != "gae", "group_std"),
        ("updates_per_rollout", rl.updates_per_rollout == 1, "1"),
    ):
        if not is_fine:
            raise UserError(
                f"rl.{key}={getattr(rl, key)}: measured is one process's step with one update "
                f"and no critic; set rl.{key}={value}"
            )


def main() -> None:
    config, _ = parse_arguments(__doc__)
    check(config)
    is_ours = config.rollout.backend == "transformers"
    config.rollout.backend = "transformers"
    stage = Stage(deepcopy(config), "rl")
    config.rl.groups = config.rl.micro_batch_size // math.gcd(config.rl.micro_batch_size, config.rollout.group_size)
    config.reward.name = "tournament"
    config.environment = EnvironmentConfig(results="compact", schemas_in_prompt=False)
    fix_randomness(config)
    with tempfile.TemporaryDirectory() as folder:
        bench = PlanBench(config, stage, Path(folder))
        bench.generating(2 * NEW)  # the first finds its kernels
        step_s = bench.generating(2 * NEW).seconds / NEW
        found = ({"generating": bench.generating(stage.length)} if is_ours else {}) | {"training": bench.training()}
    rows = [
        [phase, gb(stage.allocated[phase]), gb(taken.memory), f"{taken.seconds:.1f}"] for phase, taken in found.items()
    ]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU, which does not tell its memory"
    model, millions = config.policy.model or "policy.scratch", stage.shape.parameters / 1e6
    print(f"{model}, {millions:,.1f} million parameters, on {device}; trajectories of {stage.length:,} tokens\n")
    print(markdown.table(["rl", "GB by the plan", "GB at most", "seconds"], rows))
    trajectories = config.rl.groups * config.rollout.group_size
    tflops = trajectories * stage.flops / found["training"].seconds / 1e12
    layer_ms = step_s * 1e3 / stage.shape.layers
    print(
        f"training: {trajectories} trajectories, {tflops:,.1f} TFLOPS; decoding short ones, transformers: "
        f"{layer_ms:.2f} ms a layer and step"
    )
    figures = {"device": device, "tflops": round(tflops, 2), "layer_ms": round(layer_ms, 3)}
    print(json.dumps(figures | {phase: vars(taken) for phase, taken in found.items()}))


if __name__ == "__main__":
    guarded(main)
