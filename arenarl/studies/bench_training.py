"""What a training step costs beside plain TRL's, where its time goes,
and how much of the judging it hides behind generation.

    python -m arenarl.studies.bench_training --config configs/quickstart.yaml [--set key=value ...] [--groups 8]
        [--group_size 16] [--pairs 6] …

The policy has random weights, or those of a packaged model, and never ends a turn by itself, so that both steps
generate just as many tokens; what a turn says is written over it afterwards (`bench_parts`). Two measurements for each
`--shape`, on one process:

1. One GRPOTrainer takes our step and TRL's own in turn, on the same prompts, with `--tokens` in every completion. TRL's
   step is `GRPOTrainer` as it comes, but for attention and output head, which are ours in both: `model.generate`,
   padded forward passes and update, a reward function that returns at once. Ours differs in what this project puts in
   its place: the rollout engine with its back end, log-probabilities of own tokens, tournaments with a judge that
   answers at once, the metrics. Ours goes first in every other pair. Each step is printed as soon as it ends.
   `step_ratio_to_trl` is our median by TRL's, the first pair left out. `tokens_per_s` are generated tokens a second of
   the rollout, `ms_per_token` its milliseconds a token of all rows together, prompts included. `peak_memory_gb` is the
   process's on a CPU, and what torch allocated in our steps on a GPU; `planned_memory_gb` is what `arenarl.plan` says
   of such a step.
2. Rollouts of several turns with real tool calls, which end at different times, judged by an HTTP server that takes
   `--delay_s` a call: `bench_parts` says what `judge_hidden_possible` and `judge_hidden_share` are.

`--measure` chooses one of them. The last line is JSON, of the last shape; `rows` has all of them.
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

from arenarl.config.command_line import parse_arguments
from arenarl.config.schema import Config, EnvironmentConfig
from arenarl.domains.domain import make_domain
from arenarl.domains.environments import make_environment
from arenarl.domains.travel.queries import SUBTASKS, make_queries
from arenarl.judges.judge import Judge, Verdict, make_examiner
from arenarl.judges.verifier import Verifier
from arenarl.plan.stage import Stage
from arenarl.rollout.backends import make_engine
from arenarl.rollout.policy import PACKAGED, load_tokenizer, lora_config
from arenarl.rollout.system_prompt import system_prompt
from arenarl.run.checkpoints import TrainingBar
from arenarl.run.stage import fix_randomness
from arenarl.run.timing import peak_memory_gb
from arenarl.studies import bench_parts
from arenarl.studies.bench_parts import SHAPES, Overlap, Script
from arenarl.system.errors import UserError, guarded
from arenarl.system.seeds import stable_seed
from arenarl.training import trl_adapter as adapter
from arenarl.training.arena import Arena
from arenarl.training.step import TrainingStep
from arenarl.training.trl_internals import OwnTokensTrainer
from arenarl.trajectory import Query, Trajectory, prompt_messages

TURNS = 8  # of the second measurement, at most
PARTS = ("rollout", "forward", "judge")  # of our step, as the trainer logs them; the update is the rest


class InstantJudge:
    """Scores at once, and always the same trajectory alike."""

    async def compare(self, query: Query, first: Trajectory, second: Trajectory, repeat: int = 0) -> Verdict | None:
        totals = (stable_seed(one.messages) % 1000 / 100 for one in (first, second))
        return Verdict(tuple({"total": total} for total in totals), itemgetter("total"))


@dataclass(frozen=True)
class Step:
    """One step of ours or TRL's: its pair, seconds, bytes of the GPU at most (0 on a CPU),
    and what the trainer logged."""

    pair: int
    is_ours: bool
    seconds: float
    memory: int
    logged: dict[str, float]

    def show(self) -> None:
        parts = ", ".join(f"{part} {self.logged[f'time/{part}_s']:.3f}" for part in PARTS) if self.is_ours else ""
        whose = "our" if self.is_ours else "TRL"
        print(f"  pair {self.pair}: {whose} step {self.seconds:.3f} s{'; ' if parts else ''}{parts}", flush=True)


def is_ours(step: int) -> bool:
    """Whether a step is ours: the first of every even pair, the second of every odd one.

    >>> [is_ours(step) for step in range(8)]
    [True, False, False, True, True, False, False, True]
    """
    return step % 4 in (0, 3)


class TurnAbout(TrainerCallback):
    """Makes the trainer's steps ours and TRL's own in turn, and measures them."""

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
        if len(self.steps) < state.global_step:  # the last log is of the whole training
            step = state.global_step - 1
            self.steps.append(Step(step // 2, is_ours(step), self.seconds, self.memory, dict(logs)))
            self.steps[-1].show()


class Bench:
    """The parts that both measurements share, for one shape: policy, queries, trainers."""

    def __init__(self, config: Config, shape: str, folder: Path, layers: int | None = None):
        self.config, self.folder, self.shape = config, folder, shape
        if shape in SHAPES:
            config.policy.dtype = "bfloat16"
        self.examine = make_examiner(make_domain(config.environment, config.data))
        world, taken = make_environment(config.environment, config.data.language).world, set()
        language = config.data.language
        of_subtasks = [make_queries(world, name, language, 40, "bench", taken) for name in SUBTASKS]
        self.queries = [query for queries in of_subtasks for query in queries]
        self.policy, self.parameters = bench_parts.build_policy(config, shape, self.queries, folder / "policy", layers)
        self.tokenizer = load_tokenizer(self.policy)

    def trainer(
        self, judge: Judge, prompts: list[str], steps: int, turns: int, turn_tokens: int, callbacks=(), ask=None
    ) -> GRPOTrainer:
        """A GRPOTrainer with our rollouts and rewards, and with a reward that is there at once for steps without them.

        Args:
            ask: called with the step's judging, before our reward function is.
        """
        config = deepcopy(self.config)
        config.rl.steps, config.rl.learning_rate, config.rl.eval_steps, config.wandb.mode = steps, 0.0, 0, "disabled"
        config.rollout.max_turns, config.rollout.max_turn_tokens = turns, turn_tokens
        config.rollout.max_tokens = turn_tokens if turns == 1 else 4 * turns * turn_tokens  # observations included
        tools = make_environment(config.environment, config.data.language)
        engine = make_engine(config, self.tokenizer, lambda: tools)
        engine.generator.generate = Script(self.tokenizer, engine.generator.generate, turns)
        verifier = Verifier(config.judge.verifier, None)
        arena = Arena(judge, config.reward, config.tournament, config.group_stage, verifier, config.seed)
        step = TrainingStep(config, self.queries, engine, arena, self.examine, self.folder)
        (reward,) = step.reward_funcs

        def reward_or_at_once(prompts: list, **given: Any) -> list[float]:
            if trainer.rollout_func is None:  # TRL's own step
                return [float(row % 2) for row in range(len(prompts))]
            if ask:
                ask(step.judging)
            return reward(**given)

        arguments = adapter.grpo_arguments(config, self.folder / "trainer", 1, use_cpu=not torch.cuda.is_available())
        arguments.save_strategy = SaveStrategy.NO
        trainer = OwnTokensTrainer(
            model=self.policy,
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=self.tokenizer,
            rollout_func=step.rollout_func,
            reward_funcs=reward_or_at_once,
            callbacks=list(callbacks),
            peft_config=lora_config(config.policy.lora_rank),
        )
        TrainingBar(f"bench, {self.shape}").attach(trainer)
        return trainer

    def measure_step(self, pairs: int, tokens: int) -> dict[str, Any]:
        """Our step beside TRL's, and where the seconds of ours go; medians over all pairs but the first."""
        groups, size = self.config.rl.groups, self.config.rollout.group_size
        prompts: list[str] = []
        for pair in range(pairs + 1):
            queries = random.Random(pair).sample(self.queries, groups)
            names, rendered = [query.query_id for query in queries], [self._rendered(query) for query in queries]
            prompts += names + rendered if is_ours(2 * pair) else rendered + names
        turn_about = TurnAbout()
        turn_about.trainer = trainer = self.trainer(InstantJudge(), prompts, 2 * pairs + 2, 1, tokens, [turn_about])
        trainer.train()
        seen = [step.logged["num_tokens"] for step in turn_about.steps]  # so far, prompts included
        new = [after - before for before, after in zip([0, *seen[:-1]], seen, strict=True)]
        if new[::2] != new[1::2]:
            raise RuntimeError(f"our steps and TRL's have other numbers of tokens: {new}")
        ours, trl = ([step for step in turn_about.steps[2:] if step.is_ours == kind] for kind in (True, False))
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
            # of the process, where there is no GPU
            "peak_memory_gb": max(step.memory for step in ours) / 1e9 or peak_memory_gb() * 2**30 / 1e9,
            "planned_memory_gb": self._planned_gb(tokens),
        }

    def _planned_gb(self, tokens: int) -> float:
        """What the plan says of a step whose completions have so many tokens."""
        config = deepcopy(self.config)
        config.policy.model, config.rl.init, config.rl.eval_steps = self.policy, None, 0
        prompts = [self.tokenizer.encode(self._rendered(query)) for query in self.queries]
        config.rollout.max_tokens = tokens + max(map(len, prompts))
        return max(Stage(config, "rl").allocated.values()) / 1e9

    def measure_hidden(self, delay_s: float, turn_tokens: int) -> Overlap:
        """How much of the judging of a step a slow judge leaves to be waited for; the second of two steps."""
        groups, concurrency, asked = self.config.rl.groups, self.config.judge.concurrency, []
        sampled = [query for step in range(2) for query in random.Random(-step - 1).sample(self.queries, groups)]
        prompts = [query.query_id for query in sampled]
        with bench_parts.delayed_judge(delay_s, concurrency) as url, bench_parts.HTTPJudge(url, concurrency) as judge:

            def ask(judging) -> None:
                asked.append(judging)
                start = perf_counter()
                judging.outcomes()
                waits.append((start, perf_counter()))

            waits: list[tuple[float, float]] = []
            self.trainer(judge, prompts, 2, TURNS, turn_tokens, ask=ask).train()
        return bench_parts.measure_overlap(asked[-1], self.config.tournament.topology, concurrency, delay_s, *waits[-1])

    def _rendered(self, query: Query) -> str:
        """The query's prompt as text, which TRL then encodes into the tokens that our engine starts from."""
        messages = prompt_messages(query, system_prompt(self.config))
        return self.tokenizer.apply_chat_template(messages, tools=None, add_generation_prompt=True, tokenize=False)


