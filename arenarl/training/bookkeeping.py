"""What is done with a step's groups once they are judged, whatever is trained on them then: what they tell of the judge
and of the policy is shared by all processes, logged and kept, and a run that cannot go on is stopped.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from accelerate.utils import gather_object

from arenarl.config.schema import Config
from arenarl.judges.judge import Examiner
from arenarl.llm.client import LLMClient, RunStopped, Usage, usage_metrics
from arenarl.rollout.engine import RolloutEngine
from arenarl.run.tracking import log_table
from arenarl.system.progress import is_main_process
from arenarl.training.judging import IncomingGroup
from arenarl.training.outcome import GroupOutcome
from arenarl.training.rewarding import Arena
from arenarl.training.step_records import group_records, outcome_metrics, rollout_table
from arenarl.training.validity import RewardWatch, ValidityWatch, VerdictWatch
from arenarl.training.watching import Watcher
from arenarl.trajectory import RolloutGroup, append_step


class Bookkeeping:
    """The books of RL in `folder`. All methods but `check` are to be called on all processes.

    Args:
        examine: says what is logged as true; None without a truth.
        client: the way to LLMs; None where nobody asks any.
        watcher: a judge that has no part in rewards.
    """

    def __init__(
        self,
        config: Config,
        arena: Arena,
        engine: RolloutEngine,
        examine: Examiner | None,
        folder: Path,
        client: LLMClient | None = None,
        watcher: Watcher | None = None,
    ):
        self.config, self.arena, self.engine, self.examine, self.folder = config, arena, engine, examine, folder
        self.client, self.watcher = client, watcher
        is_by_world = config.reward.name == "environment" and not config.reward.tournament_if_equal
        self.rewards = RewardWatch(config.rl.stop_without_valid) if is_by_world else None
        self.verdicts = VerdictWatch(config.judge.max_failure_share)
        self.validity = ValidityWatch(config.rl.stop_without_valid, engine.tokenizer.decode)

    def begin(self, step: int, groups: Sequence[IncomingGroup]) -> None:
        """To be called with this process's groups before their first trajectory is handed over."""
        if self.watcher:
            self.watcher.begin(step, groups)

    def close(
        self,
        step: int,
        incoming: Sequence[IncomingGroup],
        groups: Sequence[RolloutGroup],
        outcomes: Sequence[GroupOutcome],
    ) -> dict[str, list[float]]:
        """The metrics of a step, each as this process's values, whose mean with those of the others it is. Every
        `rl.eval_steps` steps the groups of all processes are kept in groups.jsonl and shown in W&B.

        Raises:
            RunStopped: on all processes, if an LLM of one of them is to be asked no more,
                or nothing has been valid or rewarded for too long.
        """
        watched = self.watcher.look(step, incoming, outcomes) if self.watcher else {}
        usage = llm_usage(self.client) if self.client else {}
        heard = gather_object([_heard(group, outcome) for group, outcome in zip(groups, outcomes, strict=True)])
        # of all processes, so that what they know stays the same everywhere
        calls, tallies, ends, rewards = zip(*heard, strict=True)
        self.arena.learn(self.config.rollout.group_size, calls)
        self.arena.count(tallies)
        self.verdicts.look(tallies)
        self.validity.look(step, sum(ends, start=Counter()), groups)
        if self.rewards:
            self.rewards.look(step, [reward for of_group in rewards for reward in of_group])
        if self.config.rl.eval_steps and step % self.config.rl.eval_steps == 0:
            self._keep(step, gather_object(list(zip(groups, outcomes, strict=True))))
        known = self.arena.judge_metrics() | usage | {"rollout/max_turns": self.config.turns.at(step)}
        own = outcome_metrics(groups, outcomes, self.examine) | self.engine.tool_metrics() | watched
        return own | {name: [value] for name, value in known.items()}

    def _keep(self, step: int, judged: Sequence[tuple[RolloutGroup, GroupOutcome]]) -> None:
        if is_main_process():
            groups, outcomes = zip(*judged, strict=True)
            append_step(self.folder / "groups.jsonl", step, group_records(step, groups, outcomes, self.examine))
            log_table("rollouts", *rollout_table(groups, outcomes), step)

    def finish(self) -> None:
        """After the last step: what a watching judge still has to say is kept.
        Raises RunStopped as `stop_together` does."""
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


def _heard(group: RolloutGroup, outcome: GroupOutcome) -> tuple:
    """What all processes hear of a group: scored calls, tally, how its trajectories ended,
    what the world gave those that are not void."""
    rewards = [trajectory.meta.get("reward") for trajectory in group.trajectories if not trajectory.is_void]
    return (
        outcome.scored_calls,
        outcome.tally,
        Counter(trajectory.stop_reason for trajectory in group.trajectories),
        rewards,
    )


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
    """Raises RunStopped if a process has a reason to stop;
    `reasons` are those of all, so that none goes on alone and waits for ever."""
    if reasons := [reason for reason in reasons if reason]:
        raise RunStopped(reasons[0])
