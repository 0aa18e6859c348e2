"""Benchmark of a training step: its time compared with plain TRL's, the time of its parts, and hidden judging.

    python -m arenarl.studies.bench_training --config configs/quickstart.yaml [--groups 8] [--group_size 16] [--pairs 6]

The policy never ends a turn by itself, so both steps generate the same number of tokens; `bench_parts.Script` then
replaces them with tool calls and answers. One process makes two measurements for each `--shape`:

1. One GRPOTrainer alternates between our step and TRL's own, on the same prompts, with `--tokens` in every completion.
   TRL's step is plain `GRPOTrainer` with a reward function that returns at once; attention and output head are ours in
   both. Ours adds the rollout engine, log-probabilities of its own tokens, tournaments with an instant judge, and the
   metrics. Ours goes first in every second pair. Medians leave out the first pair. `step_ratio_to_trl` is our median
   divided by TRL's. `tokens_per_s` counts the rollout's generated tokens; `ms_per_token` is the rollout's time divided
   by the tokens of one completion. `peak_memory_gb` is the process's on a CPU, torch's allocation in our steps on a
   GPU; `planned_memory_gb` is `arenarl.plan`'s estimate of such a step.
2. Rollouts of several turns with real tool calls, and a judge that takes `--delay_s` a call. `bench_parts` defines
   `judge_hidden_possible` and `judge_hidden_share`.

`--measure` chooses one of them. The last line is JSON of the last shape; its `rows` has all shapes.
"""

import argparse
import json
import math
import random
import tempfile
from copy import deepcopy
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_utils import SaveStrategy
from trl import GRPOTrainer

from arenarl.config.command_line import in_range, parse_arguments
from arenarl.config.schema import Config, EnvironmentConfig
from arenarl.domains.domain import make_domain
from arenarl.domains.environments import make_environment
from arenarl.domains.travel.queries import SUBTASKS, make_queries
from arenarl.judges.judge import Judge, Verdict, make_examiner
from arenarl.judges.verifier import Verifier
from arenarl.plan.stage import RESERVE, Stage
from arenarl.rollout.backends import make_engine
from arenarl.rollout.environment import Environment
from arenarl.rollout.policy import PACKAGED, load_tokenizer, lora_config
from arenarl.rollout.system_prompt import system_prompt
from arenarl.run.checkpoints import TrainingBar
from arenarl.run.stage import fix_randomness
from arenarl.run.timing import peak_memory_gb
from arenarl.studies.bench_parts import SHAPES, Overlap, Script, SlowJudge, build_policy, measure_overlap
from arenarl.system.errors import UserError, run_cli
from arenarl.system.seeds import stable_seed
from arenarl.training import trl_adapter as adapter
from arenarl.training.arena import Arena
from arenarl.training.step import TrainingStep
from arenarl.training.trl_internals import OwnTokensTrainer
from arenarl.trajectory import Query, Trajectory, prompt_messages

MAX_TURNS = 8  # most turns of a trajectory in the second measurement
PARTS = ("rollout", "forward", "judge")  # parts of our step, as the trainer logs them; the update is the rest


class InstantJudge:
    """Scores at once; a trajectory always gets the same score."""

    async def compare(self, query: Query, first: Trajectory, second: Trajectory, repeat: int = 0) -> Verdict | None:
        totals = (stable_seed(trajectory.messages) % 1000 / 100 for trajectory in (first, second))
        return Verdict(tuple({"total": total} for total in totals), itemgetter("total"))


@dataclass(frozen=True)
class Step:
    """One measured step, ours or TRL's. `memory`: peak bytes of the GPU, 0 on a CPU; `logged`: the trainer's log."""

    pair: int
    is_ours: bool
    seconds: float
    memory: int
    logged: dict[str, float]


def is_ours(step: int) -> bool:
    """Return True for the first step of every even pair and the second of every odd pair.

    >>> [is_ours(step) for step in range(8)]
    [True, False, False, True, True, False, False, True]
    """
    return step % 4 in (0, 3)