def show_step(row: dict[str, Any], given: argparse.Namespace) -> None:
    """A shape's step beside TRL's, with what the figures are."""
    s = {name.removesuffix("_s"): f"{seconds:.3f}" for name, seconds in row.items() if name.endswith("_s")}
    text = f"""{row["shape"]}, {row["parameters"]:,} parameters, {row["backend"]} on {row["device"]}: \
{given.groups} groups of {given.group_size}
  our step    {s["step"]} s with {given.tokens} tokens in each completion: rollout {s["rollout"]}, \
log-probabilities {s["forward"]}, waiting for the judge {s["judge"]}, update and the rest {s["update"]}
  TRL's step  {s["trl_step"]} s; ours takes {row["step_ratio_to_trl"]:.3f} times as long (medians of {given.pairs} each)
  {row["tokens_per_s"]:.0f} tokens a second of the rollout, {row["ms_per_token"]:.2f} ms a token of all rows; \
{row["peak_memory_gb"]:.2f} GB at most, {row["planned_memory_gb"]:.2f} by arenarl.plan"""
    print(text, flush=True)


def show_hidden(row: dict[str, Any], overlap: Overlap, given: argparse.Namespace) -> None:
    """What of the judging the shape's rollouts hide."""
    share = "-" if overlap.share is None else f"{overlap.share:.3f}"
    text = f"""  {overlap.calls} judge calls of {given.delay_s:g} s, {row["concurrency"]} at once: \
{overlap.total_s:.2f} s if nothing were hidden; waited {overlap.wait_s:.2f} s, and at least \
{overlap.least_wait_s:.2f} s in any case; trajectories ended over {overlap.generation_s:.2f} s
  judge_hidden_possible {overlap.possible:.3f}: the share of the judging that the dependency graph allows before \
rewards are asked for
  judge_hidden_share    {share}: how much of that share was done by then"""
    print(text, flush=True)


