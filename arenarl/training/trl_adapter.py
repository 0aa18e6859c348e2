"""The only module that touches TRL's experimental interfaces: our rollouts and rewards behind `GRPOTrainer`.

TRL hands `rollout_func` each prompt N times and hands reward functions the same rows; both are turned back into rollout groups
here. Whole groups stay on one process (config.check_groups), so no collective is needed to rank one. Rollout seeds and horizons
derive from the optimizer step, so a resumed run samples what the unbroken one would have. TRL generates, then computes the
reference's and the old log-probabilities, then asks for rewards: judging begins with the first of these, in a thread, and is waited
for in the last.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState
from trl import GRPOConfig, GRPOTrainer
from trl.models import unwrap_model_for_generation

from arenarl.config.schema import Config, RLConfig
from arenarl.judges.judge import Examiner
from arenarl.llm.client import LLMClient, RunStopped, Usage, usage_metrics
from arenarl.rollout.engine import RolloutEngine
from arenarl.rollout.policy import lora_config
from arenarl.rollout.weight_sync import VLLMWeights
from arenarl.run.processes import hold_gradients_once
from arenarl.run.tracking import log_table
from arenarl.run.trainer_arguments import common_arguments
from arenarl.run.zero3 import clip_norm, deepspeed_file, start_deepspeed
from arenarl.system.errors import UserError
from arenarl.system.progress import process_count
from arenarl.system.seeds import stable_seed
from arenarl.tournament.mixed_model import JudgeVariances
from arenarl.training.judging import Judging
from arenarl.training.outcome import GroupOutcome
from arenarl.training.own_tokens import OwnTokensTrainer, PlainRewardsTrainer
from arenarl.training.ppo import PPOTrainer
from arenarl.training.rewarding import Arena
from arenarl.training.rewards import center, leave_one_out, standardize
from arenarl.training.step_records import group_records, outcome_metrics, rollout_table
from arenarl.training.validity import ValidityWatch
from arenarl.training.watching import Watcher
from arenarl.trajectory import Query, RolloutGroup, Trajectory, append_step

Log = Callable[[list[RolloutGroup], list[GroupOutcome]], dict[str, list[float]]]
Keep = Callable[[int, list[RolloutGroup], list[GroupOutcome]], None]


def make_trainer(
    config: Config,
    folder: Path,
    policy: str,
    queries: Sequence[Query],
    engine: RolloutEngine,
    arena: Arena,
    examine: Examiner | None,
    client: LLMClient | None,
    act: Callable[[int], None],
    has_acted: Callable[[int], bool],
    watcher: Watcher | None = None,
) -> GRPOTrainer:
    """TRL's trainer on the policy at a path: it rolls out `queries` with `engine`, is rewarded by `arena` and watched by `watcher`.

    `act(step)` is called every `rl.eval_steps` optimizer steps, and first by a resumed run unless `has_acted(step)`; `examine` says what is
    logged as true, groups are kept in `folder`.
    """

    def log(groups: list[RolloutGroup], outcomes: list[GroupOutcome]) -> dict[str, list[float]]:
        return outcome_metrics(groups, outcomes, examine) | engine.tool_metrics()

    def keep(step: int, groups: list[RolloutGroup], outcomes: list[GroupOutcome]) -> None:
        append_step(folder / "groups.jsonl", step, group_records(step, groups, outcomes, examine))

    every_few_steps = EveryFewSteps(config.rl.eval_steps, engine, act, has_acted)
    validity = ValidityWatch(config.rl.stop_without_valid, engine.tokenizer.decode)
    trainer = trainer_class(config)(
        model=policy,
        args=grpo_arguments(config, folder, process_count(), use_cpu=not torch.cuda.is_available()),
        train_dataset=prompt_dataset(queries, config),
        processing_class=engine.tokenizer,
        rollout_func=rollout_function(engine, arena, queries, config, client, watcher),
        reward_funcs=reward_functions(arena, log, keep, config, client, validity, watcher),
        callbacks=[every_few_steps, KeptWithCheckpoint(arena)],
        peft_config=lora_config(config.policy.lora_rank),
    )
    hold_gradients_once(trainer)
    every_few_steps.trainer = trainer
    if config.rollout.backend != "transformers":
        trainer.vllm_weights = VLLMWeights(trainer, engine, queries, config)
    return trainer


def trainer_class(config: Config) -> Callable[..., GRPOTrainer]:
    """What makes the trainer: PPO has a critic beside the policy, BRPO takes rewards for advantages."""
    return {"gae": partial(PPOTrainer, config=config), "none": PlainRewardsTrainer}.get(config.rl.advantage, OwnTokensTrainer)


def grpo_arguments(config: Config, folder: Path, processes: int, use_cpu: bool) -> GRPOConfig:
    """TRL's arguments for Eqs. 7 and 8, or what `rl` makes of them: advantages, ratios, clip range, KL, how token losses are averaged.

    Starts the process group. The mean over processes of TRL's losses is the mean over all trajectories (`dapo`: all tokens) of the step.
    """
    rl, rollout = config.rl, config.rollout
    micro_batches = rl.groups // processes * rollout.group_size // rl.micro_batch_size
    scale_rewards, _ = advantage_by_trl(rl)
    arguments = GRPOConfig(
        **common_arguments(config, folder, use_cpu),
        max_steps=rl.steps,
        learning_rate=rl.learning_rate,
        lr_scheduler_type=rl.lr_scheduler,
        max_grad_norm=clip_norm(rl.deepspeed, rl.max_grad_norm),
        per_device_train_batch_size=rl.micro_batch_size,
        gradient_accumulation_steps=micro_batches // rl.updates_per_rollout,
        steps_per_generation=micro_batches,
        num_iterations=1,
        num_generations=rollout.group_size,
        temperature=rollout.temperature,
        max_completion_length=rollout.max_tokens,
        beta=rl.beta,
        epsilon=rl.epsilon,
        epsilon_high=rl.epsilon_high,
        importance_sampling_level=rl.importance_sampling_level,
        vllm_importance_sampling_mode="token_truncate",  # a sequence's product of ratios would zero long trajectories
        loss_type=rl.loss_type,
        scale_rewards=scale_rewards,
        multi_objective_aggregation="normalize_then_sum" if rl.advantage == "decoupled" else "sum_then_normalize",
        use_bias_correction_kl=False,
        shuffle_dataset=False,
        logging_steps=1,
        save_steps=rl.save_steps,
        deepspeed=deepspeed_file(rl.deepspeed),
    )
    if rl.deepspeed:
        start_deepspeed()
    return arguments


def advantage_by_trl(rl: RLConfig) -> tuple[str, Callable[[Sequence[float | None]], Sequence[float | None]]]:
    """TRL's `scale_rewards`, and what of a group's rewards (G,) to hand over, so that TRL's advantages are those of `rl.advantage`.

    TRL takes off the group's mean and divides by a standard deviation (ddof 1, plus 1e-4) of what it was handed: the group's, the
    batch's, or none. It leaves None out and gives it advantage 0. Where that is not the method, it is handed the advantage itself,
    of which the mean is 0.
    """
    if rl.advantage == "group_std" and (rl.advantage_ddof, rl.advantage_epsilon) != (1, 1e-4):
        return "none", partial(standardize, ddof=rl.advantage_ddof, eps=rl.advantage_epsilon)
    return {
        "group_std": ("group", list),
        "center": ("none", list),
        "leave_one_out": ("none", leave_one_out),
        "batch_std": ("batch", center),  # the standard deviation is that of centred rewards, not of rewards as TRL's alone would be
        "decoupled": ("group", list),  # TRL's normalize_then_sum does not look at the first
        "gae": ("none", list),  # PPOTrainer puts its own in their place
        "none": ("none", list),  # PlainRewardsTrainer does
    }[rl.advantage]


def prompt_dataset(queries: Sequence[Query], config: Config) -> Dataset:
    """The ids of all queries of the run in order, one a group: shuffled passes laid out in advance, so that resuming needs no sampler state."""
    rng = random.Random(stable_seed(config.seed, "query order"))
    order: list[str] = []
    waiting: list[str] = []
    for _ in range(config.rl.rollouts):
        step: list[str] = []
        while len(step) < config.rl.groups:
            waiting = waiting or [query.query_id for query in rng.sample(list(queries), len(queries))]
            query_id = waiting.pop()
            if query_id in step:  # where one pass ends and the next begins
                waiting.insert(0, query_id)
            else:
                step.append(query_id)
        order += step
    return Dataset.from_dict({"prompt": order})


def rollout_function(
    engine: RolloutEngine,
    arena: Arena,
    queries: Sequence[Query],
    config: Config,
    client: LLMClient | None = None,
    watcher: Watcher | None = None,
) -> Callable[[list[str], GRPOTrainer], dict[str, Any]]:
    """TRL's `rollout_func`: prompts, each N times in a row → token ids, the mask of the policy's own tokens, and the groups.

    `arena` and `watcher` get each trajectory as it ends. What ends the former's judging, or the `client` that asks LLMs, ends the rollout too:
    RunStopped on all processes, once all are through with theirs.
    """
    by_id = {query.query_id: query for query in queries}
    n = config.rollout.group_size

    def roll_out(prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        firsts = prompts[::n]
        if [first for first in firsts for _ in range(n)] != list(prompts):
            raise RuntimeError(f"TRL did not hand over whole groups of {n} prompts; this version of TRL lays batches out differently")
        step_queries = [by_id[query_id] for query_id in firsts]
        start = time.perf_counter()
        step = trainer.state.global_step
        judging = arena.begin(step_queries, n)
        if watcher:
            watcher.begin(step, judging.groups)

        def hand_over(index: int, trajectory: Trajectory) -> None:
            judging.groups[index // n].hand_over(index % n, trajectory)
            judging.check()
            if client:
                client.check()

        groups, stop = [], None
        with generating(engine, trainer):
            try:
                groups = engine.roll_out_groups(step_queries, stable_seed(config.seed, step), config.turns.at(step), hand_over)
            except RunStopped as error:  # the others must learn of it, and the model must go back to the trainer, before it is raised
                stop = str(error)
        if client:
            stop_together(gather_object([stop]))
        trajectories = [_with_a_token(trajectory, trainer.processing_class.eos_token_id) for group in groups for trajectory in group.trajectories]
        return {
            "prompt_ids": [trajectory.prompt_ids for trajectory in trajectories],
            "completion_ids": [trajectory.completion_ids for trajectory in trajectories],
            "env_mask": [trajectory.policy_mask_T for trajectory in trajectories],
            "logprobs": [trajectory.logprobs_T for trajectory in trajectories] if trainer.use_vllm else None,
            "group": [group for group in groups for _ in range(n)],
            "judging": [judging] * len(trajectories),
            "rollout": [(start, time.perf_counter())] * len(trajectories),
        }

    return roll_out


def _with_a_token(trajectory: Trajectory, token: int) -> Trajectory:
    """TRL looks at the last token of each. One that ended before the first gets this, which is nobody's own."""
    return trajectory if trajectory.completion_ids else replace(trajectory, completion_ids=[token], policy_mask_T=[0], logprobs_T=[None])


