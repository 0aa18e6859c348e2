"""Our rollouts and rewards behind TRL's `GRPOTrainer`: its arguments, its data, what it calls between steps.

Whole groups stay on one process (config.check_groups), so no collective is needed to rank one. Rollout seeds and
horizons derive from the optimizer step, so a resumed run samples what the unbroken one would have.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
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
from arenarl.rollout.engine import RolloutEngine
from arenarl.rollout.policy import lora_config
from arenarl.rollout.weight_sync import VLLMWeights
from arenarl.run.checkpoints import MARK
from arenarl.run.processes import hold_gradients_once
from arenarl.run.trainer_arguments import clip_norm, common_arguments, deepspeed_file, on_one_gpu, start_deepspeed
from arenarl.system.errors import UserError
from arenarl.system.progress import process_count
from arenarl.system.seeds import stable_seed
from arenarl.tournament.mixed_model import JudgeVariances
from arenarl.training.bookkeeping import Bookkeeping
from arenarl.training.own_tokens import OwnTokensTrainer, PlainRewardsTrainer
from arenarl.training.ppo import PPOTrainer
from arenarl.training.rewarding import Arena
from arenarl.training.trainer_hooks import TrainerHooks, advantage_by_trl, generating
from arenarl.trajectory import Query


def make_trainer(
    config: Config,
    policy: str,
    queries: Sequence[Query],
    engine: RolloutEngine,
    arena: Arena,
    bookkeeping: Bookkeeping,
    act: Callable[[int], None],
    has_acted: Callable[[int], bool],
) -> GRPOTrainer:
    """TRL's trainer on the policy at a path: it rolls out `queries` with `engine` and is rewarded by `arena`.

    `act(step)` is called every `rl.eval_steps` optimizer steps, and first by a resumed run unless `has_acted(step)`.
    """
    every_few_steps = EveryFewSteps(config.rl.eval_steps, engine, act, has_acted)
    hooks = TrainerHooks(config, queries, engine, arena, bookkeeping)
    trainer = trainer_class(config)(
        model=policy,
        args=grpo_arguments(config, bookkeeping.folder, process_count(), use_cpu=not torch.cuda.is_available()),
        train_dataset=prompt_dataset(queries, config),
        processing_class=engine.tokenizer,
        rollout_func=hooks.roll_out,
        reward_funcs=hooks.reward_functions,
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
    return {"gae": partial(PPOTrainer, config=config), "none": PlainRewardsTrainer}.get(
        config.rl.advantage, OwnTokensTrainer
    )


def grpo_arguments(config: Config, folder: Path, processes: int, use_cpu: bool) -> GRPOConfig:
    """TRL's arguments for Eqs. 7 and 8, or what `rl` makes of them:
    advantages, ratios, clip range, KL, how token losses are averaged.

    Starts the process group. The mean over processes of TRL's losses is the mean over all trajectories of the step
    (`dapo`: the sum over its tokens by the tokens of a mean update of the rollout).
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
    return on_one_gpu(arguments)


def prompt_dataset(queries: Sequence[Query], config: Config) -> Dataset:
    """The ids of all queries of the run in order, one a group:
    shuffled passes laid out in advance, so that resuming needs no sampler state."""
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


@contextmanager
def saved_if_stopped(trainer: GRPOTrainer) -> Iterator[None]:
    """Save a checkpoint of the last whole step if the LLM calls stop the run, be it in what follows the last one, so
    that the same command goes on from there. One that is whole stays as it is: written over, it would not be for a
    while.
    """
    try:
        yield
    except RunStopped as stop:
        checkpoint = Path(trainer.args.output_dir) / f"checkpoint-{trainer.state.global_step}"
        if not any(gather_object([(checkpoint / MARK).is_file()])):  # all processes save it, or none
            trainer._save_checkpoint(trainer.model, trial=None)  # TRL saves at the end of a step only
            trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)
        raise UserError(f"{stop}; saved {checkpoint}, from which the same command goes on") from stop


class EveryFewSteps(TrainerCallback):
    """Calls `act(step)` before training and after every `interval` optimizer steps, on all processes: each has its
    share to do, and under ZeRO-3 they must gather the weights together. A resumed run begins with what it was stopped
    in. Also logs `time/update_s`, what a step takes besides rollouts, log-probabilities before the update, and waiting
    for the judge.
    """

    def __init__(
        self,
        interval: int,
        engine: RolloutEngine,
        act: Callable[[int], None],
        has_acted: Callable[[int], bool] = lambda step: True,
    ):
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
        return {"args": {}, "attributes": asdict(self.arena.variances)}

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step:
            self.arena.variances = JudgeVariances(**state.stateful_callbacks[type(self).__name__]["attributes"])