class AlternateSteps(TrainerCallback):
    """Makes the trainer alternate between our steps and TRL's own, and measures them."""

    def __init__(self):
        self.trainer: GRPOTrainer | None = None  # set once it exists
        self.steps: list[Step] = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.ours = self.trainer.rollout_func

    def on_step_begin(self, args, state, control, **kwargs):
        self.trainer.rollout_func = self.ours if is_ours(state.global_step) else None
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        self.start = perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds = perf_counter() - self.start
        self.memory = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0

    def on_log(self, args, state, control, logs=None, **kwargs):
        if len(self.steps) < state.global_step:  # false for the last log, which sums up the training
            number = state.global_step - 1
            step = Step(number // 2, is_ours(number), self.seconds, self.memory, dict(logs))
            self.steps.append(step)
            parts = "".join(f"{part} {logs[f'time/{part}_s']:.3f}, " for part in PARTS) if step.is_ours else ""
            line = f"  pair {step.pair}: {'our' if step.is_ours else 'TRL'} step {step.seconds:.3f} s; {parts}"
            print(line.rstrip(" ,;"), flush=True)


class Bench:
    """One shape's policy, queries and trainers, shared by both measurements."""

    def __init__(self, config: Config, shape: str, folder: Path, layers: int | None = None):
        self.config, self.folder, self.shape = config, folder, shape
        if shape in SHAPES:
            config.policy.dtype = "bfloat16"
        self.examine = make_examiner(make_domain(config.environment, config.data))
        language, taken = config.data.language, set()
        world = make_environment(config.environment, language).world
        by_subtask = [make_queries(world, name, language, 40, "bench", taken) for name in SUBTASKS]
        self.queries = [query for queries in by_subtask for query in queries]
        self.policy, self.parameters = build_policy(config, shape, self.queries, folder / "policy", layers)
        self.tokenizer = load_tokenizer(self.policy)

    def new_step(self, config: Config, judge: Judge, tools: Environment, kind: type = TrainingStep) -> TrainingStep:
        """Return a training step of this `kind` over `tools`, with a new engine."""
        engine, verifier = make_engine(config, self.tokenizer, lambda: tools), Verifier(config.judge.verifier, None)
        arena = Arena(judge, config.reward, config.tournament, config.group_stage, verifier, config.seed)
        return kind(config, self.queries, engine, arena, self.examine, self.folder)

    def trainer(
        self, judge: Judge, prompts: list[str], steps: int, turns: int, turn_tokens: int, callbacks=(), on_reward=None
    ) -> GRPOTrainer:
        """Return a GRPOTrainer with our rollouts and rewards. In TRL's own steps the reward function returns at once.
        `on_reward` is called with the step's judging before our reward function."""
        config = deepcopy(self.config)
        config.rl.steps, config.rl.learning_rate, config.rl.eval_steps, config.wandb.mode = steps, 0.0, 0, "disabled"
        config.rollout.max_turns, config.rollout.max_turn_tokens = turns, turn_tokens
        config.rollout.max_tokens = turn_tokens if turns == 1 else 4 * turns * turn_tokens  # observations included
        step = self.new_step(config, judge, make_environment(config.environment, config.data.language))
        step.engine.generator.generate = Script(self.tokenizer, step.engine.generator.generate, turns)
        (our_reward,) = step.reward_funcs

        def reward(prompts: list, **columns: Any) -> list[float]:
            if trainer.rollout_func is None:  # TRL's own step
                return [float(row % 2) for row in range(len(prompts))]
            if on_reward:
                on_reward(step.batch.judgings[-1])
            return our_reward(**columns)

        arguments = adapter.grpo_arguments(config, self.folder / "trainer", 1)
        arguments.save_strategy = SaveStrategy.NO
        trainer = OwnTokensTrainer(
            model=self.policy,
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=self.tokenizer,
            rollout_func=step.rollout_func,
            reward_funcs=reward,
            callbacks=list(callbacks),
            peft_config=lora_config(config.policy.lora_rank),
        )
        TrainingBar(f"bench, {self.shape}").attach(trainer)
        return trainer

    def measure_step(self, pairs: int, tokens: int) -> dict[str, Any]:
        """Compare our step with TRL's, and split ours into its parts; medians over all pairs but the first."""
        groups, size = self.config.rl.groups, self.config.rollout.group_size
        prompts: list[str] = []
        for pair in range(pairs + 1):
            queries = random.Random(pair).sample(self.queries, groups)
            names, rendered = [query.query_id for query in queries], [self._render(query) for query in queries]
            prompts += names + rendered if is_ours(2 * pair) else rendered + names
        alternate = AlternateSteps()
        alternate.trainer = trainer = self.trainer(InstantJudge(), prompts, 2 * pairs + 2, 1, tokens, [alternate])
        trainer.train()
        seen = [step.logged["num_tokens"] for step in alternate.steps]  # tokens so far, prompts included
        new = [after - before for before, after in zip([0, *seen[:-1]], seen, strict=True)]
        if new[::2] != new[1::2]:
            raise RuntimeError(f"our steps and TRL's have different numbers of tokens: {new}")
        ours, trl = ([step for step in alternate.steps[2:] if step.is_ours == kind] for kind in (True, False))
        parts = {part: median(step.logged[f"time/{part}_s"] for step in ours) for part in PARTS}
        step_s, trl_step_s = (median(step.seconds for step in kind) for kind in (ours, trl))
        return {
            "step_s": step_s,
            "trl_step_s": trl_step_s,
            "step_ratio_to_trl": step_s / trl_step_s,
            **{f"{part}_s": seconds for part, seconds in parts.items()},
            "update_s": step_s - sum(parts.values()),
            "tokens_per_s": groups * size * tokens / parts["rollout"],
            "ms_per_token": parts["rollout"] / tokens * 1e3,
            # the process's memory if there is no GPU
            "peak_memory_gb": max(step.memory for step in ours) / 1e9 or peak_memory_gb() * 2**30 / 1e9,
            "planned_memory_gb": self._planned_gb(tokens),
        }

    def _planned_gb(self, tokens: int) -> float:
        """Return the plan's memory for a step with `tokens` in each completion."""
        config = deepcopy(self.config)
        config.policy.model, config.rl.init, config.rl.eval_steps = self.policy, None, 0
        prompts = [self.tokenizer.encode(self._render(query)) for query in self.queries]
        config.rollout.max_tokens = tokens + max(map(len, prompts))
        most = max(sum(parts.values()) for parts in Stage(config, "rl").phases.values())
        return (most - sum(RESERVE.values())) / 1e9  # torch does not allocate the reserve for CUDA and libraries

    def measure_hidden(self, delay_s: float, turn_tokens: int) -> Overlap:
        """Train two steps with a slow judge and measure how much judging the second one hides."""
        groups, concurrency = self.config.rl.groups, self.config.judge.concurrency
        queries = [query for step in range(2) for query in random.Random(-step - 1).sample(self.queries, groups)]
        waits = []

        def wait(judging) -> None:
            start = perf_counter()
            judging.outcomes()
            waits.append((judging, start, perf_counter()))

        prompts, judge = [query.query_id for query in queries], SlowJudge(delay_s, concurrency)
        self.trainer(judge, prompts, 2, MAX_TURNS, turn_tokens, on_reward=wait).train()
        judging, *times = waits[-1]
        return measure_overlap(judging, self.config.tournament.topology, concurrency, delay_s, *times)

    def _render(self, query: Query) -> str:
        """Return the query's prompt as text; TRL encodes it into the tokens that our engine starts from."""
        messages = prompt_messages(query, system_prompt(self.config))
        return self.tokenizer.apply_chat_template(messages, tools=None, add_generation_prompt=True, tokenize=False)


def show(title: str, figures: dict[str, Any]) -> None:
    values = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in figures.items()}
    print(title, *(f"  {name:20} {value}" for name, value in values.items()), sep="\n", flush=True)


