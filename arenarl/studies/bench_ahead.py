"""Benchmark of `rl.steps_ahead: 1`: how close a step comes to the longer of generation and update.

    python -m arenarl.studies.bench_ahead --config configs/quickstart.yaml [--tool_s 1] [--judge_s 2] [--steps 6]

A second process generates with the config's policy, `bench_parts.Script` replaces its turns with tool calls and
answers, each tool call takes `--tool_s` and each judge call `--judge_s`; update and weight sync are real. The same
trainer takes its steps in turn first, and then one step ahead. Both kinds of steps have the same trajectories, because
the tokens of a turn are drawn from its seed, so they make the same tool and judge calls. A step lasts from one boundary
to the next:

    least = max(rollout + judging after it, forward + update), medians of the steps in turn
    ratio = (median of the steps ahead - weight sync) / least

`ratio_same_steps` compares each step ahead with its own parts instead, which busy cores slow equally. The last line is
JSON; `goal_met` says whether `ratio` is at most 1.05.
"""

import argparse
import asyncio
import json
import random
import tempfile
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from types import SimpleNamespace
from typing import Any

from transformers.trainer_utils import SaveStrategy

from arenarl.config.command_line import in_range, parse_arguments
from arenarl.config.schema import Config, EnvironmentConfig
from arenarl.domains.environments import make_environment
from arenarl.rollout.backends import require_sync
from arenarl.rollout.environment import Environment
from arenarl.rollout.generation import GeneratedTurn, TurnRequest
from arenarl.run.checkpoints import TrainingBar
from arenarl.run.stage import fix_randomness
from arenarl.studies.bench_parts import Generate, Script, SlowJudge
from arenarl.studies.bench_training import Bench, show
from arenarl.system.errors import run_cli
from arenarl.training.step_ahead import StepAhead
from arenarl.training.trl_adapter import make_trainer

GOAL, TURNS = 1.05, 3


class InTurn(StepAhead):
    """Generates each step's groups when it begins, with the same forward passes as one step ahead."""

    def _begin(self, *_: Any) -> None:
        return None


@dataclass(frozen=True)
class Period:
    """Seconds from one boundary to the next, of the update at its start, and of the rollout at its end."""

    seconds: float
    generation: float  # rollout, and judging after it
    update: float  # forward and update
    sync: float

    @property
    def least(self) -> float:
        return max(self.generation, self.update)

    @property
    def ratio(self) -> float:
        return (self.seconds - self.sync) / self.least


def periods(boundaries: list[float], history: list[dict[str, float]]) -> list[Period]:
    """Return the periods between the steps' boundaries, from the trainer's logged metrics.

    >>> names = [f"time/{part}_s" for part in ("rollout", "judge_after", "forward", "update", "sync")]
    >>> steps = [dict(zip(names, seconds)) for seconds in ([9.0, 9.0, 1.0, 2.0, 9.0], [4.0, 1.0, 7.0, 8.0, 1.0])]
    >>> periods([10.0, 16.0], steps)
    [Period(seconds=6.0, generation=5.0, update=3.0, sync=1.0)]
    """

    def total(entry: dict[str, float], *parts: str) -> float:
        return sum(entry[f"time/{part}_s"] for part in parts)

    return [
        Period(
            boundaries[step] - boundaries[step - 1],
            total(history[step], "rollout", "judge_after"),
            total(history[step - 1], "forward", "update"),
            total(history[step], "sync"),
        )
        for step in range(1, len(boundaries))
    ]


def slowed(environment: Environment, seconds: float) -> Environment:
    """Return the environment with calls that take `seconds`."""
    call = environment.call

    async def wait_and_call(name: str, arguments: dict[str, Any]) -> Any:
        await asyncio.sleep(seconds)
        return call(name, arguments)

    environment.call = wait_and_call
    return environment


def by_seed(generate: Generate, tokens: int) -> Generate:
    """Return `generate` with other tokens of its turns: drawn from the request's seed, below `tokens`."""

    async def generate_and_draw(request: TurnRequest) -> GeneratedTurn:
        turn, rng = await generate(request), random.Random(request.seed)
        return GeneratedTurn([rng.randrange(tokens) for _ in turn.token_ids])

    return generate_and_draw


