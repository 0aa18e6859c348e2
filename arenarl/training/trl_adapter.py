"""Connects our step to TRL's `GRPOTrainer`: arguments, dataset, and callbacks between steps.

All trajectories of a group are on one process (config.check_groups), so ranking needs no collective operation.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState
from trl import GRPOConfig, GRPOTrainer

from arenarl.config.schema import Config
from arenarl.llm.client import RunStopped
from arenarl.rollout.policy import lora_config
from arenarl.rollout.weight_sync import GeneratorWeights
from arenarl.run.checkpoints import checkpoint_folder, finish_marks
from arenarl.run.marks import MARK
from arenarl.run.trainer_arguments import clip_norm, common_arguments, deepspeed_file, on_one_gpu, start_deepspeed
from arenarl.system.errors import UserError
from arenarl.system.progress import process_count, say
from arenarl.system.seeds import stable_seed
from arenarl.tournament.mixed_model import JudgeVariances
from arenarl.training.arena import Arena
from arenarl.training.methods import online_method
from arenarl.training.sft_internals import prepare_training
from arenarl.training.step import TrainingStep
from arenarl.training.trl_internals import OwnTokensTrainer, generating, save_checkpoint, step_metrics
from arenarl.trajectory import Query


def make_trainer(
    config: Config, policy: str, queries: Sequence[Query], step: TrainingStep, curve: Any = None,
    trainer_class: Callable[..., GRPOTrainer] = OwnTokensTrainer, **options: Any,
) -> GRPOTrainer:  # fmt: skip
    """Return TRL's trainer for the policy at a path. `step` makes its rollouts and rewards on `queries`; `curve` is
    the evaluation, if any, with `record(step)` and `has_point(step)`; `options` replace our arguments."""
    between_steps = BetweenSteps(config.rl.eval_steps, step, curve)
    defaults = {
        "model": policy,
        "args": grpo_arguments(config, step.folder, process_count()),
        "train_dataset": prompt_dataset(queries, config),
        "processing_class": step.engine.tokenizer,
        "rollout_func": step.rollout_func,
        "reward_funcs": step.reward_funcs,
        "callbacks": [between_steps, KeptWithCheckpoint(step.arena)],
        "peft_config": lora_config(config.policy.lora_rank),
    }
    trainer = trainer_class(**defaults | options)
    if make_advantages := online_method(config.rl).make_advantages:
        trainer.advantages = make_advantages(trainer, policy, config, lambda: step.batch.judged())
    balanced = config.rl.balance_micro_batches
    trainer.balances_micro_batches = torch.cuda.is_available() if balanced is None else balanced
    prepare_training(trainer)
    between_steps.trainer = trainer
    if config.rollout.backend != "transformers" or config.rl.steps_ahead:
        trainer.generator_weights = GeneratorWeights(trainer, step.engine, queries, config, step.wait)
    if config.rl.steps_ahead:
        trainer.add_callback(step)
    return trainer


def grpo_arguments(config: Config, folder: Path, processes: int) -> GRPOConfig:
    """Return TRL's arguments for Eqs. 7 and 8, as the `rl` keys change them.

    Starts the process group. The mean of TRL's losses over the processes is the mean over all trajectories of the step.
    With `dapo`, it is the sum over the step's tokens divided by the mean number of tokens per update of the rollout.
    """
    rl, rollout, method = config.rl, config.rollout, online_method(config.rl)
    micro_batches = rl.groups // processes * rollout.group_size // rl.micro_batch_size
    scale_rewards, _ = method.for_trl(rl)
    arguments = GRPOConfig(
        **common_arguments(config, folder),
        max_steps=rl.steps,
        learning_rate=rl.learning_rate,
        lr_scheduler_type=rl.lr_scheduler,
        warmup_steps=rl.warmup_steps,
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
        vllm_importance_sampling_mode="token_truncate",  # the product over a long sequence would be near 0
        loss_type=rl.loss_type,
        scale_rewards=scale_rewards,
        multi_objective_aggregation="normalize_then_sum" if method.keeps_rewards_apart else "sum_then_normalize",
        use_bias_correction_kl=False,
        shuffle_dataset=False,
        logging_steps=1,
        save_steps=rl.save_steps,
        deepspeed=deepspeed_file(rl.deepspeed),
    )
    if rl.deepspeed:
        start_deepspeed()
    return on_one_gpu(arguments)


def prompt_dataset(queries: Sequence[Query], config: Config) -> Dataset:
    """Return the run's query ids in training order, one per group.

    All shuffled passes are drawn in advance, so that resuming needs no sampler state. No step has a query twice.
    """
    rng = random.Random(stable_seed(config.seed, "query order"))
    order: list[str] = []
    waiting: list[str] = []
    for _ in range(config.rl.rollouts):
        step: list[str] = []
        while len(step) < config.rl.groups:
            waiting = waiting or [query.query_id for query in rng.sample(list(queries), len(queries))]
            query_id = waiting.pop()
            if query_id in step:  # possible where a new pass begins within a step
                waiting.insert(0, query_id)
            else:
                step.append(query_id)
        order += step
    return Dataset.from_dict({"prompt": order})


@contextmanager
def saved_if_stopped(trainer: GRPOTrainer) -> Iterator[None]:
    """Save a checkpoint of the last complete step when a RunStopped ends training, so that the run can resume.

    A complete checkpoint of that step is not overwritten, because a kill while writing would destroy it. Raises
    UserError, which names the checkpoint, in place of RunStopped.
    """
    try:
        yield
    except RunStopped as stop:
        checkpoint = checkpoint_folder(trainer.args, trainer.state)
        finish_marks()
        if not any(gather_object([(checkpoint / MARK).is_file()])):  # gathered: saving needs all processes
            save_checkpoint(trainer)
        finish_marks()
        how = "once the cause is removed, the same command resumes from it"
        raise UserError(f"{stop}; saved {checkpoint}; {how}") from stop


class BetweenSteps(TrainerCallback):
    """Records the evaluation curve before training and after every `interval` optimizer steps, on all processes.

    A resumed run first records the point that a kill interrupted. Also logs `time/update_s`: the step's seconds without
    rollouts, log-probabilities before the update, waiting for the judge, and the weight sync. At the end, prints what
    one step ahead would gain.
    """

    def __init__(self, interval: int, step: TrainingStep, curve: Any):
        self.interval, self.engine, self.curve = interval, step.engine, curve
        self.trainer: GRPOTrainer | None = None  # set once the trainer exists

    def on_train_begin(self, args, state, control, **kwargs):
        if self.curve and (state.global_step == 0 or not self.curve.has_point(state.global_step)):
            self._record(state.global_step)

    def on_step_begin(self, args, state, control, **kwargs):
        if self.trainer.use_vllm:
            self.trainer.generator_weights.take_times()  # drops those of an evaluation

    def on_step_end(self, args, state, control, **kwargs):
        seconds = step_metrics(self.trainer)
        first = "wait" if "time/wait_s" in seconds else "rollout"
        parts = [f"time/{part}_s" for part in (first, "forward", "judge", "sync")]
        before = sum(seconds[part][-1] for part in parts if part in seconds)  # absent if the step reuses rollouts
        seconds["time/update_s"].append(seconds["step_time"][-1] - before)
        self._record(state.global_step)

    def on_train_end(self, args, state, control, **kwargs):
        say(gain_of_a_step_ahead(state.log_history))

    def _record(self, step: int) -> None:
        if self.curve and self.interval and step % self.interval == 0:
            with generating(self.engine, self.trainer):
                self.curve.record(step)


def gain_of_a_step_ahead(history: Sequence[dict[str, float]]) -> str:
    """Return a line with the mean seconds of a rollout and its updates, one after the other and one step ahead.

    One step ahead, rollout and judging run beside the updates, so the longer of the two counts. In `history`, the
    trainer's logged metrics, an entry without a rollout belongs to the rollout before it.
    """
    cycles: list[list[float]] = []  # rollout, judging after it, forward and update, weight sync
    for entry in history:
        if "time/rollout_s" in entry:
            parts = ("rollout", "judge_after", "forward", "sync")
            rollout, judge, forward, sync = (entry.get(f"time/{part}_s", 0.0) for part in parts)
            cycles.append([rollout, judge, forward, sync])
        if cycles and "time/update_s" in entry:
            cycles[-1][2] += entry["time/update_s"]
    if not cycles:
        return "rl: no step was trained"
    rollout, judge, update, sync = (sum(values) / len(cycles) for values in zip(*cycles, strict=True))
    ahead = sum(max(cycle[0] + cycle[1], cycle[2]) + cycle[3] for cycle in cycles) / len(cycles)
    in_turn = rollout + judge + update + sync
    return (
        f"rl: rollout {rollout:.2f} s, judging after it {judge:.2f} s, forward and update {update:.2f} s, weight sync "
        f"{sync:.2f} s: one after the other {in_turn:.2f} s, one step ahead (rl.steps_ahead=1) {ahead:.2f} s, or "
        f"{ahead / in_turn:.0%}, where generation has cores or GPUs of its own"
    )


class KeptWithCheckpoint(TrainerCallback, ExportableState):
    """Saves the judge's variances and the evolving rubrics in a checkpoint's trainer_state.json, and loads them when a
    run resumes."""

    def __init__(self, arena: Arena):
        self.referee = arena.referee

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": asdict(self.referee.variances) | {"rubrics": self.referee.rubrics}}

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step:
            kept = dict(state.stateful_callbacks[type(self).__name__]["attributes"])
            self.referee.rubrics = kept.pop("rubrics", {})  # none in checkpoints of earlier versions
            self.referee.variances = JudgeVariances(**kept)