def add_flags(parser: argparse.ArgumentParser) -> None:
    shapes, measures = ["tiny", *SHAPES, *PACKAGED], ["step", "hidden"]
    several = "policies (default: tiny, and with a GPU also qwen3-1.7b)"
    parser.add_argument("--shape", nargs="+", choices=shapes, help=several)
    beside = "a step beside TRL's, hidden judging"
    parser.add_argument("--measure", nargs="+", choices=measures, default=measures, help=beside)
    parser.add_argument("--layers", type=int, help="keep only the policy's first layers (default: all)")
    parser.add_argument("--groups", type=int, default=8, help="queries per step")
    parser.add_argument("--group_size", type=int, default=16, help="trajectories per query")
    parser.add_argument("--tokens", type=int, default=128, help="tokens per completion, for comparing steps")
    parser.add_argument("--pairs", type=int, default=6, help="steps of each kind to compare")
    parser.add_argument("--turn_tokens", type=int, default=96, help="tokens per turn, for measuring hidden judging")
    parser.add_argument("--delay_s", type=float, default=1.0, help="seconds per judge call there")


def main() -> None:
    config, arguments = parse_arguments(__doc__, add_flags)
    at_least = {"groups": 1, "group_size": 3, "tokens": 64, "pairs": 1, "turn_tokens": 64, "delay_s": 1e-3}
    for name, least in at_least.items():
        if getattr(arguments, name) < least:
            raise UserError(f"--{name} {getattr(arguments, name)}: must be at least {least}")
    if config.rollout.backend != "transformers":
        reason = "the benchmark does not know how to give vLLM its weights yet; leave the key out"
        raise UserError(f"rollout.backend={config.rollout.backend}: {reason}")
    config.rl.groups, config.rollout.group_size = arguments.groups, arguments.group_size
    config.rl.micro_batch_size = math.gcd(config.rl.micro_batch_size, arguments.groups * arguments.group_size)
    config.reward.name, config.rl.updates_per_rollout = "tournament", 1
    config.environment = EnvironmentConfig(results="compact", schemas_in_prompt=False)
    fix_randomness(config)
    rows = []
    for shape in arguments.shape or ["tiny", *["qwen3-1.7b"] * torch.cuda.is_available()]:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(deepcopy(config), shape, Path(folder), arguments.layers)
            device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
            row = {"shape": shape, "parameters": bench.parameters, "concurrency": config.judge.concurrency}
            row |= {"backend": config.rollout.backend, "device": device}
            if "step" in arguments.measure:
                row |= bench.measure_step(arguments.pairs, arguments.tokens)
                show_step(row, arguments)
            if "hidden" in arguments.measure:
                overlap = bench.measure_hidden(arguments.delay_s, arguments.turn_tokens)
                row |= {"judge_hidden_share": overlap.share, "judge_hidden_possible": overlap.possible}
                show_hidden(row, overlap, arguments)
        rows.append({name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()})
    print(json.dumps(rows[-1] | {"rows": rows}))


if __name__ == "__main__":
    guarded(main)