def measure(bench: Bench, step_class: type[StepAhead], arguments: argparse.Namespace) -> list[Period]:
    """Train `--steps` steps and return the periods between them."""
    config = deepcopy(bench.config)
    tools = slowed(make_environment(config.environment, config.data.language), arguments.tool_s)
    judge = SlowJudge(arguments.judge_s, config.judge.concurrency)
    step = bench.new_step(config, judge, tools, step_class)
    trainer = make_trainer(config, bench.policy, bench.queries, step)
    trainer.args.save_strategy = SaveStrategy.NO
    boundaries, roll_out = [], trainer.rollout_func
    generate = by_seed(step.engine.generator.generate, len(bench.tokenizer))
    script = Script(bench.tokenizer, generate, TURNS)
    step.engine.generator = SimpleNamespace(generate=script, batch_size=config.rollout.batch_size)

    def rollout_func(*given: Any) -> dict[str, Any]:
        rows = roll_out(*given)
        boundaries.append(perf_counter())
        return rows

    trainer.rollout_func = rollout_func
    TrainingBar(f"bench, {step_class.__name__}").attach(trainer)
    trainer.train()
    return periods(boundaries, trainer.state.log_history)


def figures(in_turn: list[Period], ahead: list[Period]) -> dict[str, float | bool]:
    """Return the benchmark's figures; times are medians in seconds."""

    def middle(of: list[Period], name: str) -> float:
        return median(getattr(period, name) for period in of)

    parts = {f"{name}_s": middle(in_turn, name) for name in ("generation", "update", "sync")}
    step_s, step_in_turn_s = middle(ahead, "seconds"), middle(in_turn, "seconds")
    ratio = (step_s - middle(ahead, "sync")) / max(parts["generation_s"], parts["update_s"])
    return {
        **parts, "step_in_turn_s": step_in_turn_s, "step_s": step_s, "share_of_in_turn": step_s / step_in_turn_s,
        "ratio_same_steps": middle(ahead, "ratio"), "ratio": ratio, "goal_met": ratio <= GOAL,
    }  # fmt: skip


def settings_of(config: Config, arguments: argparse.Namespace) -> Config:
    """Return the config of the benchmark's runs."""
    config = deepcopy(config)
    config.rl.groups, config.rl.steps = arguments.groups, arguments.steps
    config.rollout.group_size = config.rl.micro_batch_size = arguments.group_size
    config.rl.updates_per_rollout, config.rl.eval_steps = 1, 0
    config.rl.steps_ahead, config.reward.name, config.wandb.mode = 1, "tournament", "disabled"
    config.rollout.max_turns, config.rollout.max_turn_tokens = TURNS, arguments.turn_tokens
    config.rollout.max_tokens = 4 * TURNS * arguments.turn_tokens  # observations included
    config.environment = EnvironmentConfig(results="compact", schemas_in_prompt=False)
    return config


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tool_s", type=in_range(float, 0.0), default=1.0, help="seconds per tool call")
    parser.add_argument("--judge_s", type=in_range(float, 0.0), default=2.0, help="seconds per judge call")
    parser.add_argument("--steps", type=in_range(int, 3), default=6, help="steps of each kind")
    parser.add_argument("--groups", type=in_range(int, 1), default=8, help="queries per step")
    parser.add_argument("--group_size", type=in_range(int, 3), default=8, help="trajectories per query")
    parser.add_argument("--turn_tokens", type=in_range(int, 64), default=96, help="tokens per turn")


def main() -> None:
    config, arguments = parse_arguments(__doc__, add_flags)
    config = settings_of(config, arguments)
    require_sync(config.rollout, steps_ahead=config.rl.steps_ahead)
    fix_randomness(config)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(config, "tiny", Path(folder))
        in_turn, ahead = (measure(bench, kind, arguments) for kind in (InTurn, StepAhead))
    result = figures(in_turn, ahead)
    sizes = f"{arguments.groups} groups of {arguments.group_size}, {arguments.turn_tokens} tokens a turn"
    show(f"{sizes}, tool calls of {arguments.tool_s:g} s, judge calls of {arguments.judge_s:g} s", result)
    print(json.dumps({name: round(value, 4) if type(value) is float else value for name, value in result.items()}))


if __name__ == "__main__":
    run_cli(main)
