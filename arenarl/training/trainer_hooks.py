"""What TRL's trainer calls in a step: rollouts, then rewards.

TRL hands `roll_out` each prompt N times and asks the reward functions for as many rewards; both are turned back into
rollout groups here. TRL generates, then computes the reference's and the old log-probabilities, then asks for rewards:
judging begins with the first of these, in a thread, and is waited for in the last.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from accelerate.utils import gather_object
from transformers import Trainer
from trl import GRPOTrainer
from trl.models import unwrap_model_for_generation

from arenarl.config.schema import Config, RLConfig
from arenarl.llm.client import RunStopped
from arenarl.rollout.engine import RolloutEngine
from arenarl.system.seeds import stable_seed
from arenarl.training.bookkeeping import Bookkeeping
from arenarl.training.judging import Judging
from arenarl.training.outcome import GroupOutcome
from arenarl.training.rewarding import Arena
from arenarl.training.rewards import center, leave_one_out, standardize
from arenarl.trajectory import Query, RolloutGroup, Trajectory

Log = Callable[[str, float], None]


class TrainerHooks:
    """`roll_out` is TRL's `rollout_func`, `reward_functions` its `reward_funcs`.
    They meet in `judging`, that of the step under way."""

    def __init__(
        self, config: Config, queries: Sequence[Query], engine: RolloutEngine, arena: Arena, bookkeeping: Bookkeeping
    ):
        self.config, self.engine, self.arena, self.bookkeeping = config, engine, arena, bookkeeping
        self.by_id = {query.query_id: query for query in queries}
        self.judging: Judging[GroupOutcome]
        self.groups: list[RolloutGroup]
        self.generated: tuple[float, float]  # start and end of the rollouts, by perf_counter

    def roll_out(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """Prompts, each N times in a row → token ids, the mask of the policy's own tokens.

        What ends the judging of a trajectory that was handed over, the client that asks LLMs, or a service behind the
        tools that refuses all calls, ends the rollout too: RunStopped on all processes, once all are through with
        theirs.
        """
        n = self.config.rollout.group_size
        firsts = prompts[::n]
        if [first for first in firsts for _ in range(n)] != list(prompts):
            raise RuntimeError(
                f"TRL did not hand over whole groups of {n} prompts; this version of TRL lays batches out differently"
            )
        queries = [self.by_id[query_id] for query_id in firsts]
        start, step = time.perf_counter(), trainer.state.global_step
        self.judging = judging = self.arena.begin(queries, n)
        self.bookkeeping.begin(step, judging.groups)

        def hand_over(index: int, trajectory: Trajectory) -> None:
            judging.groups[index // n].hand_over(index % n, trajectory)
            judging.check()
            self.bookkeeping.check()

        stop = None
        with generating(self.engine, trainer):
            try:
                self.groups = self.engine.roll_out_groups(
                    queries, stable_seed(self.config.seed, step), self.config.turns.at(step), hand_over
                )
            except RunStopped as error:
                # the others must learn of it, and the model must go back to the trainer, before it is raised
                stop = str(error)
        self.bookkeeping.stop_together(stop)
        self.generated = start, time.perf_counter()
        trajectories = [
            _with_a_token(trajectory, trainer.processing_class.eos_token_id)
            for group in self.groups
            for trajectory in group.trajectories
        ]
        return {
            "prompt_ids": [trajectory.prompt_ids for trajectory in trajectories],
            "completion_ids": [trajectory.completion_ids for trajectory in trajectories],
            "env_mask": [trajectory.policy_mask_T for trajectory in trajectories],
            "logprobs": [trajectory.logprobs_T for trajectory in trajectories] if trainer.use_vllm else None,
        }

    @property
    def reward_functions(self) -> list[Callable[..., list[float | None]]]:
        """A column each: the reward, and for `rl.advantage: decoupled` (GDPO) whether the trajectory is valid."""
        _, hand_over = advantage_by_trl(self.config.rl)

        def reward(log_metric: Log, trainer_state: Any, **_: Any) -> list[float | None]:
            return [
                reward
                for outcome in self._outcomes(trainer_state.global_step, log_metric)
                for reward in hand_over(outcome.rewards_G)
            ]

        def valid(**_: Any) -> list[float | None]:
            """1 or 0; None where the reward is, so that TRL leaves the trajectory out of both columns."""
            outcomes = zip(self.groups, self.judging.outcomes(), strict=True)
            pairs = [
                pair for group, outcome in outcomes for pair in zip(group.trajectories, outcome.rewards_G, strict=True)
            ]
            return [None if reward is None else float(trajectory.valid) for trajectory, reward in pairs]

        reward.__name__ = self.config.reward.name
        return [reward, valid] if self.config.rl.advantage == "decoupled" else [reward]

    def _outcomes(self, step: int, log_metric: Log) -> list[GroupOutcome]:
        """Those of the step's groups, and its metrics into TRL's log."""
        (rollout_start, rollout_end), start = self.generated, time.perf_counter()
        outcomes = self.judging.outcomes()
        seconds = (rollout_end - rollout_start, start - rollout_end, time.perf_counter() - start)
        metrics = self.bookkeeping.close(step, self.judging.groups, self.groups, outcomes)
        tokens = sum(trajectory.policy_tokens for group in self.groups for trajectory in group.trajectories)
        of_processes = gather_object([(tokens, seconds)])
        slowest = max((seconds for _, seconds in of_processes), key=sum)  # all wait for it
        for name, part in zip(("time/rollout_s", "time/forward_s", "time/judge_s"), slowest, strict=True):
            log_metric(name, part)
        log_metric("time/tokens_per_s", sum(tokens for tokens, _ in of_processes) / slowest[0])
        log_metric("time/judge_hidden_s", self.judging.busy_s(until=start))
        for name, values in metrics.items():
            for value in values:
                log_metric(name, value)
        return outcomes


def _with_a_token(trajectory: Trajectory, token: int) -> Trajectory:
    """TRL looks at the last token of each. One that ended before the first gets this, which is nobody's own."""
    return (
        trajectory
        if trajectory.completion_ids
        else replace(trajectory, completion_ids=[token], policy_mask_T=[0], logprobs_T=[None])
    )