def reward_functions(
    arena: Arena,
    log: Log,
    keep: Keep,
    config: Config,
    client: LLMClient | None = None,
    validity: ValidityWatch | None = None,
    watcher: Watcher | None = None,
) -> list[Callable[..., list[float | None]]]:
    """What TRL calls for rewards, one function a column: the reward, and for `rl.advantage: decoupled` (GDPO) whether it is valid."""
    n = config.rollout.group_size
    judged: list[GroupOutcome] = []

    def remember(groups: list[RolloutGroup], outcomes: list[GroupOutcome]) -> dict[str, list[float]]:
        judged[:] = outcomes
        return log(groups, outcomes)

    def valid(group: list[RolloutGroup], **_: Any) -> list[float | None]:
        """1 or 0; None where the reward is, so that TRL leaves the trajectory out of both columns."""
        outcomes = zip(group[::n], judged, strict=True)
        pairs = [pair for one, outcome in outcomes for pair in zip(one.trajectories, outcome.rewards_G, strict=True)]
        return [None if reward is None else float(trajectory.valid) for trajectory, reward in pairs]

    reward = reward_function(arena, remember, keep, config, client, validity, watcher)
    return [reward, valid] if config.rl.advantage == "decoupled" else [reward]


def reward_function(
    arena: Arena,
    log: Log,
    keep: Keep,
    config: Config,
    client: LLMClient | None = None,
    validity: ValidityWatch | None = None,
    watcher: Watcher | None = None,
):
    """TRL's reward function: rows → groups → `arena` → rows. `log` turns this process's groups into the values of metrics, of which
    TRL takes the mean over all processes; `watcher` adds its own.

    Every `rl.eval_steps` steps `keep` gets the groups of all processes, on the main one, and W&B a table of them.

    All processes learn from all groups of the step, so what they know of the judge stays the same everywhere.
    """
    n = config.rollout.group_size
    _, hand_over = advantage_by_trl(config.rl)

    def reward(prompts, completions, group: list[RolloutGroup], judging: list[Judging], rollout: list[tuple], log_metric, trainer_state, **_: Any):
        groups = group[::n]
        (rollout_start, rollout_end), start = rollout[0], time.perf_counter()
        outcomes = judging[0].outcomes()
        watched = watcher.look(trainer_state.global_step, judging[0].groups, outcomes) if watcher else {}
        usage = llm_usage(client) if client else {}
        seconds = (rollout_end - rollout_start, start - rollout_end, time.perf_counter() - start)
        judged = gather_object([(*_of_group(one, outcome), seconds) for one, outcome in zip(groups, outcomes, strict=True)])
        calls, tallies, ends, tokens, seconds = zip(*judged, strict=True)  # of all processes
        arena.learn(n, calls)
        arena.count(tallies)
        if validity:
            validity.look(trainer_state.global_step, sum(ends, start=Counter()), groups)
        slowest = max(seconds, key=sum)  # all wait for it
        known = arena.judge_metrics() | usage | {  # the same on all processes
            **dict(zip(("time/rollout_s", "time/forward_s", "time/judge_s"), slowest, strict=True)),
            "rollout/max_turns": config.turns.at(trainer_state.global_step),
            "time/tokens_per_s": sum(tokens) / slowest[0],
        }
        log_metric("time/judge_hidden_s", judging[0].busy_s(until=start))
        for name, values in (log(groups, outcomes) | watched | {name: [value] for name, value in known.items()}).items():
            for value in values:
                log_metric(name, value)
        if config.rl.eval_steps and trainer_state.global_step % config.rl.eval_steps == 0:
            kept = gather_object(list(zip(groups, outcomes, strict=True)))
            if trainer_state.is_world_process_zero:
                show(trainer_state.global_step, *map(list, zip(*kept, strict=True)))
        return [reward for outcome in outcomes for reward in hand_over(outcome.rewards_G)]

    def show(step: int, groups: list[RolloutGroup], outcomes: list[GroupOutcome]) -> None:
        keep(step, groups, outcomes)
        log_table("rollouts", *rollout_table(groups, outcomes), step)

    reward.__name__ = config.reward.name
    return reward


