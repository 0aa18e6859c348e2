"""One step of RL: rollout → judge → reward → advantage → log.

TRL generates, then computes the reference's and the old log-probabilities, then asks for rewards: judging begins with
the first trajectory, in a thread (`judging`), and is waited for when TRL asks. `methods` says what TRL is handed of the
rewards, and what becomes of it. Offline methods (`offline`) call `roll_out` and `finish` themselves.

Rollout seeds and horizons derive from the optimizer step, so a resumed run samples what the unbroken one would have.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
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
from arenarl.system.progress import is_main_process
from arenarl.system.seeds import stable_seed
from arenarl.training.arena import Arena
from arenarl.training.judging import Judging
from arenarl.training.methods import online_method
from arenarl.training.metrics import group_records, outcome_metrics, rollout_table
from arenarl.training.rewards.group import GroupOutcome
from arenarl.training.trl_internals import generating
from arenarl.training.validity import RewardWatch, ValidityWatch, VerdictWatch
from arenarl.training.watching import Watcher
from arenarl.trajectory import Query, RolloutGroup, Trajectory, append_step


class TrainingStep:
    """The step under way: its groups on this process. All methods but `check` are called on all processes together.

    Args:
        examine: gives the truth that is logged; None without one.
        folder: of RL, where groups.jsonl is written.
        client: the way to LLMs; None without any.
        watcher: a judge that has no part in rewards.
    """

    def __init__(
        self,
        config: Config,
        queries: Sequence[Query],
        engine: RolloutEngine,
        arena: Arena,
        examine: Examiner | None,
        folder: Path,
        client: LLMClient | None = None,
        watcher: Watcher | None = None,
    ):
        self.config, self.engine, self.arena, self.examine, self.folder = config, engine, arena, examine, folder
        self.client, self.watcher = client, watcher
        self.by_id = {query.query_id: query for query in queries}
        self.verdicts = VerdictWatch(config.judge.max_failure_share)
        self.validity = ValidityWatch(config.rl.stop_without_valid, engine.tokenizer.decode)
        is_by_world = config.reward.name == "environment" and not config.reward.tournament_if_equal
        self.world_rewards = RewardWatch(config.rl.stop_without_valid) if is_by_world else None
        self.judging: Judging[GroupOutcome]
        self.groups: list[RolloutGroup]
        self.outcomes: list[GroupOutcome]
        self.generated: tuple[float, float]  # start and end of the rollouts, by perf_counter

    def roll_out(
        self, number: int, queries: Sequence[Query], weights: AbstractContextManager | None = None
    ) -> list[RolloutGroup]:
        """A group of each of this process's queries, judged from its first trajectory on.

        Errors from the judge end the rollout. So do the LLM client and a service behind the tools that refuse all
        calls: RunStopped on all processes, once all are through with theirs.

        Args:
            weights: lends the engine the weights to generate with; None if it has them.
        """
        start, size, stop = perf_counter(), self.config.rollout.group_size, None
        self.judging = judging = self.arena.begin(queries, size)
        if self.watcher:
            self.watcher.begin(number, judging.groups)

        def hand_over(index: int, trajectory: Trajectory) -> None:
            judging.groups[index // size].hand_over(index % size, trajectory)
            judging.check()
            self.check()

        with weights or nullcontext():
            try:
                self.groups = self.engine.roll_out_groups(
                    queries, stable_seed(self.config.seed, number), self.config.turns.at(number), hand_over
                )
            except RunStopped as error:  # raised on all processes, once the model is back with the trainer
                stop = str(error)
        self.stop_together(stop)
        self.generated = start, perf_counter()
        return self.groups

    def finish(self, number: int) -> dict[str, list[float]]:
        """Wait for the judge, and log the step. Returns its metrics, each as this process's values, of which, with
        those of all processes, the mean is the metric. Every `rl.eval_steps` steps the groups are kept in groups.jsonl
        and shown in W&B.

        Raises:
            RunStopped: on all processes, if an LLM of one of them is to be asked no more,
                or nothing has been valid or rewarded for too long.
        """
        self.outcomes = self.judging.outcomes()
        judged = list(zip(self.groups, self.outcomes, strict=True))
        watched = self.watcher.look(number, self.judging.groups, self.outcomes) if self.watcher else {}
        usage = llm_usage(self.client) if self.client else {}
        # of all processes, so that what they know stays the same everywhere
        calls, tallies, ends, world_rewards = zip(*gather_object([_facts(*one) for one in judged]), strict=True)
        self.arena.learn(self.config.rollout.group_size, calls)
        self.arena.count(tallies)
        self.verdicts.look(tallies)
        self.validity.look(number, sum(ends, start=Counter()), self.groups)
        if self.world_rewards:
            self.world_rewards.look(number, [reward for of_group in world_rewards for reward in of_group])
        if self.config.rl.eval_steps and number % self.config.rl.eval_steps == 0:
            self._keep(number, gather_object(judged))
        known = self.arena.judge_metrics() | usage | {"rollout/max_turns": self.config.turns.at(number)}
        own = outcome_metrics(self.groups, self.outcomes, self.examine) | self.engine.tool_metrics() | watched
        return own | {name: [value] for name, value in known.items()}

    def _keep(self, number: int, judged: Sequence[tuple[RolloutGroup, GroupOutcome]]) -> None:
        if is_main_process():
            groups, outcomes = zip(*judged, strict=True)
            append_step(self.folder / "groups.jsonl", number, group_records(number, groups, outcomes, self.examine))
            log_table("rollouts", *rollout_table(groups, outcomes), number)

    def rollout_func(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """TRL's: ids of queries, each N times in a row → token ids, and the mask of the policy's own tokens."""
        size = self.config.rollout.group_size
        firsts = prompts[::size]
        if [first for first in firsts for _ in range(size)] != list(prompts):
            raise RuntimeError(
                f"TRL did not hand over whole groups of {size} prompts; this version lays batches out differently"
            )
        queries = [self.by_id[query_id] for query_id in firsts]
        groups = self.roll_out(trainer.state.global_step, queries, generating(self.engine, trainer))
        end = trainer.processing_class.eos_token_id
        trajectories = [_with_a_token(trajectory, end) for group in groups for trajectory in group.trajectories]
        return {
            "prompt_ids": [trajectory.prompt_ids for trajectory in trajectories],
            "completion_ids": [trajectory.completion_ids for trajectory in trajectories],
            "env_mask": [trajectory.policy_mask_T for trajectory in trajectories],
            "logprobs": [trajectory.logprobs_T for trajectory in trajectories] if trainer.use_vllm else None,
        }

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        """TRL's, a column each: the reward, and for GDPO whether the trajectory is valid."""
        method = online_method(self.config.rl)
        _, handed = method.for_trl(self.config.rl)

        def reward(log_metric: Callable[[str, float], None], trainer_state: Any, **_: Any) -> list[float | None]:
            start = perf_counter()
            self.judging.outcomes()
            waited_s = perf_counter() - start
            metrics = self.finish(trainer_state.global_step)
            for name, values in (metrics | self._times(start, waited_s)).items():
                for value in values:
                    log_metric(name, value)
            return [value for outcome in self.outcomes for value in handed(outcome.rewards_G)]

        def valid(**_: Any) -> list[float | None]:
            """1 or 0; None where the reward is, so that TRL leaves the trajectory out of both columns."""
            trajectories = [trajectory for group in self.groups for trajectory in group.trajectories]
            rewards = [reward for outcome in self.outcomes for reward in outcome.rewards_G]
            return [None if r is None else float(one.valid) for one, r in zip(trajectories, rewards, strict=True)]

        reward.__name__ = self.config.reward.name
        return [reward, valid] if method.keeps_validity_apart else [reward]

    def _times(self, asked: float, waited_s: float) -> dict[str, list[float]]:
        """Seconds of the slowest process, for which all wait; `asked` is when TRL asked for rewards."""
        begin, end = self.generated
        tokens = sum(trajectory.policy_tokens for group in self.groups for trajectory in group.trajectories)
        of_processes = gather_object([(tokens, (end - begin, asked - end, waited_s))])
        rollout_s, forward_s, judge_s = max((seconds for _, seconds in of_processes), key=sum)
        return {
            "time/rollout_s": [rollout_s],
            "time/forward_s": [forward_s],
            "time/judge_s": [judge_s],
            "time/tokens_per_s": [sum(tokens for tokens, _ in of_processes) / rollout_s],
            "time/judge_hidden_s": [self.judging.busy_s(until=asked)],
        }

    def close(self) -> None:
        """After the last step: keep what a watching judge still has to say. Raises RunStopped as `stop_together`."""
        if self.watcher:
            self.watcher.close()
        self.stop_together()

    def check(self) -> None:
        """Raises RunStopped if this process's LLMs are to be asked no more."""
        if self.client:
            self.client.check()

    def stop_together(self, reason: str | None = None) -> None:
        """Raises RunStopped on all processes if one of them has a reason to stop:
        this one, or that its LLMs are to be asked no more."""
        stop_together(gather_object([reason or (self.client.stop_reason if self.client else None)]))