def advantage_by_trl(rl: RLConfig) -> tuple[str, Callable[[Sequence[float | None]], Sequence[float | None]]]:
    """TRL's `scale_rewards`, and what of a group's rewards (G,)
    to hand over, so that TRL's advantages are those of `rl.advantage`.

    TRL takes off the group's mean and divides by a standard deviation (ddof 1, plus 1e-4) of what it was handed: the
    group's, the batch's, or none. It leaves None out and gives it advantage 0. Where that is not the method, it is
    handed the advantage itself, of which the mean is 0.
    """
    if rl.advantage == "group_std" and (rl.advantage_ddof, rl.advantage_epsilon) != (1, 1e-4):
        return "none", partial(standardize, ddof=rl.advantage_ddof, eps=rl.advantage_epsilon)
    return {
        "group_std": ("group", list),
        "center": ("none", list),
        "leave_one_out": ("none", leave_one_out),
        # the standard deviation is that of centred rewards, not of rewards as TRL's alone would be
        "batch_std": ("batch", center),
        "decoupled": ("group", list),  # TRL's normalize_then_sum does not look at the first
        "gae": ("none", list),  # PPOTrainer puts its own in their place
        "none": ("none", list),  # PlainRewardsTrainer does
    }[rl.advantage]


@contextmanager
def generating(engine: RolloutEngine, trainer: GRPOTrainer) -> Iterator[None]:
    """What generates has the trainer's weights: vLLM gets them, or the engine is lent the model,
    gathered once and not once a turn."""
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