def _of_group(group: RolloutGroup, outcome: GroupOutcome) -> tuple[Any, Any, Counter[str], int]:
    """What all processes hear of one: scored calls, tally, how its trajectories ended, tokens of the policy's own."""
    ends = Counter(trajectory.stop_reason for trajectory in group.trajectories)
    return outcome.scored_calls, outcome.tally, ends, sum(trajectory.policy_tokens for trajectory in group.trajectories)


def llm_usage(client: LLMClient) -> dict[str, float]:
    """What the LLM calls since the last step took, over all processes, and in total so far.

    Raises:
        RunStopped: on all processes, if one of them is to stop.
    """
    usage, spent = client.take_usage()
    reports = gather_object([(client.stop_reason, usage, spent)])
    stop_together([reason for reason, _, _ in reports])
    total = sum((one for _, one, _ in reports), start=Usage())
    spent = max((one for _, _, one in reports), key=lambda one: one.calls)  # read last
    return usage_metrics(total, spent)


def stop_together(reasons: Sequence[str | None]) -> None:
    """Raises RunStopped if a process has a reason to stop; `reasons` are those of all, so that none goes on alone and waits for ever."""
    if reasons := [reason for reason in reasons if reason]:
        raise RunStopped(reasons[0])


@contextmanager
def saved_if_stopped(trainer: GRPOTrainer, client: LLMClient | None) -> Iterator[None]:
    """Save a checkpoint of the last whole step if the LLM calls stop the run, be it in what follows the last one, so that the same command
    goes on from there.
    """
    try:
        yield
        if client:
            stop_together(gather_object([client.stop_reason]))
    except RunStopped as stop:
        trainer._save_checkpoint(trainer.model, trial=None)  # TRL saves at the end of a step only
        trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)
        checkpoint = f"{trainer.args.output_dir}/checkpoint-{trainer.state.global_step}"
        raise UserError(f"{stop}; saved {checkpoint}, from which the same command goes on") from stop