def _facts(group: RolloutGroup, outcome: GroupOutcome) -> tuple:
    """What all processes need of a group: scored calls, tally, how its trajectories ended, and the world's rewards."""
    rewards = [trajectory.meta.get("reward") for trajectory in group.trajectories if not trajectory.is_void]
    ends = Counter(trajectory.stop_reason for trajectory in group.trajectories)
    return outcome.scored_calls, outcome.tally, ends, rewards


def _with_a_token(trajectory: Trajectory, token: int) -> Trajectory:
    """TRL looks at the last token of each. One that ended before the first gets this, which is nobody's own."""
    if trajectory.completion_ids:
        return trajectory
    return replace(trajectory, completion_ids=[token], policy_mask_T=[0], logprobs_T=[None])


def llm_usage(client: LLMClient) -> dict[str, float]:
    """What the LLM calls since the last step took, over all processes, and in total so far.

    Raises:
        RunStopped: on all processes, if one of them is to stop.
    """
    usage, spent = client.take_usage()
    reports = gather_object([(client.stop_reason, usage, spent)])
    stop_together([reason for reason, _, _ in reports])
    total = sum((one for _, one, _ in reports), start=Usage())
    return usage_metrics(total, max((one for _, _, one in reports), key=lambda one: one.calls))  # the one read last


def stop_together(reasons: Sequence[str | None]) -> None:
    """Raises RunStopped if a process has a reason to stop;
    `reasons` are those of all, so that none goes on alone and waits for ever."""
    if reasons := [reason for reason in reasons if reason]:
        raise RunStopped(reasons[0])
