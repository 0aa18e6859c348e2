"""One step of RL: rollout → judge → reward → advantage → log.

TRL calls `rollout_func`, computes the log-probabilities of the old and the reference policy, then calls `reward_funcs`.
Judging starts with the first trajectory, in a thread (`judging`), and the reward function waits for it. `methods`
defines the rewards that TRL receives, and how advantages follow from them. Offline methods (`offline`) call `generate`,
`take` and `finish` themselves. With `rl.resample_equal`, a rollout has rounds: groups whose rewards are all equal are
replaced by groups of further queries.

Rollout seeds and horizons derive from the optimizer step, so a resumed run samples what an unbroken run would.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from accelerate.utils import gather_object
from trl import GRPOTrainer

from arenarl.config.schema import Config
from arenarl.judges.judge import Examiner
from arenarl.llm.client import LLMClient, RunStopped, Usage, usage_metrics
from arenarl.rollout.engine import RolloutEngine
from arenarl.run.tracking import log_table
from arenarl.system.progress import is_main_process, process_rank
from arenarl.system.seeds import stable_seed
from arenarl.training.arena import Arena
from arenarl.training.judging import Judging
from arenarl.training.methods import online_method
from arenarl.training.methods.method import Rewards
from arenarl.training.metrics import group_records, outcome_metrics, rollout_table
from arenarl.training.rewards import reward_of
from arenarl.training.rewards.group import GroupOutcome, rounded
from arenarl.training.trl_internals import generating
from arenarl.training.validity import RewardWatch, ValidityWatch, VerdictWatch
from arenarl.training.watching import Watcher
from arenarl.trajectory import Query, RolloutGroup, Trajectory, append_step


@dataclass
class Batch:
    """This process's groups of one step, and their judging.

    Args:
        weights_step: the optimizer step at which the trainer had the weights that generated the groups.
        kept: indices of the groups to train on, in `rolled_out`.
        rolled_out: the groups of all rounds; `rl.resample_equal` makes more than one round.
        judgings: the judging of each round.
        generated: start and end of the rollouts, by perf_counter.
        stop: why an LLM client or a service ended the rollouts early; None for complete groups.
    """

    number: int
    weights_step: int
    kept: list[int]
    rolled_out: list[RolloutGroup] = field(default_factory=list)
    judgings: list[Judging[GroupOutcome]] = field(default_factory=list)
    generated: tuple[float, float] = (0.0, 0.0)
    stop: str | None = None

    @property
    def groups(self) -> list[RolloutGroup]:
        """The groups to train on."""
        return [self.rolled_out[index] for index in self.kept]

    def outcomes(self) -> list[GroupOutcome]:
        """Wait for the judge, and return the outcomes of `rolled_out`."""
        return [outcome for judging in self.judgings for outcome in judging.outcomes()]

    def judged(self) -> list[tuple[RolloutGroup, GroupOutcome]]:
        """Wait for the judge, and return the groups to train on with their outcomes."""
        outcomes = self.outcomes()
        return [(self.rolled_out[index], outcomes[index]) for index in self.kept]


class TrainingStep:
    """The current step and this process's groups. TRL calls `rollout_func`, then `reward_funcs`; the methods stand in
    that order. All processes call them together.

    Args:
        examine: returns the truth that is logged; None to log no truth.
        folder: RL's folder, where groups.jsonl is written.
        watcher: a second judge, which does not affect rewards.
    """

    def __init__(
        self, config: Config, queries: Sequence[Query], engine: RolloutEngine, arena: Arena, examine: Examiner | None,
        folder: Path, client: LLMClient | None = None, watcher: Watcher | None = None,
    ):  # fmt: skip
        self.config, self.engine, self.arena, self.examine, self.folder = config, engine, arena, examine, folder
        self.client, self.watcher = client, watcher
        self.by_id = {query.query_id: query for query in queries}
        self.verdicts = VerdictWatch(config.judge.max_failure_share)
        self.validity = ValidityWatch(config.rl.stop_without_valid, engine.tokenizer.decode)
        is_by_world = config.reward.name == "environment" and not config.reward.tournament_if_equal
        self.world_rewards = RewardWatch(config.rl.stop_without_valid) if is_by_world else None
        self.batch: Batch
        self.metrics: dict[str, list[float]] | None = None  # set if a step is finished before TRL calls `reward_funcs`
        self.handed_at: float  # perf_counter when TRL received the trajectories
        self.boundary_s: dict[str, float]  # seconds between two steps: to sync weights, to wait for a batch

    def rollout_func(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """Return token ids and the masks of the policy's tokens. `prompts` are query ids, each N times in a row.
        Raises RuntimeError if TRL splits groups."""
        size = self.config.rollout.group_size
        query_ids = prompts[::size]
        if [query_id for query_id in query_ids for _ in range(size)] != list(prompts):
            raise RuntimeError(
                f"TRL passed prompts that are not whole groups of {size}: this TRL version orders batches in another "
                "way; install the version that requirements.txt pins"
            )
        queries = [self.by_id[query_id] for query_id in query_ids]
        self.collect(queries, trainer)
        end = trainer.processing_class.eos_token_id
        started = [trajectory for group in self.batch.groups for trajectory in group.trajectories]
        trajectories = [_with_a_token(trajectory, end) for trajectory in started]
        self.handed_at = perf_counter()
        return {
            "prompt_ids": [trajectory.prompt_ids for trajectory in trajectories],
            "completion_ids": [trajectory.completion_ids for trajectory in trajectories],
            "env_mask": [trajectory.policy_mask_T for trajectory in trajectories],
            "logprobs": [trajectory.logprobs_T for trajectory in trajectories] if trainer.use_vllm else None,
        }

    def collect(self, queries: Sequence[Query], trainer: GRPOTrainer) -> None:
        """Set the batch that the trainer's next updates train on."""
        step = trainer.state.global_step
        with generating(self.engine, trainer):
            batch = self.generate(step, queries, step)
        self.take(batch)
        self.boundary_s = {"sync": trainer.generator_weights.take_times()[1] if trainer.use_vllm else 0.0}

    def generate(self, number: int, queries: Sequence[Query], weights_step: int) -> Batch:
        """Generate a step's groups with the engine's weights. Judging starts with the first trajectory.

        Errors from the judge abort the rollout. Makes no collective call, except with `rl.resample_equal`.
        """
        start = perf_counter()
        batch = Batch(number, weights_step, list(range(len(queries))))
        self._roll_out_round(batch, queries)
        if self.config.rl.resample_equal > 1:
            self._replace_equal(batch)
        batch.generated = start, perf_counter()
        return batch

    def _roll_out_round(self, batch: Batch, queries: Sequence[Query]) -> None:
        """Add a group for each query."""
        size, number = self.config.rollout.group_size, batch.number
        judging = self.arena.begin(queries, size)
        batch.judgings.append(judging)
        if self.watcher:
            self.watcher.begin(number, judging.groups)

        def hand_over(index: int, trajectory: Trajectory) -> None:
            judging.groups[index // size].hand_over(index % size, trajectory)
            judging.check()
            if self.client:
                self.client.check()

        try:
            batch.rolled_out += self.engine.roll_out_groups(
                queries, stable_seed(self.config.seed, number), self.config.turns.at(number), hand_over
            )
        except RunStopped as error:  # raised by `take`, on all processes, once the trainer has the model back
            batch.stop = str(error)

    def _replace_equal(self, batch: Batch) -> None:
        """Replace groups of equal rewards, round by round, until no such group or no further query is left.

        The further queries are drawn by seed and step from the queries that the step does not have yet, at most
        `rl.resample_equal - 1` times `rl.groups`. All processes take part in every round.
        """
        rl, order = self.config.rl, list(self.by_id)
        random.Random(stable_seed(self.config.seed, "resample", batch.number)).shuffle(order)
        while True:
            judged = [] if batch.stop else batch.judged()
            distinct = [set(rounded(outcome.rewards_G)) - {None} for _, outcome in judged]
            equal = [place for place, rewards in enumerate(distinct) if len(rewards) <= 1]
            batch.stop = batch.stop or (self.client.stop_reason if self.client else None)
            own_ids = [group.query.query_id for group in batch.rolled_out]
            stops, used, counts = zip(*gather_object([(batch.stop, own_ids, len(equal))]), strict=True)
            taken = {query_id for of_process in used for query_id in of_process}
            left = [query_id for query_id in order if query_id not in taken][: rl.groups_at_most - len(taken)]
            if any(stops) or not left or not sum(counts):
                return
            first = sum(counts[: process_rank()])
            further = [self.by_id[query_id] for query_id in left[first : first + len(equal)]]
            for place, index in zip(equal, range(len(further)), strict=False):
                batch.kept[place] = len(batch.rolled_out) + index
            self._roll_out_round(batch, further)

    def take(self, batch: Batch) -> None:
        """Set the current step's batch. Raises RunStopped, on all processes, if an LLM client has stopped or a service
        behind the tools refuses all calls."""
        self.stop_together(batch.stop)
        self.batch = batch

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        """TRL's reward functions, one per column: the reward; for GDPO, the reward or each part of it, and validity."""
        name, method = self.config.reward.name, online_method(self.config.rl)
        _, for_trl = method.for_trl(self.config.rl)
        columns = {name: lambda group, outcome: for_trl(outcome.rewards_G)}
        if method.keeps_rewards_apart:
            if reward_of(name).has_parts:
                count = max(len(self.arena.referee.judge.weights(query)) for query in self.by_id.values())
                columns = {f"{name}_{k + 1}": partial(_part, k) for k in range(count)}
            columns["valid"] = _validity

        first, *rest = columns.values()

        def compute(values: Callable[[RolloutGroup, GroupOutcome], Rewards], **_: Any) -> list[float | None]:
            return [value for pair in self.batch.judged() for value in values(*pair)]

        def finish_and_compute(
            log_metric: Callable[[str, float], None], trainer_state: Any, **_: Any
        ) -> list[float | None]:
            """Finish the step, before TRL calls the functions of the other columns."""
            start = perf_counter()
            self.batch.outcomes()
            waited_s = perf_counter() - start
            metrics = self.metrics or self.finish(trainer_state.global_step)
            for name, values in (metrics | self._times(start, waited_s)).items():
                for value in values:
                    log_metric(name, value)
            return compute(first)

        functions = [finish_and_compute, *(partial(compute, values) for values in rest)]
        for function, title in zip(functions, columns, strict=True):
            function.__name__ = title
        return functions

    def finish(self, number: int) -> dict[str, list[float]]:
        """Wait for the judge, and return the step's metrics as this process's values.

        A metric is the mean over the values of all processes, of replaced groups too. Every `rl.eval_steps` steps, the
        groups to train on are written to groups.jsonl and shown in W&B. Raises RunStopped, on all processes, if an LLM
        client has stopped, or no trajectory was valid or rewarded for too many steps.
        """
        every = self.batch.outcomes()
        incoming = [group for judging in self.batch.judgings for group in judging.groups]
        watched = self.watcher.look(number, incoming, every) if self.watcher else {}
        usage = _llm_usage(self.client) if self.client else {}
        # gathered, so that the judge's variances and the checks are equal on all processes
        facts = gather_object([_facts(*pair) for pair in zip(self.batch.rolled_out, every, strict=True)])
        calls, tallies, ends, world_rewards, rubrics = zip(*facts, strict=True)
        self.arena.learn(self.config.rollout.group_size, calls, rubrics)
        self.arena.count(tallies)
        self.verdicts.look(tallies)
        self.validity.look(number, sum(ends, start=Counter()), self.batch.groups)
        if self.world_rewards:
            self.world_rewards.look(number, [reward for of_group in world_rewards for reward in of_group])
        if self.config.rl.eval_steps and number % self.config.rl.eval_steps == 0:
            groups, outcomes = zip(*gather_object(self.batch.judged()), strict=True)
            if is_main_process():
                append_step(self.folder / "groups.jsonl", number, group_records(number, groups, outcomes, self.examine))
                log_table("rollouts", *rollout_table(groups, outcomes), number)
        shared = self.arena.judge_metrics() | usage | {"rollout/max_turns": self.config.turns.at(number)}
        if self.config.rl.resample_equal > 1:
            shared["rollout/replaced_groups"] = len(facts) - self.config.rl.groups
        own = outcome_metrics(self.batch.rolled_out, every, self.examine) | self.engine.tool_metrics() | watched
        return own | {name: [value] for name, value in shared.items()}

    def _times(self, reward_start: float, waited_s: float) -> dict[str, list[float]]:
        """Seconds of the slowest process, for which all others wait; `reward_start` is when TRL called `reward`."""
        begin, end = self.batch.generated
        seconds = {
            "rollout": end - begin,
            "forward": reward_start - self.handed_at,
            "judge": waited_s,
            **self.boundary_s,
        }
        seconds["judge_after"] = max(0.0, *(judging.ended - end for judging in self.batch.judgings))
        tokens = sum(one.policy_tokens for group in self.batch.rolled_out for one in group.trajectories)
        of_processes = gather_object([(tokens, seconds)])
        slowest = max((of for _, of in of_processes), key=lambda of: of["rollout"] + of["forward"] + of["judge"])
        return {f"time/{part}_s": [value] for part, value in slowest.items()} | {
            "time/tokens_per_s": [sum(tokens for tokens, _ in of_processes) / slowest["rollout"]],
            "time/judge_hidden_s": [sum(judging.busy_s(until=reward_start) for judging in self.batch.judgings)],
        }

    def wait(self) -> None:
        """Wait until no thread generates or judges groups of a later step."""

    def close(self) -> None:
        """Write the watching judge's last scores, after the last step. Raises RunStopped as `stop_together` does."""
        if self.watcher:
            self.watcher.close()
        self.stop_together()

    def stop_together(self, reason: str | None = None) -> None:
        """Raise RunStopped on all processes if one has a `reason` to stop, or an LLM client that has stopped."""
        raise_first(gather_object([reason or (self.client.stop_reason if self.client else None)]))


def _facts(group: RolloutGroup, outcome: GroupOutcome) -> tuple:
    """Return what all processes need of a group: scored calls, tally, counts of stop reasons, the environment's
    rewards, and the rubrics that its query keeps."""
    rewards = [trajectory.meta.get("reward") for trajectory in group.trajectories if not trajectory.is_void]
    ends = Counter(trajectory.stop_reason for trajectory in group.trajectories)
    return outcome.scored_calls, outcome.tally, ends, rewards, (group.query.query_id, outcome.rubrics)


def _part(k: int, group: RolloutGroup, outcome: GroupOutcome) -> Rewards:
    """Return the scores on dimension k (G,); all 0, which changes no advantage, if the query has fewer dimensions."""
    return [None if parts is None else parts[k] if k < len(parts) else 0.0 for parts in outcome.parts_G]


def _validity(group: RolloutGroup, outcome: GroupOutcome) -> Rewards:
    """Return 1 or 0 (G,); None where the reward is None, so that TRL ignores the trajectory in all columns."""
    pairs = zip(group.trajectories, outcome.rewards_G, strict=True)
    return [None if reward is None else float(trajectory.valid) for trajectory, reward in pairs]


def _with_a_token(trajectory: Trajectory, token: int) -> Trajectory:
    """Add a masked token to an empty completion, because TRL reads the last token of each completion."""
    if trajectory.completion_ids:
        return trajectory
    return replace(trajectory, completion_ids=[token], policy_mask_T=[0], logprobs_T=[None])


def _llm_usage(client: LLMClient) -> dict[str, float]:
    """Return metrics of all processes' LLM calls, in the last step and in total. Raises RunStopped on all processes."""
    usage, total = client.take_usage()
    reasons, usages, totals = zip(*gather_object([(client.stop_reason, usage, total)]), strict=True)
    raise_first(reasons)
    return usage_metrics(sum(usages, start=Usage()), max(totals, key=lambda total: total.calls))  # the newest total


def raise_first(reasons: Sequence[str | None]) -> None:
    """Raise RunStopped with the first reason among those of all processes, if there is one. All processes call it, so
    that none continues alone and hangs."""
    if reasons := [reason for reason in reasons if reason]:
        raise RunStopped(reasons[0])