class EveryFewSteps(TrainerCallback):
    """Calls `act(step)` before training and after every `interval` optimizer steps, on all processes: each has its share to do, and
    under ZeRO-3 they must gather the weights together. A resumed run begins with what it was stopped in. Also logs `time/update_s`, what a
    step takes besides rollouts, log-probabilities before the update, and waiting for the judge.
    """

    def __init__(self, interval: int, engine: RolloutEngine, act: Callable[[int], None], has_acted: Callable[[int], bool] = lambda step: True):
        self.interval, self.engine, self.act, self.has_acted = interval, engine, act, has_acted
        self.trainer: GRPOTrainer | None = None  # set once the trainer exists

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step == 0 or not self.has_acted(state.global_step):
            self._run(state)

    def on_step_end(self, args, state, control, **kwargs):
        seconds = self.trainer._metrics["train"]
        parts = [f"time/{part}_s" for part in ("rollout", "forward", "judge")]
        before = sum(seconds[part][-1] for part in parts if part in seconds)  # not if an earlier step's serve
        seconds["time/update_s"].append(seconds["step_time"][-1] - before)
        self._run(state)

    def _run(self, state) -> None:
        if not self.interval or state.global_step % self.interval:
            return
        with generating(self.engine, self.trainer):
            self.act(state.global_step)


class KeptWithCheckpoint(TrainerCallback, ExportableState):
    """Saves what is known of the judge in a checkpoint's trainer_state.json, and goes on from there."""

    def __init__(self, arena: Arena):
        self.arena = arena

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": self.arena.variances.to_dict()}

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step:
            self.arena.variances = JudgeVariances.from_dict(state.stateful_callbacks[type(self).__name__]["attributes"])


@contextmanager
def generating(engine: RolloutEngine, trainer: GRPOTrainer) -> Iterator[None]:
    """What generates has the trainer's weights: vLLM gets them, or the engine is lent the model, gathered once and not once a turn."""
    with trainer.vllm_weights.in_use() if trainer.use_vllm else lent_model(engine, trainer):
        yield


@contextmanager
def lent_model(engine: RolloutEngine, trainer: Trainer) -> Iterator[None]:
    """The engine generates with the trainer's own model, whose weights are gathered under ZeRO-3."""
    with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model:
        was_training = model.training
        model.eval()
        engine.generator.model = model
        yield
        model.train(was_training)