def add_flags(parser: argparse.ArgumentParser) -> None:
    shapes, measures = ["tiny", *SHAPES, *PACKAGED], ["step", "hidden"]
    default = "policies (default: tiny, and with a GPU also qwen3-1.7b)"
    parser.add_argument("--shape", nargs="+", choices=shapes, help=default)
    both = "step: a step compared with TRL's; hidden: judging hidden by rollouts"
    parser.add_argument("--measure", nargs="+", choices=measures, default=measures, help=both)
    parser.add_argument("--layers", type=in_range(int, 1), help="keep only the policy's first layers (default: all)")
    parser.add_argument("--groups", type=in_range(int, 1), default=8, help="queries per step")
    parser.add_argument("--group_size", type=in_range(int, 3), default=16, help="trajectories per query")
    parser.add_argument("--tokens", type=in_range(int, 64), default=128, help="step: tokens per completion")
    parser.add_argument("--pairs", type=in_range(int, 1), default=6, help="step: steps of each kind")
    parser.add_argument("--turn_tokens", type=in_range(int, 64), default=96, help="hidden: tokens per turn")
    parser.add_argument("--delay_s", type=in_range(float, 1e-3), default=1.0, help="hidden: seconds per judge call")


def main() -> None:
    config, arguments = parse_arguments(__doc__, add_flags)
    if config.rollout.backend != "transformers":
        reason = "the benchmark cannot give its weights to vLLM; leave the key out"
        raise UserError(f"rollout.backend={config.rollout.backend}: {reason}")
    config.rl.groups, config.rollout.group_size = arguments.groups, arguments.group_size
    config.rl.micro_batch_size = math.gcd(config.rl.micro_batch_size, arguments.groups * arguments.group_size)
    config.reward.name, config.rl.updates_per_rollout = "tournament", 1
    config.environment = EnvironmentConfig(results="compact", schemas_in_prompt=False)
    fix_randomness(config)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    rows = []
    for shape in arguments.shape or ["tiny", *["qwen3-1.7b"] * torch.cuda.is_available()]:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(deepcopy(config), shape, Path(folder), arguments.layers)
            row = {"shape": shape, "parameters": bench.parameters, "concurrency": config.judge.concurrency}
            row |= {"backend": config.rollout.backend, "device": device}
            sizes = f"{shape}, {arguments.groups} groups of {arguments.group_size}"
            if "step" in arguments.measure:
                row |= bench.measure_step(arguments.pairs, arguments.tokens)
                show(f"{sizes}, {arguments.tokens} tokens each, medians of {arguments.pairs} pairs", row)
            if "hidden" in arguments.measure:
                overlap = bench.measure_hidden(arguments.delay_s, arguments.turn_tokens)
                shares = {"judge_hidden_share": overlap.share, "judge_hidden_possible": overlap.possible}
                show(f"{sizes}, judge calls of {arguments.delay_s:g} s", vars(overlap) | shares)
                row |= shares
        rows.append({name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()})
    print(json.dumps(rows[-1] | {"rows": rows}))


if __name__ == "__main__":
    run_cli(main)
